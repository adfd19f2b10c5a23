from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

import pytest
from training.measuring.metrics import (
    RankSteps,
    data_wait_share,
    key_value_line,
    rank_step_spread,
    slowest_rank,
    steady_window,
)


def steps_of(
    step_seconds: Sequence[float], waited: Sequence[float] = (), begun: float = 0.0
) -> RankSteps:
    """Return consecutive steps of that length."""
    marks = [begun, *(begun + total for total in accumulate(step_seconds))]
    return RankSteps(marks[:-1], marks[1:], waited)


def test_a_step_lasts_until_the_last_rank_has_ended_it() -> None:
    late_first, late_then = steps_of([2.0, 4.0]), steps_of([1.0, 5.0])
    assert slowest_rank([late_first, late_then]) == [2.0, 4.0]  # not 2 and 5: 6 s have passed


def test_a_step_after_a_pause_starts_once_the_last_rank_is_back() -> None:
    keeps_a_checkpoint = RankSteps([0.0, 8.0], [1.0, 10.0], ())
    waits_for_it = RankSteps([0.0, 3.0], [2.0, 10.0], ())
    assert slowest_rank([keeps_a_checkpoint, waits_for_it]) == [2.0, 2.0]


def test_spread_is_the_median_over_steps() -> None:
    ranks = [steps_of([1.0, 1.0, 1.0]), steps_of([1.5, 1.1, 1.3], begun=7.0)]
    assert rank_step_spread(ranks) == pytest.approx(0.3)
    assert rank_step_spread([steps_of([1.0, 2.0])]) is None  # one rank has no spread
    assert rank_step_spread([steps_of([]), steps_of([])]) is None


def test_window_starts_where_both_limits_are_reached() -> None:
    steps = [2.0, 2.0, 2.0, 1.0, 1.0, 3.0]
    by_steps = steady_window(steps, exclude_steps=4, exclude_seconds=3.0)
    assert (by_steps.first_step, by_steps.steps, by_steps.seconds, by_steps.step_seconds) == (
        4,
        2,
        4.0,
        2.0,
    )
    assert steady_window(steps, exclude_steps=1, exclude_seconds=5.0).first_step == 3
    assert steady_window(steps, exclude_steps=2, exclude_seconds=0.0).first_step == 2


def test_an_empty_window_has_no_median() -> None:
    window = steady_window([1.0, 1.0], exclude_steps=10, exclude_seconds=30.0)
    assert (window.step_seconds, window.steps, window.short_window) == (None, 0, True)


def test_a_window_is_long_enough_by_steps_or_by_seconds() -> None:
    assert not steady_window([0.1] * 100, 0, 0.0).short_window
    assert not steady_window([30.0, 30.0], 0, 0.0).short_window
    assert steady_window([0.1] * 99, 0, 0.0).short_window


def test_data_wait_is_the_share_of_the_worst_rank_in_the_window() -> None:
    ranks = [
        steps_of([9.0, 1.0, 1.0], [9.0, 0.1, 0.1]),
        steps_of([9.0, 1.0, 1.0], [9.0, 0.5, 0.5]),
    ]
    assert data_wait_share(ranks, first_step=1) == pytest.approx(0.5)
    assert data_wait_share(ranks, first_step=3) is None


def test_lines_can_be_matched_by_metric_definitions() -> None:
    line = key_value_line(
        {"train_seconds": 12.25, "steps": 100, "spread": None, "final_metric": 1e-07}
    )
    assert line == "train_seconds=12.25; steps=100; final_metric=1e-07;"
    assert re.findall(r"(?:^|\s)final_metric=([0-9.eE+-]+);", line) == ["1e-07"]
