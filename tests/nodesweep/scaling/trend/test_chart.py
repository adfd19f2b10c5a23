"""The control chart of a trend and its verdict."""

from __future__ import annotations

import math
import statistics
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pandas import DataFrame
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.report.model import PlatformFacts
from nodesweep.scaling.trend.chart import (
    LEARNING_SWEEPS,
    SweepLevel,
    chart_sweeps,
    design,
    sweep_level,
)
from nodesweep.scaling.trend.history import HistoryError, Trend
from nodesweep.scaling.trend.trend_verdict import TrendVerdict, judge_trend, render_verdict_markdown

STEADY = (99.0, 101.0, 100.0, 99.5, 100.5)
"""Medians of the sweeps that are learnt from: they vary by about 1 %."""


def levels(*medians: float, error_variance: float = 0.0) -> list[SweepLevel]:
    return [
        SweepLevel(f"sweep-{day}", math.log(seconds), error_variance)
        for day, seconds in enumerate(medians, start=1)
    ]


def point(day: int, seconds: float, nodes: int = 1, runs: int = 3) -> dict[str, Any]:
    return {
        "sweep_id": f"sweep-{day:02}",
        "nodes": nodes,
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day),
        "n": runs,
        "train_seconds_of_runs": [seconds] * runs,
    }


def trend(*points: dict[str, Any]) -> Trend:
    facts = PlatformFacts(kind="aws", isolation=None, instance_type="ml.m5.xlarge")
    return Trend(facts, {}, "d" * 64, 1, DataFrame(points))


def nights(*medians: float, nodes: int = 1, runs: int = 3) -> list[dict[str, Any]]:
    return [point(day, seconds, nodes, runs) for day, seconds in enumerate(medians, start=1)]


def verdict(*medians: float, tolerance: float = 0.05) -> TrendVerdict:
    return judge_trend(trend(*nights(*medians)), tolerance)


def shown(made: TrendVerdict) -> list[str]:
    return [made.headline, *made.lines]


def test_level_of_a_sweep_is_the_median_and_what_its_own_runs_scatter() -> None:
    level = sweep_level("a", [100.0, 110.0, 121.0])
    assert level is not None and level.log_seconds == pytest.approx(math.log(110))
    # three logarithms 0.0953 apart: s = 0.0953, and the median's variance is pi/2 times s²/n
    assert level.error_variance == pytest.approx(math.pi / 2 * math.log(1.1) ** 2 / 3)
    assert sweep_level("a", [100.0, 110.0]) is None


def test_sweeps_that_are_learnt_from_are_not_judged() -> None:
    assert chart_sweeps(levels(*STEADY), 0.05, 1) == ()
    assert chart_sweeps(levels(*STEADY[:-1]), 0.05, 1) == ()
    [judged] = chart_sweeps(levels(*STEADY, 100.0), 0.05, 1)
    assert not judged.alarms and judged.since is None
    assert judged.reference == pytest.approx(statistics.fmean(map(math.log, STEADY)))


def test_allowance_and_limit_are_the_tolerance_where_noise_is_small() -> None:
    assert design(0.0, 0.05, 4) == pytest.approx((math.log(1.05),) * 2)
    assert design(0.005, 0.05, 4) == pytest.approx((math.log(1.05),) * 2)


def test_limit_keeps_siegmunds_run_length() -> None:
    """The average run length that the limit was made for, out of the approximation itself."""
    allowance, limit = design(0.05, 0.0, 4)
    k = allowance / 0.05 - 1.645 / math.sqrt(LEARNING_SWEEPS)
    b = limit / 0.05 + 1.166
    assert k == pytest.approx(0.5)
    length = (math.exp(2 * k * b) - 2 * k * b - 1) / (2 * k * k)
    assert length == pytest.approx(30 * 4 / 0.01, rel=0.001)


def test_noise_and_more_node_counts_widen_the_limit() -> None:
    assert design(0.05, 0.05, 4)[1] > design(0.03, 0.05, 4)[1] > design(0.03, 0.05, 1)[1]


def test_step_alarms_at_once_where_it_is_large_and_adds_up_where_it_is_not() -> None:
    large = chart_sweeps(levels(*STEADY, 120.0), 0.05, 1)
    assert [judged.alarms for judged in large] == [True]
    steps = chart_sweeps(levels(*STEADY, 108.0, 108.0, 108.0), 0.05, 1)
    assert [judged.alarms for judged in steps] == [False, True, True]
    assert {judged.since for judged in steps} == {"sweep-6"}


