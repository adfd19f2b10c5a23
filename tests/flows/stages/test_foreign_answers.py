"""Whole runs against endpoints whose responses are not AWS's, or that do not respond: the command's
messages, and what remains.

Time is compressed: the tasks' own pauses are shorter by a factor, and boto3 tries each call once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.config import Config

import nodesweep.aws.clients
import nodesweep.aws.platform
import nodesweep.aws.responses
from benchmarks.chaos.plan import CallFault
from benchmarks.chaos.proxy import Proxy
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.tasks.calls import prepare_store
from tests.flows.simulated_sweep import COMPLETED, held_jobs, ledger, nodesweep_run
from tests.flows.stages.test_lost_network import (
    MODEL,
    ONE_POINT,
    PATIENT_TASKS,
    TIME_SCALE,
    through,
)
from tests.hostile_server import PAGE, Words, hostile_server

pytestmark = pytest.mark.usefixtures("prefect", "quiet")
Configs = Callable[..., BenchmarkConfig]
Platform = Callable[..., Any]
STRUCK_AT_DESCRIPTION = 3


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return short_waits(times), which divides every pause between tries by `times`.

    Calls then give up after `call_seconds`, and runs at the second call without a response.
    """

    def install(times: float, call_seconds: float = 60) -> None:
        once = Config(
            retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=call_seconds
        )
        for name in ("_CLIENT_CONFIG", "_QUICK_CONFIG"):
            monkeypatch.setattr(
                nodesweep.aws.clients, name, getattr(nodesweep.aws.clients, name).merge(once)
            )
        pauses = tuple(seconds / times for seconds in nodesweep.aws.platform.OUTAGE_PAUSES_SECONDS)
        monkeypatch.setattr(nodesweep.aws.platform, "OUTAGE_PAUSES_SECONDS", pauses)
        for task in (*PATIENT_TASKS, prepare_store):
            delays = [seconds / times for seconds in task.retry_delay_seconds]
            monkeypatch.setattr(task, "retry_delay_seconds", delays)
        monkeypatch.setattr(nodesweep.aws.responses, "WARN_SECONDS", call_seconds / 2)
        monkeypatch.setattr(nodesweep.aws.responses, "GIVE_UP_SECONDS", 1.5 * call_seconds)

    return install


class Spoiler:
    """Spoils the calls from the third description of a job on: a number of them, or until it is
    lifted. The jobs are held until then."""

    def __init__(self, fault: CallFault, calls: float, let_go: threading.Event) -> None:
        self._fault, self._left, self._let_go = fault, calls, let_go

    def __call__(self, label: str, number: int) -> CallFault | None:
        if (label, number) == ("DescribeTrainingJob", STRUCK_AT_DESCRIPTION):
            self._let_go.set()
        if not self._let_go.is_set() or self._left <= 0:
            return None
        self._left -= 1
        return self._fault

    def lift(self) -> None:
        self._left = 0


@pytest.mark.slow  # half a minute of pauses
def test_proxys_page_in_the_middle_of_a_sweep_is_waited_out(
    simulated: Platform, sweep_config: Configs, short_waits: Callable[..., None]
) -> None:
    short_waits(50)
    with (
        held_jobs() as let_go,
        simulated(model=MODEL, time_scale=TIME_SCALE) as served,
        Proxy(
            served.endpoint, Spoiler("page", 5, let_go), state_directory=served.state_dir
        ) as proxy,
    ):
        result = scaling_benchmark(sweep_config(through(proxy, served)))
        assert (result.missing_points, ledger(served)) == (0, COMPLETED)
        assert sum(call.label == "CreateTrainingJob" for call in proxy.calls) == len(COMPLETED)
    assert proxy.faults["page"] == 5


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("page", "HTTP 403, text/html, "),
        pytest.param("unanswered", r" for \d+ s; ", marks=pytest.mark.slow),
    ],
)
def test_endpoint_that_is_lost_for_good_leaves_its_jobs_to_the_next_run(
    simulated: Platform,
    sweep_config: Configs,
    short_waits: Callable[..., None],
    tmp_path: Path,
    fault: CallFault,
    message: str,
) -> None:
    short_waits(1000, 60 if fault == "page" else 5)
    with (
        held_jobs() as let_go,
        simulated(model=MODEL, time_scale=TIME_SCALE) as served,
        Proxy(
            served.endpoint,
            spoiler := Spoiler(fault, float("inf"), let_go),
            state_directory=served.state_dir,
        ) as proxy,
    ):
        config = sweep_config(through(proxy, served), sweep=ONE_POINT)
        lost = nodesweep_run(config, tmp_path)
        assert lost.exit_code == 1 and isinstance(lost.exception, SystemExit), lost.output
        assert proxy.endpoint in lost.output and re.search(message, lost.output), lost.output
        assert f"`nodesweep run {tmp_path}/config.yaml --resume " in lost.output
        if fault == "unanswered":
            assert "no response" in lost.output
        assert [(nodes, attempt) for nodes, attempt, _ in ledger(served)] == [(1, 1)]
        spoiler.lift()
        resumed = nodesweep_run(config, tmp_path, "--resume")
        assert (resumed.exit_code, ledger(served)) == (0, COMPLETED[:1]), resumed.output


@pytest.mark.parametrize(
    "words",
    [
        Words(403, PAGE, {"Content-Type": "text/html"}),
        Words(200, b'{"status": "ok"}'),
        Words(302, b"", {"Location": "/"}),
    ],
    ids=["403", "200", "circle"],
)
def test_run_against_something_else_ends_with_what_it_said(
    sweep_config: Configs,
    short_waits: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: Words,
) -> None:
    """Also with credentials of one's own, which no status page stands before."""
    short_waits(1000)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with hostile_server(lambda path: words) as endpoint:
        config = sweep_config(SimpleNamespace(endpoint=endpoint, state_dir=tmp_path / "state"))
        own = config.model_copy(
            update={"platform": config.platform.model_copy(update={"credentials": "chain"})}
        )
        done = nodesweep_run(own, tmp_path)
    assert done.exit_code == 3 and isinstance(done.exception, SystemExit), done.output
    for fact in ("platform.endpoint_url: ", endpoint, "GetBucketLocation", f"HTTP {words.status}"):
        assert fact in done.output
