"""`nodesweep stop` calls the platform even if Prefect does not work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from infra.local.tests.platform_client import job_request, serve_platform
from nodesweep.cli import stop_record
from nodesweep.cli.stop_record import record_stop
from tests.hostile_server import DRIPS, Words, dripping_server, hostile_server
from tests.nodesweep.cli.test_local_platform import config_in, served_before
from tests.nodesweep.cli.test_main import nodesweep

SWEEP = "local-20261120000000-00000000"
JOB = f"{SWEEP}-n1-r1-a1-abcd"
ENDED = ("Stopping", "Stopped")


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsettled: None
) -> Iterator[SimpleNamespace]:
    """A platform with one job of the sweep, which runs until it is stopped."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    for platform in serve_platform(tmp_path / "state"):
        served_before(tmp_path / "state", platform.endpoint)
        platform.s3.create_bucket(Bucket="nodesweep-local")
        platform.s3.create_bucket(Bucket="results")
        platform.sagemaker.create_training_job(**job_request(JOB, "endless"))
        yield platform


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodesweep.tasks.sweeps.stopping.SETTLE_SECONDS", 0.0)


def stop(served: SimpleNamespace, tmp_path: Path) -> Any:
    return nodesweep("stop", SWEEP, "--config", config_in(tmp_path, served.endpoint))


def status(served: SimpleNamespace) -> str:
    found = served.sagemaker.describe_training_job(TrainingJobName=JOB)
    return str(found["TrainingJobStatus"])


def test_stop_needs_no_prefect(
    served: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prefect", None)  # any import of it fails
    asked: list[str] = []

    def record(sweep: str, job_names: list[str]) -> None:
        asked.append(status(served))

    monkeypatch.setattr(stop_record, "record_stop", record)
    result = stop(served, tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"stopping {JOB}\n"), result.output
    assert asked[0] in ENDED, "Prefect comes after the platform"


def test_record_that_does_not_come_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    with dripping_server(DRIPS["silent"]) as endpoint:
        monkeypatch.setenv("PREFECT_API_URL", f"{endpoint}/api")
        assert record_stop(SWEEP, [JOB], 0.1) == snapshot


def answering(status: int) -> Callable[[Path], AbstractContextManager[str]]:
    return lambda _: hostile_server(lambda path: Words(status, b'{"detail": "no"}'))


UNWELL: dict[str, tuple[Callable[[Path], AbstractContextManager[str]], dict[str, str], str]] = {
    "refused": (lambda _: nullcontext("http://127.0.0.1:9"), {}, "PREFECT_API_URL"),
    "hanging": (lambda _: dripping_server(b""), {}, "10 s"),
    "503": (answering(503), {}, ""),
    "wrong password": (answering(401), {}, "PREFECT_API_AUTH_STRING"),
    "garbage": (lambda _: nullcontext("no url"), {}, "PREFECT_API_URL"),
    "half a setting": (
        lambda _: nullcontext("http://127.0.0.1:9"), {"PREFECT_API_REQUEST_TIMEOUT": "soon"},
        "PREFECT_",
    ),
    "home is a file": (
        lambda folder: nullcontext("http://127.0.0.1:9"), {"PREFECT_HOME": "local.yaml"}, "",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("illness", UNWELL)
def test_stop_asks_the_platform_however_unwell_prefect_is(
    illness: str, served: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, variables, said = UNWELL[illness]
    # where its words are awaited, a limit that only a hang reaches: Prefect's import alone can take
    # 20 s; else it may end within the client's own tries
    seconds = 10.0 if said in ("", "10 s") else 300.0
    monkeypatch.setattr(stop_record.record_stop, "__defaults__", (seconds,))
    with server(tmp_path) as endpoint:
        url = endpoint if "//" not in endpoint else f"{endpoint}/api"
        for name, value in {"PREFECT_API_URL": url, **variables}.items():
            monkeypatch.setenv(name, value)
        result = stop(served, tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"stopping {JOB}\n"), result.output
    assert status(served) in ENDED
    last = result.stderr.splitlines()[-1]
    assert last.startswith("nodesweep: ") and "Prefect" in last
    assert said in last and "Traceback" not in result.output


def test_stop_is_recorded_at_the_server(
    prefect: None, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    if (password := PREFECT_API_AUTH_STRING.value()) is not None:
        secret = password if isinstance(password, str) else password.get_secret_value()
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", secret)
    sweep = f"recorded-{time.time_ns()}"
    assert record_stop(sweep, [JOB], 300.0) is None  # only a hang takes as long
    named = FlowRunFilter(name=FlowRunFilterName(any_=[f"stop-{sweep}"]))
    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs(flow_run_filter=named)
    assert run.state is not None and run.state.is_completed()
    assert run.parameters == {"sweep_id": sweep}
    assert run.state.message == snapshot