def test_one_good_sweep_after_a_long_alarm_ends_it() -> None:
    judged = chart_sweeps(levels(*STEADY, *[130.0] * 10, 100.0), 0.05, 1)
    assert [each.alarms for each in judged] == [True] * 10 + [False]


def test_creep_alarms_though_no_sweep_is_far_from_the_one_before() -> None:
    creeping = [100 * 1.01**night for night in range(30)]
    judged = chart_sweeps(levels(*creeping), 0.05, 4)
    assert LEARNING_SWEEPS + [each.alarms for each in judged].index(True) < 12


def test_sweeps_out_of_control_are_not_learnt_from() -> None:
    before, *_, after = chart_sweeps(levels(*STEADY, 100.0, 120.0, 120.0, 100.0, 100.0), 0.05, 1)
    assert after.sigma <= before.sigma


def test_scatter_of_the_runs_is_the_least_that_sweeps_are_said_to_vary() -> None:
    [judged] = chart_sweeps(levels(*[100.0] * 6, error_variance=0.0016), 0.05, 1)
    assert judged.sigma == pytest.approx(0.04)


def test_verdict_says_what_is_learnt_from_before_it_can_alarm(snapshot: SnapshotAssertion) -> None:
    early = verdict(*STEADY[:3])
    assert early.alarms == ()
    assert shown(early) == snapshot
    [count] = early.counts
    assert (count.learnt, count.ratio, count.sigma) == (3, None, None)


def test_verdict_of_a_slow_sweep_names_the_counts_since_when_and_by_how_much(
    snapshot: SnapshotAssertion,
) -> None:
    fast, slow = nights(*STEADY, 100.0, 100.0), nights(*STEADY, 108.0, 115.0, nodes=8)
    made = judge_trend(trend(*fast, *slow), 0.05)
    assert made.alarms == (8,)
    assert made.counts[1].ratio == pytest.approx(1.15, abs=0.001)
    assert made.counts[1].since == "sweep-06" and "sweep-06" in made.lines[2]
    assert shown(made) == snapshot(name="terminal")
    assert render_verdict_markdown(made) == snapshot(name="markdown")
    assert TrendVerdict.model_validate_json(made.model_dump_json()) == made


def test_within_the_tolerance_is_no_alarm(snapshot: SnapshotAssertion) -> None:
    made = verdict(*STEADY, 115.0, tolerance=0.2)
    assert made.alarms == ()
    assert made.headline == snapshot


@pytest.mark.parametrize("runs", [1, 2])
def test_fewer_than_three_runs_cannot_alarm(runs: int, snapshot: SnapshotAssertion) -> None:
    made = judge_trend(trend(*nights(*[100.0] * 9, runs=runs)), 0.05)
    assert [each.verdict for each in made.counts] == ["cannot alarm"]
    assert shown(made) == snapshot


def test_count_that_the_latest_sweep_lacks_is_lost_and_one_of_neither_end_is_not_asked(
    snapshot: SnapshotAssertion,
) -> None:
    points = [*nights(*STEADY, 100.0), point(1, 50.0, 2), point(3, 25.0, 4)]
    made = judge_trend(trend(*points), 0.05)
    assert [(each.nodes, each.verdict) for each in made.counts] == [(1, "no alarm"), (2, "lost")]
    assert made.alarms == (2,)
    assert shown(made) == snapshot


def test_a_count_that_cannot_alarm_is_said_beside_those_that_can(
    snapshot: SnapshotAssertion,
) -> None:
    made = judge_trend(trend(*nights(*STEADY, 100.0), point(6, 50.0, 2)), 0.05)
    assert shown(made) == snapshot


def test_pinned_reference_and_an_earlier_sweep_can_be_asked_for(
    snapshot: SnapshotAssertion,
) -> None:
    made = trend(*nights(*STEADY, 120.0, *[120.0] * 5))
    assert judge_trend(made, 0.05).alarms == (1,)
    pinned = judge_trend(made, 0.05, "sweep-06")
    assert (pinned.reference, pinned.pinned, pinned.alarms) == ("sweep-06", True, ())
    assert pinned.lines[0] == snapshot(name="pinned")
    earlier = judge_trend(made, 0.05, sweep="sweep-05")
    assert [each.verdict for each in earlier.counts] == ["cannot alarm"]
    with pytest.raises(HistoryError) as refused:
        judge_trend(made, 0.05, "sweep-06", "sweep-05")
    assert str(refused.value) == snapshot(name="refused")


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf])
def test_tolerance_is_a_share(tolerance: float, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(HistoryError) as refused:
        verdict(*STEADY, tolerance=tolerance)
    assert str(refused.value) == snapshot
