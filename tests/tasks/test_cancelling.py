"""A cancellation as Prefect's server reports it, and the end of a task that notices it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from prefect import flow
from prefect.exceptions import CancelledRun, TerminationSignal
from prefect.states import Cancelling, Running

import nodesweep.tasks.cancelling
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from nodesweep.polling import STOP, Cancelled, Clock
from nodesweep.tasks.cancelling import (
    polling_for_cancel,
    reraising_cancel,
    returning_cancelled_state,
    wait_for_server,
)
from nodesweep.tasks.task import as_task


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Set the server's responses to queries of the run's state: states or exceptions, the last of
    which repeats."""
    answers: list[Any] = [Running()]

    def read(run: object) -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(nodesweep.tasks.cancelling, "_read_state", read)
    monkeypatch.setattr(
        nodesweep.tasks.cancelling, "_run_id", lambda: "00000000-0000-0000-0000-000000000001"
    )
    monkeypatch.setattr(nodesweep.tasks.cancelling, "POLL_SECONDS", 0.01)
    return answers


def test_cancel_ends_a_wait_once_the_server_is_back(server: list[Any]) -> None:
    server[:] = [Running(), ConnectionError("refused"), TimeoutError(), Running(), Cancelling()]
    interrupted = threading.Event()
    with polling_for_cancel(interrupted.set):
        with pytest.raises(Cancelled):
            Clock().sleep(60)
        assert interrupted.wait(HANG_SECONDS)
    assert STOP.cancelled and len(server) == 1


def test_cancel_that_a_signal_told_first_is_logged_and_interrupts_nothing(
    server: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that hangs may keep the run from ending for a while."""
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    server[:] = [Cancelling()]
    STOP.interrupted = True
    interrupted = threading.Event()
    with polling_for_cancel(interrupted.set):
        wait_until(lambda: "the run is being cancelled" in caplog.text)
    assert not interrupted.is_set() and not STOP.cancelled


def test_server_that_hangs_delays_no_wait(
    server: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def hang(run: object) -> Any:
        asked.set()
        answered.wait(HANG_SECONDS)
        return Cancelling()

    monkeypatch.setattr(nodesweep.tasks.cancelling, "_read_state", hang)
    interrupted = threading.Event()
    with polling_for_cancel(interrupted.set):
        assert asked.wait(HANG_SECONDS)
        Clock().sleep(0.01)
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "cancel-heard":
            thread.join(HANG_SECONDS)
    assert not interrupted.is_set() and not STOP.cancelled, "the code inside had ended"


def test_server_that_is_away_is_waited_for_as_long_as_it_is_given(server: list[Any]) -> None:
    passed: list[float] = []

    def wait(seconds: float) -> bool:
        passed.append(seconds)
        return False

    clock = Clock(monotonic=lambda: sum(passed), wait=wait)
    server[:] = [ConnectionError("refused"), ConnectionError("refused"), Running()]
    assert wait_for_server(clock, 900) and len(passed) == 2
    server[:] = [ConnectionError("refused")]
    passed.clear()
    assert not wait_for_server(clock, 900)
    assert 900 <= sum(passed) < 920


def test_nothing_asks_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodesweep.tasks.cancelling, "_run_id", lambda: None)
    with polling_for_cancel(lambda: None):
        assert "cancel-heard" not in [each.name for each in threading.enumerate()]


@pytest.mark.parametrize("error", [Cancelled(), KeyboardInterrupt(), TerminationSignal(15)])
@pytest.mark.usefixtures("prefect")
def test_cancelled_task_is_cancelled_and_what_ended_it_is_raised(error: BaseException) -> None:
    def wait() -> None:
        raise error

    waits = as_task("waits", wait, retries=3)

    @flow
    def run() -> str:
        with pytest.raises(type(error)):
            waits()
        future = waits.submit()
        with pytest.raises(CancelledRun):
            future.result()
        return str(future.state.type.value)

    assert run() == "CANCELLED"


def test_sigterm_that_is_no_cancel_stays_a_crash(
    server: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodesweep.tasks.cancelling, "has_deployment", lambda: True)

    def ended() -> None:
        raise TerminationSignal(15)

    with pytest.raises(TerminationSignal):
        reraising_cancel(returning_cancelled_state(ended))
    server[:] = [TimeoutError(), Cancelling()]  # the second answer counts
    assert returning_cancelled_state(ended)().is_cancelled()
    assert isinstance(STOP.cause, TerminationSignal)


def test_part_of_a_run_that_ends_for_another_ones_failure_is_cancelled(server: list[Any]) -> None:
    def waits() -> None:
        Clock().sleep(60)

    STOP.set()
    assert returning_cancelled_state(waits)().is_cancelled()
    assert not STOP.cancelled, "nobody has cancelled the run"
    with pytest.raises(ValueError, match="of its own"):
        returning_cancelled_state(int)("of its own")
