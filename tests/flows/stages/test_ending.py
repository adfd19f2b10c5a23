"""The jobs of a run that ends badly: the part of docs/ending.md that needs no separate server and
worker."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml
from botocore.exceptions import ClientError, EndpointConnectionError
from click.testing import CliRunner
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled as CancelledState
from prefect.states import Cancelling, Running

import nodesweep.flows.stages.ending
import nodesweep.flows.stages.sweep
import nodesweep.tasks.cancelling
import nodesweep.tasks.sweeps.folder
import nodesweep.tasks.sweeps.stop
from infra.local.tests.platform_client import wait_until
from nodesweep.cli.main import main
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.stages.ending import end_sweep
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.polling import Cancelled
from nodesweep.scaling import names
from nodesweep.scaling.job import JobState, JobStatus
from nodesweep.tasks.cancelling import is_cancel
from nodesweep.tasks.report.history import read_history_files
from tests.flows.simulated_sweep import nodesweep_run

Configs = Callable[..., BenchmarkConfig]
REPOSITORY = Path(__file__).resolve().parents[3]
TERMINATED = TerminationSignal(15)
EXPIRED = ClientError(
    {"Error": {"Code": "ExpiredTokenException", "Message": "expired"}}, "ListTrainingJobs"
)
UNREACHABLE = EndpointConnectionError(endpoint_url="https://api.sagemaker")


class Server:
    """Prefect's API of the run's state; it can also be silent."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __call__(self, sync_client: bool, httpx_settings: object) -> Server:
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_flow_run(self, run: object) -> SimpleNamespace:
        if self._state is None:
            raise ConnectionError("no answer")
        return SimpleNamespace(state=self._state)


def test_interrupted_command_was_cancelled_and_an_error_was_not() -> None:
    assert is_cancel(KeyboardInterrupt())
    assert is_cancel(Cancelled())
    assert not is_cancel(EXPIRED)
    assert not is_cancel(SystemExit(1))


def test_sigterm_to_a_command_is_a_cancel() -> None:
    assert is_cancel(TERMINATED)


@pytest.mark.parametrize(
    ("state", "cancelled"),
    [(Cancelling(), True), (CancelledState(), True), (Running(), False), (None, False)],
)
def test_sigterm_under_a_worker_is_what_the_server_says(
    monkeypatch: pytest.MonkeyPatch, state: Any, cancelled: bool
) -> None:
    monkeypatch.setattr(nodesweep.tasks.cancelling, "has_deployment", lambda: True)
    monkeypatch.setattr(nodesweep.tasks.cancelling, "_run_id", lambda: str(uuid4()))
    monkeypatch.setattr("prefect.client.orchestration.get_client", Server(state))
    assert is_cancel(TERMINATED) is cancelled


@pytest.mark.parametrize(
    ("policy", "error", "done"),
    [
        ("stop", KeyboardInterrupt(), "stopped"),
        ("leave", KeyboardInterrupt(), "marked"),
        ("stop", EXPIRED, None),
        ("leave", EXPIRED, None),
    ],
)
def test_cancel_does_what_the_config_says_and_a_crash_does_nothing(
    make_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    error: BaseException,
    done: str | None,
) -> None:
    calls: list[str] = []

    def stop(platform: object, sweep: str, jobs: list[str]) -> list[str]:
        calls.append("stopped")
        return jobs

    monkeypatch.setattr(nodesweep.flows.stages.ending, "stop_sweep_jobs_now", stop)
    monkeypatch.setattr(nodesweep.flows.stages.ending, "still_running", lambda *_: None)
    owner: Any = SimpleNamespace(leave=lambda: calls.append("marked"))
    end_sweep(
        backend_of(make_config().platform),
        policy,
        "bench-20260102030405-0a1b2c3d",
        ["job"],
        error,
        owner,
    )
    assert calls == ([] if done is None else [done])


LISTED: dict[str, JobState] = {"one": "running", "two": "completed"}


@pytest.mark.parametrize(
    ("names_known", "error", "said"),
    [
        (["one", "two"], RuntimeError("broken"), "1 job "),
        (["two"], RuntimeError("broken"), None),
        (["one", "three"], RuntimeError("the list is behind"), "at most 2 jobs "),
        (["one", "two"], UNREACHABLE, "at most 2 jobs "),
        (["one", "two"], SystemExit(1), "at most 2 jobs "),
        ([], RuntimeError("broken"), None),
    ],
)
def test_jobs_that_run_on_are_counted_by_what_the_platform_says(
    make_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    names_known: list[str],
    error: BaseException,
    said: str | None,
) -> None:
    listed = [JobStatus(name, state) for name, state in LISTED.items()]
    launcher = SimpleNamespace(jobs_of=lambda sweep: listed)
    backend: Any = SimpleNamespace(launcher=lambda quick: launcher)
    owner: Any = SimpleNamespace()
    with caplog.at_level("WARNING", "nodesweep"):
        end_sweep(backend, "stop", "bench-20260102030405-0a1b2c3d", names_known, error, owner)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (said is not None)
    assert all(message.startswith(str(said)) for message in messages)


