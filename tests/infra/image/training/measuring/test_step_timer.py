"""Steps by marks of a clock that the test moves, and a stopwatch by the real clock."""

from __future__ import annotations

import time

import pytest
from training.measuring.step_timer import StepTimer, Stopwatch


class HandMoved:
    """A clock whose marks are times set by the test, each a separate object, like a GPU's
    events."""

    def __init__(self) -> None:
        self.now = 100.0

    def mark(self) -> list[float]:
        return [self.now]

    def seconds_between(self, start: list[float], stop: list[float]) -> float:
        assert stop[0] - start[0] < 10.0, "a long interval, which a GPU tells coarsely"
        return stop[0] - start[0]


def test_marks_count_from_the_common_start_and_a_pause_lies_between_two_steps() -> None:
    clock = HandMoved()
    timer = StepTimer(clock)
    timer.begin()
    clock.now = 101.0
    timer.data_requested()
    for clock.now, waited in ((104.0, 0.5), (106.0, 0.75)):
        timer.step_ended(waited)
    timer.paused()
    clock.now = 114.0
    timer.data_requested()
    clock.now = 117.0
    timer.step_ended(1.0)
    steps = timer.read()
    assert steps.start_seconds == [1.0, 4.0, 14.0]
    assert steps.stop_seconds == [4.0, 6.0, 17.0]
    assert steps.step_seconds == [3.0, 2.0, 3.0]
    assert steps.data_wait_seconds == [0.5, 0.25, 0.25]


def test_a_stopwatch_adds_up_what_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = Stopwatch()
    watch.stop()  # as where a run ends that never asked for data
    for began, ended in ((5.0, 7.0), (20.0, 21.0)):
        now[0] = began
        watch.start()
        watch.start()
        now[0] = ended
        assert watch.seconds > 0
        watch.stop()
        now[0] += 3.0
    assert watch.seconds == 3.0
