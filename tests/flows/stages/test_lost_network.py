"""Minutes without a connection to the platform during a sweep, caused by a proxy that hangs up.

Time is compressed: the tasks' own pauses are shorter by a factor, and boto3 tries each call once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from prefect.utilities.math import lower_clamp_multiple

import nodesweep.aws.clients
import nodesweep.aws.platform
from benchmarks.chaos.plan import UNDISTURBED, Moment
from benchmarks.chaos.proxy import Proxy
from nodesweep.aws.platform import OUTAGE_JITTER, OUTAGE_PAUSES_SECONDS, PATIENT_TASK_OPTIONS
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import is_transient
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.launch.sagemaker.results import read_job_metrics
from nodesweep.launch.saved_logs import read_job_log
from nodesweep.tasks.calls import put_objects
from nodesweep.tasks.jobs.training_jobs import (
    job_status,
    submit_training_job,
    watch_training_jobs,
)
from nodesweep.tasks.sweeps.claims import claim_job, is_sweep_stopped
from nodesweep.tasks.sweeps.records import write_sweep_record
from tests.flows.simulated_sweep import COMPLETED, held_jobs, ledger

Configs = Callable[..., BenchmarkConfig]
Platform = Callable[..., Any]
PATIENT_TASKS = (put_objects,)
PATIENT_CALLS = (
    job_status,
    submit_training_job,
    watch_training_jobs,
    read_job_log,
    read_job_metrics,
    claim_job,
    is_sweep_stopped,
    write_sweep_record,
)
FIVE_MINUTES = 300.0
MODEL = {"t_compute_seconds": 100, "startup_seconds": 5, "download_seconds": 5, "setup_seconds": 0}
LOOKS = ("GET stop-mark", "DescribeTrainingJob", "ListTrainingJobs")
TIME_SCALE = 0.02  # jobs of 2.4, 1.4 and 0.9 s
TWO_POINTS = {"node_counts": [1, 2]}
ONE_POINT = {"node_counts": [1]}


@pytest.fixture
def compress(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return compress(times), which divides every pause of the retrying tasks by `times`."""

    def install(times: float) -> None:
        once = nodesweep.aws.clients._CLIENT_CONFIG.merge(
            Config(retries={"mode": "standard", "total_max_attempts": 1})
        )
        monkeypatch.setattr(nodesweep.aws.clients, "_CLIENT_CONFIG", once)
        pauses = tuple(seconds / times for seconds in nodesweep.aws.platform.OUTAGE_PAUSES_SECONDS)
        monkeypatch.setattr(nodesweep.aws.platform, "OUTAGE_PAUSES_SECONDS", pauses)
        for task in PATIENT_TASKS:
            monkeypatch.setattr(task, "retry_delay_seconds", list(pauses))

    return install


def lose_network_at(proxy: Proxy, description: int, looks: float, let_go: threading.Event) -> None:
    """Interrupt all connections until the run has looked for its jobs this many times in vain.

    The outage begins with this description of a job, and lets the held jobs go on.
    """
    left = looks

    def strike(label: str, number: int, moment: Moment) -> bool:
        nonlocal left
        if (label, number, moment) == ("DescribeTrainingJob", description, "before"):
            let_go.set()
        if not let_go.is_set() or left <= 0:
            return False
        left -= label in LOOKS
        return True

    proxy.begin_try(strike)


def through(proxy: Proxy, served: SimpleNamespace) -> SimpleNamespace:
    """The platform as a flow reaches it through the proxy."""
    return SimpleNamespace(**{**vars(served), "endpoint": proxy.endpoint})


def test_tasks_wait_longer_than_five_minutes_while_jobs_run() -> None:
    """Were every call refused at once and every pause as short as its jitter makes it."""
    shortest = lower_clamp_multiple(1 + PATIENT_TASK_OPTIONS["retry_jitter_factor"])
    assert sum(PATIENT_TASK_OPTIONS["retry_delay_seconds"]) * shortest > FIVE_MINUTES
    for task in PATIENT_TASKS:
        assert task.retry_delay_seconds == PATIENT_TASK_OPTIONS["retry_delay_seconds"], task.name
        assert task.retries == len(task.retry_delay_seconds), task.name
    assert list(OUTAGE_PAUSES_SECONDS) == PATIENT_TASK_OPTIONS["retry_delay_seconds"]
    assert min(OUTAGE_JITTER) >= shortest
    for call in PATIENT_CALLS:
        assert call.__wrapped__.__name__ == call.__name__, "it is patient"


@pytest.mark.usefixtures("prefect", "quiet")
def test_sweep_goes_on_after_five_minutes_without_a_network(
    simulated: Platform,
    sweep_config: Configs,
    compress: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No second job, and none that failed: the first one ends during the outage, and is found
    at its end."""
    caplog.set_level(logging.WARNING, "nodesweep")
    looks = 10
    assert sum(OUTAGE_PAUSES_SECONDS[:looks]) > FIVE_MINUTES
    compress(100)
    with (
        simulated(model=MODEL, time_scale=TIME_SCALE) as served,
        Proxy(served.endpoint, UNDISTURBED.call_fault, state_directory=served.state_dir) as proxy,
        held_jobs() as let_go,
    ):
        lose_network_at(proxy, 3, looks, let_go)
        result = scaling_benchmark(sweep_config(through(proxy, served), sweep=TWO_POINTS))
        assert ledger(served) == COMPLETED[:2]
        assert sum(call.label == "CreateTrainingJob" for call in proxy.calls) == 2
    assert result.missing_points == 0
    assert (
        sum("watch training jobs: " in record.getMessage() for record in caplog.records) == looks
    ), "tries in vain"


@pytest.mark.usefixtures("prefect", "quiet")
def test_sweep_that_waited_in_vain_leaves_its_jobs_to_the_next_run(
    simulated: Platform, sweep_config: Configs, compress: Callable[[float], None]
) -> None:
    """An outage that outlasts every pause: the run fails with what boto3 said, the next one
    finds its job."""
    compress(2000)
    with (
        simulated(model=MODEL, time_scale=TIME_SCALE) as served,
        Proxy(served.endpoint, UNDISTURBED.call_fault, state_directory=served.state_dir) as proxy,
        held_jobs() as let_go,
    ):
        lose_network_at(proxy, 3, float("inf"), let_go)
        config = sweep_config(through(proxy, served), sweep=ONE_POINT)
        with pytest.raises(BotoCoreError) as lost:
            scaling_benchmark(config)
        left = [(nodes, attempt) for nodes, attempt, _ in ledger(served)]
        proxy.begin_try(None)
        result = scaling_benchmark(config, resume=True)
        assert ledger(served) == COMPLETED[:1]
    assert is_transient(lost.value)
    assert left == [(1, 1)]
    assert result.missing_points == 0