def ledger(served: SimpleNamespace, benchmark: str) -> list[tuple[int, int, str]]:
    """Return (nodes, attempt, status) of every job of the benchmark on the platform, once all have
    ended."""

    def ended() -> list[tuple[int, int, str]] | None:
        jobs = served.sagemaker.list_training_jobs(NameContains=f"{benchmark}-")[
            "TrainingJobSummaries"
        ]
        places = [
            (names.parse_job_name(job["TrainingJobName"]), job["TrainingJobStatus"]) for job in jobs
        ]
        found = [
            (place.nodes, place.attempt, status) for place, status in places if place is not None
        ]
        return sorted(found) if all(status != "InProgress" for *_, status in found) else None

    return list(wait_until(ended))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let writes of report.html find a full disk; the returned function makes room."""
    real = os.fsync

    def fsync(handle: int) -> None:
        if names.REPORT_HTML in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(nodesweep.tasks.sweeps.folder.os, "fsync", fsync)
    return lambda: monkeypatch.setattr(nodesweep.tasks.sweeps.folder.os, "fsync", real)


@pytest.mark.usefixtures("prefect", "quiet")
def test_disk_that_is_full_at_the_report_loses_nothing(
    pipeline_config: Configs, served: SimpleNamespace, full_disk: Callable[[], None], tmp_path: Path
) -> None:
    """Exit code 1 and a message that names the file; report and history are in the bucket, the
    copy here follows."""
    config = pipeline_config("scaling", name="full", sweep={"node_counts": [1]})
    done = nodesweep_run(config, tmp_path)
    (sweep,) = {names.sweep_of_job(job) for job in jobs_named(served, "full-")}
    assert sweep is not None
    html = Path(config.report.directory) / sweep / names.REPORT_HTML
    assert done.exit_code == 1
    assert f"nodesweep: {html}: " in done.output
    assert f"nodesweep report {sweep}" in done.output
    assert not html.exists() and not list(html.parent.glob(".*")), "no half of a file"
    key = names.report_key(config.platform.prefix, sweep, names.REPORT_JSON)
    assert served.s3.head_object(Bucket=config.platform.bucket, Key=key)["ContentLength"] > 0
    files = read_history_files(BucketStore(config.platform, client=served.s3), config.name)
    assert [uri.rsplit("/", 1)[1] for uri in files] == [f"{sweep}.parquet"]
    full_disk()
    again = CliRunner().invoke(main, ["report", sweep, "--config", str(tmp_path / "config.yaml")])
    assert (again.exit_code, html.is_file()) == (0, True), again.output
    assert ledger(served, "full") == [(1, 1, "Completed")]


def jobs_named(served: SimpleNamespace, prefix: str) -> list[str]:
    listed = served.sagemaker.list_training_jobs(NameContains=prefix)["TrainingJobSummaries"]
    return [job["TrainingJobName"] for job in listed if job["TrainingJobName"].startswith(prefix)]


def tables_of_the_page() -> dict[str, list[str]]:
    """Return the first cells of the rows of docs/ending.md's four-column tables, by heading."""
    page = (REPOSITORY / "docs" / "ending.md").read_text(encoding="utf-8")
    parts = re.split(r"(?m)^## (.+)$", page)[1:]
    found = {
        heading: re.findall(r"(?m)^\| (?!event)([^|]+?) \|(?:[^|\n]+\|){3}$", section)
        for heading, section in zip(parts[::2], parts[1::2], strict=True)
    }
    return {heading: rows for heading, rows in found.items() if len(rows) > 1}


def test_every_row_of_the_page_has_its_tests() -> None:
    listed = yaml.safe_load(Path(__file__).with_name("ending_evidence.yaml").read_text())
    assert tables_of_the_page() == {heading: list(rows) for heading, rows in listed.items()}
    assert sum(map(len, listed.values())) > 40
    assert all(tests for rows in listed.values() for tests in rows.values())


def test_every_test_that_is_listed_is_there() -> None:
    """`…` stands for the rest of a name."""
    listed = yaml.safe_load(Path(__file__).with_name("ending_evidence.yaml").read_text())
    known = [
        name
        for folder in ("tests", "infra/local/tests")
        for path in (REPOSITORY / folder).rglob("test_*.py")
        for name in (
            path.name,
            *re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M),
        )
    ]
    named = {name for rows in listed.values() for tests in rows.values() for name in tests}
    assert len(named) > 50
    missing = []
    for name in sorted(named):
        if "/" in name:
            there = (REPOSITORY / name).exists()
        else:
            pattern = re.compile(".*".join(map(re.escape, name.split("[")[0].split("…"))))
            there = any(map(pattern.fullmatch, known))
        missing += [] if there else [name]
    assert missing == []
