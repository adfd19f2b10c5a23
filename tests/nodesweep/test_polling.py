from __future__ import annotations

import itertools
import logging
import time
from datetime import timedelta

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.polling import CallBudget, Cancelled, Clock, Progress, intervals, utc_now


def test_intervals_grow_to_their_limit_with_jitter() -> None:
    pauses = list(itertools.islice(intervals(1.0, 4.0), 50))
    assert 0.8 <= pauses[0] <= 1.2
    assert all(3.2 <= pause <= 4.8 for pause in pauses[10:])
    assert len(set(pauses[10:])) > 1


def test_sleep_ends_at_once_when_the_run_is_cancelled() -> None:
    with pytest.raises(Cancelled):
        Clock(wait=lambda seconds: True).sleep(3600)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the clock is Linux's")
def test_time_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    read, before = time.clock_gettime, utc_now()
    suspended = {time.CLOCK_BOOTTIME: 8 * 3600.0}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + suspended.get(clock, 0))
    assert timedelta(hours=8) <= utc_now() - before < timedelta(hours=8, minutes=10)


def test_progress_says_changes_and_long_waits(
    caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    caplog.set_level(logging.INFO, "nodesweep.test")
    now = iter([0.0, 0.0, 5.0, 16.0, 17.0, 20.0])
    progress = Progress(
        "job", logging.getLogger("nodesweep.test"), Clock(monotonic=lambda: next(now))
    )
    changed = [
        progress.note(state)
        for state in ("Starting", "Starting", "Starting", "Training", "Training")
    ]
    assert changed == [True, False, False, True, False]
    assert [record.getMessage() for record in caplog.records] == snapshot


class Time:
    """A clock that only sleeps advance."""

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
