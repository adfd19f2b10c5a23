from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

import tasks.platform
from tasks.errors import PreflightRefused, is_transient, retry_transient
from tasks.platform import OUTAGE_JITTER, OUTAGE_PAUSES_SECONDS, patient
from tasks.polling import CallBudget, Cancelled, Clock, Progress, intervals


def client_error(code: str, status: int = 400) -> ClientError:
    answer = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Operation")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (client_error("ThrottlingException"), True),
        (client_error("Whatever", 503), True),
        (EndpointConnectionError(endpoint_url="http://x"), True),
        (client_error("ValidationException"), False),
        (client_error("InternalError", 507), False),
        (client_error("AccessDeniedException", 403), False),
        (client_error("ResourceLimitExceeded"), False),
        (PreflightRefused("no"), False),
    ],
)
def test_only_what_may_pass_is_retried(error: Exception, passing: bool) -> None:
    class State:
        def result(self) -> None:
            raise error

    assert is_transient(error) is passing
    assert retry_transient(SimpleNamespace(name="task"), None, State()) is passing


def test_preflight_lists_every_problem() -> None:
    assert str(PreflightRefused("one", "two")).endswith("  - one\n  - two")


def test_intervals_grow_to_their_limit_with_jitter() -> None:
    pauses = list(itertools.islice(intervals(1.0, 4.0), 50))
    assert 0.8 <= pauses[0] <= 1.2
    assert all(3.2 <= pause <= 4.8 for pause in pauses[10:])
    assert len(set(pauses[10:])) > 1


def test_sleep_ends_at_once_when_the_run_is_cancelled() -> None:
    with pytest.raises(Cancelled):
        Clock(wait=lambda seconds: True).sleep(3600)


def test_progress_says_changes_and_long_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nodesweep.test")
    now = iter([0.0, 0.0, 5.0, 16.0, 17.0, 20.0])
    progress = Progress("job", logging.getLogger("nodesweep.test"), Clock(monotonic=lambda: next(now)))
    changed = [progress.note(state) for state in ("Starting", "Starting", "Starting", "Training", "Training")]
    assert changed == [True, False, False, True, False]
    assert [record.getMessage() for record in caplog.records] == [
        "job: Starting", "job: still Starting (16 s)", "job: Training",
    ]  # fmt: skip


class Time:
    """A clock that only sleeps move."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.clock = Clock(monotonic=lambda: self.seconds, wait=self.wait)

    def wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return False


def test_calls_beyond_the_burst_wait_for_their_turn() -> None:
    time = Time()
    budget = CallBudget(2.0, 3, time.clock)
    taken_at = []
    for _ in range(6):
        budget.take()
        taken_at.append(time.seconds)
    assert taken_at == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5]


def test_unused_calls_are_kept_up_to_the_burst() -> None:
    time = Time()
    budget = CallBudget(1.0, 3, time.clock)
    time.wait(3600.0)
    assert [budget.try_take() for _ in range(4)] == [True, True, True, False]


def test_call_that_can_wait_leaves_the_spare_ones() -> None:
    time = Time()
    budget = CallBudget(1.0, 3, time.clock)
    assert [budget.try_take(spare=2) for _ in range(2)] == [True, False]
    time.wait(1.0)
    assert budget.try_take(spare=2)
    assert time.seconds == 1.0, "it never waits"


def test_call_that_waits_ends_when_the_run_is_cancelled() -> None:
    budget = CallBudget(1.0, 1, Clock(monotonic=lambda: 0.0, wait=lambda seconds: True))
    budget.take()
    with pytest.raises(Cancelled):
        budget.take()


def test_without_a_limit_any_number_of_calls_is_made_at_once() -> None:
    budget = CallBudget(None, 20, Clock(wait=lambda seconds: True))
    for _ in range(1000):
        budget.take()
    assert budget.try_take(spare=10)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a patient call makes, none of which takes any time."""
    made: list[float] = []
    clock = Clock(wait=lambda seconds: bool(made.append(seconds)))
    monkeypatch.setattr(tasks.platform, "Clock", lambda: clock)
    return made


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    @patient
    def look_at_it() -> str:
        if left:
            raise left.pop(0)
        return "seen"

    return look_at_it


def test_patient_call_waits_an_outage_out(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "nodesweep.platform")
    outage = [client_error("InternalError", 500)] * len(OUTAGE_PAUSES_SECONDS)
    assert failing(*outage)() == "seen"
    least, most = OUTAGE_JITTER
    within = (least * pause <= made <= most * pause for made, pause in zip(pauses, OUTAGE_PAUSES_SECONDS, strict=True))
    assert all(within) and 300 < sum(pauses) < 900
    assert "look at it: An error occurred (InternalError)" in caplog.messages[0]


def test_patient_call_gives_up_with_the_last_error(pauses: list[float]) -> None:
    outage = [client_error("InternalError", 500)] * (1 + len(OUTAGE_PAUSES_SECONDS))
    with pytest.raises(ClientError, match="InternalError"):
        failing(*outage)()
    assert len(pauses) == len(OUTAGE_PAUSES_SECONDS)


def test_patient_call_does_not_repeat_what_no_repetition_helps(pauses: list[float]) -> None:
    with pytest.raises(ClientError, match="AccessDenied"):
        failing(client_error("AccessDenied", 403))()
    assert pauses == []


def test_patient_call_ends_at_once_when_the_run_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.platform, "Clock", lambda: Clock(wait=lambda seconds: True))
    with pytest.raises(Cancelled):
        failing(client_error("InternalError", 500))()
