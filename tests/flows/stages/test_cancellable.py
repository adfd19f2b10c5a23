"""A cancellation that only Prefect's server reports: the run stops its jobs and ends as
Cancelled."""

from __future__ import annotations

import signal
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect import flow as prefect_flow
from prefect.client.orchestration import get_client
from prefect.exceptions import Abort, Pause, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run
from prefect.states import Cancelled as CancelledState
from prefect.states import Cancelling, Paused, Running, State, Suspended

import nodesweep.flows.stages.cancellable
import nodesweep.flows.stages.sweep
import nodesweep.tasks.cancelling
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import JobRefused
from nodesweep.flows.collect import collect_sweep
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.reaper import reaper
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stages.cancellable import cancellable, named
from nodesweep.flows.stages.signals import EndSignals, interrupts_deferred
from nodesweep.flows.stop import stop_sweep
from nodesweep.polling import STOP, Cancelled, Clock
from nodesweep.tasks.cancelling import is_cancel
from tests.flows.simulated_sweep import nodesweep_run

Configs = Callable[..., BenchmarkConfig]


@pytest.fixture
def says_cancelling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any, str], None]]:
    """Return says_cancelling(module, name), which sets when the server reports a cancellation.

    The server reports it from the first call of that function on.
    """
    called: list[str] = []
    monkeypatch.setattr(nodesweep.tasks.cancelling, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(
        nodesweep.tasks.cancelling, "_read_state", lambda run: Cancelling() if called else Running()
    )

    def install(module: Any, name: str) -> None:
        real = getattr(module, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            called.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, noted)

    yield install


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle signals as a command does, within the context."""
    signals = EndSignals(lambda at_once: None)
    before = {n: signal.signal(n, signals) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_run(name_part: str) -> Any:
    with get_client(sync_client=True) as client:
        runs = [run for run in client.read_flow_runs(limit=200) if name_part in run.name]
    return max(runs, key=lambda run: run.created)


def jobs(served: SimpleNamespace, benchmark: str) -> list[str]:
    listed = served.sagemaker.list_training_jobs(NameContains=f"{benchmark}-")
    return [job["TrainingJobStatus"] for job in listed["TrainingJobSummaries"]]


@pytest.mark.usefixtures("prefect", "quiet")
@pytest.mark.drawn
def test_command_says_that_its_run_was_cancelled(
    pipeline_config: Configs,
    served: SimpleNamespace,
    says_cancelling: Callable[[Any, str], None],
    tmp_path: Path,
) -> None:
    says_cancelling(nodesweep.flows.stages.sweep, "watch_training_jobs")
    config = pipeline_config("endless", name="from-afar", sweep={"max_parallel_jobs": 3})
    done = nodesweep_run(config, tmp_path)
    assert done.exit_code == 1
    assert "cancelled" in done.output
    assert set(jobs(served, "from-afar")) <= {"Stopped", "Stopping"} and jobs(served, "from-afar")
    assert last_run("from-afar").state.is_cancelled()


def test_what_ends_a_run_while_it_is_being_cancelled_is_no_failure() -> None:
    """Jobs that could not be stopped are named in the log and in the message of the state."""

    def stopping() -> None:
        STOP.cancelled = True
        raise JobRefused("these jobs could not be stopped: a")

    state: Any = cancellable(stopping)()
    assert state.is_cancelled() and str(state.message).endswith(": a")


def test_wait_that_the_workers_signal_ends_is_the_end_that_prefect_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal's exception was lost, and the next wait has ended the run. What Prefect takes
    for a cancel is a TerminationSignal."""
    for module in (nodesweep.tasks.cancelling, nodesweep.flows.stages.cancellable):
        monkeypatch.setattr(module, "has_deployment", lambda: True)
    monkeypatch.setattr(nodesweep.tasks.cancelling, "_run_id", lambda: None)
    states = iter([Cancelling(), Running()])
    monkeypatch.setattr(nodesweep.tasks.cancelling, "_read_state", lambda run: next(states))

    def ended() -> None:
        monkeypatch.setattr(nodesweep.tasks.cancelling, "_run_id", lambda: "0" * 32)
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise Cancelled from None

    with pytest.raises(TerminationSignal):
        cancellable(ended)()
    monkeypatch.setattr(nodesweep.tasks.cancelling, "_run_id", lambda: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(Cancelled):  # a rollout of the worker: no cancel
        cancellable(ended)()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("error", [Cancelled(), JobRefused("these jobs could not be stopped: a")])
def test_signal_to_a_command_is_a_cancel_whatever_leaves_the_flow_for_it(
    number: signal.Signals, error: BaseException
) -> None:
    """The command reports which signal it was."""

    def ended() -> None:
        try:
            signal.raise_signal(number)
        finally:
            raise error

    with interruptible():
        state: Any = cancellable(ended)()
    assert state.is_cancelled()
    assert STOP.cause is error


def test_ctrl_c_while_prefect_begins_or_ends_a_run_is_raised_in_the_flow_or_after_it() -> None:
    """In Prefect's own code, the exception would make the run Crashed."""
    happened: list[str] = []

    def pressed(*when: str) -> None:
        with interrupts_deferred():
            if "before" in when:
                signal.raise_signal(signal.SIGINT)
                happened.append("begun")
            state: Any = cancellable(lambda: happened.append("in the flow"))()
            happened.append("Cancelled" if state is not None else "Completed")
            if "after" in when:
                signal.raise_signal(signal.SIGINT)
                happened.append("ended")

    for when in ("before", "after"):
        with interruptible(), pytest.raises(KeyboardInterrupt):
            pressed(when)
    assert happened == ["begun", "Cancelled", "in the flow", "Completed", "ended"]


def test_suspended_run_ends_as_suspended_and_one_that_pauses_in_its_place_as_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would resume a paused run in its place, and its slot in the deployment's limit is
    gone."""
    monkeypatch.setattr(nodesweep.tasks.cancelling, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(nodesweep.tasks.cancelling, "_run_id", lambda: "0" * 32)
    announced: list[bool] = []
    module = nodesweep.flows.stages.cancellable
    monkeypatch.setattr(module, "has_deployment", lambda: True)
    monkeypatch.setattr(module, "announce_suspension", lambda: announced.append(True))
    said = [Suspended(), Paused()]
    monkeypatch.setattr(nodesweep.tasks.cancelling, "_read_state", lambda run: said[0])

    def waits() -> None:
        with pytest.raises(Cancelled) as ended:
            Clock().sleep(60)
        assert is_cancel(ended.value), "its jobs are ended as sweep.on_cancel says"
        raise ended.value

    with pytest.raises(Pause) as paused:
        cancellable(waits)()
    assert paused.value.state is said.pop(0)
    state: Any = cancellable(waits)()
    assert state.is_cancelled()
    assert announced == [True], "an automation would take it for crashed after a late heartbeat"


def test_task_of_a_suspended_run_that_prefect_ends_is_a_cancel_too() -> None:
    state = Suspended()

    def begins_a_task() -> None:
        error = Pause(state=state)
        assert is_cancel(error)
        raise error

    with pytest.raises(Pause) as paused:
        cancellable(begins_a_task)()
    assert paused.value.state is state


def test_run_that_prefect_ends_for_a_lost_lease_goes_on_with_what_it_has_begun(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    def sweep(points: int) -> int:
        calls.append(points)
        if len(calls) == 1:
            STOP.set()  # as what ran beside it was told
            raise CancelledError  # of prefect's cancel scope
        Clock().sleep(0)
        return points

    assert cancellable(sweep)(3) == 3
    assert calls == [3, 3]
    assert "another run" in caplog.text
    STOP.clear()


def test_lost_lease_of_a_run_that_is_being_cancelled_does_not_begin_it_anew() -> None:
    def sweep() -> None:
        assert not STOP.cancelled, "called once more"
        STOP.cancelled = True
        raise CancelledError

    state: Any = cancellable(sweep)()
    assert state.is_cancelled()


@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize("state", [Cancelling(), CancelledState()])
def test_run_that_was_cancelled_before_it_began_ends_there(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect refuses to set it Running, and would leave it Cancelling; or it would begin again."""
    told: list[str] = []

    def stop_jobs(flow: Any, flow_run: Any, state: State) -> None:
        told.append(str(flow_run.id))

    @prefect_flow(name="begins", flow_run_name=named("of-{a}"), on_cancellation=[stop_jobs])
    @cancellable
    def begins(a: int = 1) -> None:
        pytest.fail("it was cancelled")

    with get_client(sync_client=True) as client:
        of_flow = client.create_flow(begins)
        deployment = client.create_deployment(of_flow, name="its-deployment")
        run = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(run.id, state, force=True)
        with pytest.raises(Abort):
            run_flow(begins, flow_run=client.read_flow_run(run.id), parameters={"a": 2})
        assert client.read_flow_run(run.id).state.is_cancelled()
    assert told == [str(run.id)]


@pytest.mark.usefixtures("prefect")
def test_run_is_named_after_its_parameters() -> None:
    @prefect_flow(name="named", flow_run_name=named("of-{a}-{b}"))
    def begins(a: int, b: str) -> str:
        return str(flow_run.name)

    assert begins(1, "x") == "of-1-x"


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
    assert flow.flow_run_name.__code__ is named("").__code__
