"""A cancel that only Prefect's server tells of: the run stops its jobs and ends as Cancelled."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelling, Running, State

import flows.stages.cancellable
import flows.stages.sweep
import tasks.cancelling
from configs.models import BenchmarkConfig
from flows.collect import collect_sweep
from flows.detach import start_detached_sweep
from flows.reaper import reaper
from flows.report import report_sweep
from flows.scaling_benchmark import scaling_benchmark
from flows.stages.cancellable import cancellable
from flows.stop import stop_sweep
from tasks.errors import JobRefused
from tasks.polling import STOP, Cancelled
from tests.flows.simulated_sweep import nodesweep_run

Configs = Callable[..., BenchmarkConfig]


@pytest.fixture
def says_cancelling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any, str], None]]:
    """says_cancelling(module, name): from the first call of the function on, the server says that
    the run is being cancelled.
    """
    called: list[str] = []
    monkeypatch.setattr(tasks.cancelling, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(
        tasks.cancelling, "_read_state", lambda run: Cancelling() if called else Running()
    )

    def install(module: Any, name: str) -> None:
        real = getattr(module, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            called.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, noted)

    yield install


def last_run(name_part: str) -> Any:
    with get_client(sync_client=True) as client:
        runs = [run for run in client.read_flow_runs(limit=200) if name_part in run.name]
    return max(runs, key=lambda run: run.created)


def jobs(served: SimpleNamespace, benchmark: str) -> list[str]:
    listed = served.sagemaker.list_training_jobs(NameContains=f"{benchmark}-")
    return [job["TrainingJobStatus"] for job in listed["TrainingJobSummaries"]]


@pytest.mark.usefixtures("prefect")
def test_run_stops_its_jobs_and_is_cancelled(
    pipeline_config: Configs,
    served: SimpleNamespace,
    says_cancelling: Callable[[Any, str], None],
) -> None:
    says_cancelling(flows.stages.sweep, "watch_training_jobs")
    config = pipeline_config("endless", name="unheard", sweep={"max_parallel_jobs": 3})
    state: State[Any] = scaling_benchmark(config, return_state=True)
    assert state.is_cancelled()
    assert set(jobs(served, "unheard")) <= {"Stopped", "Stopping"} and jobs(served, "unheard")
    assert last_run("unheard").state.is_cancelled()


@pytest.mark.usefixtures("prefect", "quiet")
def test_command_says_that_its_run_was_cancelled(
    pipeline_config: Configs,
    served: SimpleNamespace,
    says_cancelling: Callable[[Any, str], None],
    tmp_path: Path,
) -> None:
    says_cancelling(flows.stages.sweep, "watch_training_jobs")
    done = nodesweep_run(pipeline_config("endless", name="from-afar"), tmp_path)
    assert done.exit_code == 1
    assert "the run was cancelled in Prefect" in done.output
    assert "InProgress" not in jobs(served, "from-afar")


def test_what_ends_a_run_while_it_is_being_cancelled_is_no_failure() -> None:
    """Jobs that could not be stopped are in the log and in the state's message."""

    def stopping() -> None:
        STOP.cancelled = True
        raise JobRefused("these jobs could not be stopped: a")

    state: Any = cancellable(stopping)()
    assert state.is_cancelled() and state.message == (
        "Cancelled. these jobs could not be stopped: a"
    )


def test_wait_that_the_workers_signal_ends_is_the_end_that_prefect_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal's exception was lost, and the next wait has ended the run. What Prefect takes for
    a cancel is a TerminationSignal.
    """
    for module in (tasks.cancelling, flows.stages.cancellable):
        monkeypatch.setattr(module, "has_deployment", lambda: True)
    monkeypatch.setattr(tasks.cancelling, "_run_id", lambda: None)
    states = iter([Cancelling(), Running()])
    monkeypatch.setattr(tasks.cancelling, "_read_state", lambda run: next(states))

    def ended() -> None:
        monkeypatch.setattr(tasks.cancelling, "_run_id", lambda: "0" * 32)
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise Cancelled from None

    with pytest.raises(TerminationSignal):
        cancellable(ended)()
    monkeypatch.setattr(tasks.cancelling, "_run_id", lambda: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(Cancelled):  # a rollout of the worker: no cancel
        cancellable(ended)()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_signal_to_a_command_ends_it_as_it_did() -> None:
    """CI systems send SIGINT, then SIGTERM: what the first one raised is what leaves the flow."""

    def ended() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            raise Cancelled

    with pytest.raises(Cancelled):
        cancellable(ended)()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize(
    "flow",
    [
        scaling_benchmark,
        start_detached_sweep,
        collect_sweep,
        report_sweep,
        stop_sweep,
        reaper,
    ],
    ids=lambda flow: str(flow.name),
)
def test_every_flow_hears_a_cancel(flow: Any) -> None:
    assert flow.fn.__code__ is cancellable(lambda: None).__code__
