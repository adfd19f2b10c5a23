"""The control chart of a trend and its verdict."""

from __future__ import annotations

import math
import random
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
    scatter,
    sweep_level,
)
from nodesweep.scaling.trend.history import HistoryError, Trend
from nodesweep.scaling.trend.trend_verdict import TrendVerdict, judge_trend, render_verdict_markdown

STEADY = (99.0, 101.0, 100.0, 99.5, 100.5)
"""Medians of the sweeps that are learnt from: they vary by about 1%."""


def levels(*medians: float, error_variance: float = 0.0, runs: int = 3) -> list[SweepLevel]:
    return [
        SweepLevel(f"sweep-{day}", math.log(seconds), math.log(seconds), runs, error_variance)
        for day, seconds in enumerate(medians, start=1)
    ]


def noisy(*medians: float, seed: int = 1, share: float = 0.02) -> list[float]:
    """Return medians that scatter by a share, the same on every call."""
    generator = random.Random(seed)
    return [median * math.exp(generator.gauss(0, share)) for median in medians]


def alarms(*medians: float, runs: int = 3, tolerance: float = 0.05) -> list[int]:
    """Return the numbers of the sweeps that alarm."""
    judged = chart_sweeps(levels(*medians, runs=runs), tolerance, 4)
    return [int(each.sweep_id.rpartition("-")[2]) for each in judged if each.alarms]


def point(
    day: int, seconds: float, nodes: int = 1, runs: int = 3, contended: bool = False
) -> dict[str, Any]:
    return {
        "contended": contended,
        "sweep_id": f"sweep-{day:02}",
        "nodes": nodes,
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day),
        "n": runs,
        "train_seconds_of_runs": [seconds] * runs,
    }


def trend(*points: dict[str, Any]) -> Trend:
    facts = PlatformFacts(kind="emulated", isolation=None, instance_type="ml.local.small")
    return Trend(facts, {}, "d" * 64, 1, DataFrame(points))


def nights(*medians: float, nodes: int = 1, runs: int = 3) -> list[dict[str, Any]]:
    return [point(day, seconds, nodes, runs) for day, seconds in enumerate(medians, start=1)]


def verdict(*medians: float, tolerance: float = 0.05) -> TrendVerdict:
    return judge_trend(trend(*nights(*medians)), tolerance)


def shown(made: TrendVerdict) -> list[str]:
    return [made.headline, *made.lines]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("runs", [1, 3])
def test_slowdown_after_an_improvement_alarms(seed: int, runs: int) -> None:
    """Eight sweeps, ten that are 30% faster, then twelve that are 50% slower than those."""
    times = [100.0] * 8 + [70.0] * 10 + [105.0] * 12
    found = alarms(*noisy(*times, seed=seed), runs=runs)
    assert found == list(range(found[0], 31)) and 19 <= found[0] <= 22


@pytest.mark.parametrize("seed", range(5))
def test_improvement_of_10_percent_that_is_lost_again_alarms(seed: int) -> None:
    times = [100.0] * 10 + [90.0] * 10 + [99.0] * 10
    found = alarms(*noisy(*times, seed=seed, share=0.01))
    assert 21 <= found[0] <= 23


@pytest.mark.parametrize("bad", range(1, LEARNING_SWEEPS + 1))
@pytest.mark.parametrize("runs", [1, 3])
def test_one_bad_sweep_among_the_first_hides_no_later_step(bad: int, runs: int) -> None:
    times = [100.0] * 15 + [110.0] * 10
    times[bad - 1] *= 1.25
    found = alarms(*noisy(*times, share=0.01), runs=runs)
    assert 16 <= found[0] <= 19


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("slow", [5, 6, 7])
def test_a_slow_first_week_does_not_stay_the_level(slow: int, runs: int, seed: int) -> None:
    """The week is slower by less than the tolerance, so that no shift down is confirmed after
    it."""
    times = [104.0] * slow + [100.0] * (25 - slow) + [108.0] * 5
    history = levels(*noisy(*times, seed=seed, share=0.005), runs=runs)
    judged = {each.sweep_id: each for each in chart_sweeps(history, 0.05, 4)}
    assert judged["sweep-25"].reference == pytest.approx(math.log(100), abs=0.005)
    assert 26 < min(int(name[6:]) for name, each in judged.items() if each.alarms) <= 30


def test_while_a_slow_first_week_is_the_level_the_step_that_is_noticed_is_larger() -> None:
    times = [104.0] * 7 + [100.0] * 6
    before, *_, after = chart_sweeps(levels(*times), 0.05, 1)
    assert after.reference == pytest.approx(math.log(104)) == before.reference
    assert after.recent == pytest.approx(math.log(100), abs=0.021)
    hidden = math.log(104) - after.recent
    rest = after.allowance + after.limit / 4 + 1.2816 * after.sigma / 2
    assert after.noticeable == pytest.approx(rest + hidden) and hidden > 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.005, 0.02, 0.05])
def test_a_steady_level_is_not_questioned(share: float, seed: int) -> None:
    judged = chart_sweeps(levels(*noisy(*[100.0] * 60, seed=seed, share=share)), 0.05, 4)
    assert {each.reference_since for each in judged} == {"sweep-1"}


@pytest.mark.parametrize(("slow", "since"), [(100.9, "sweep-1"), (101.1, "sweep-6")])
def test_a_first_week_slower_by_less_than_a_fifth_of_the_tolerance_stays(
    slow: float, since: str
) -> None:
    *_, last = chart_sweeps(levels(*[slow] * 6, *[100.0] * 20), 0.05, 4)
    assert last.reference_since == since


def test_one_run_that_takes_twice_as_long_is_no_alarm() -> None:
    times = [100.0] * 30
    for sweep in (6, 15, 16, 29):
        times[sweep] = 200.0
    assert alarms(*noisy(*times), runs=1) == []


def test_a_few_fast_sweeps_start_no_level() -> None:
    """Three sweeps on a faster host, then a step from the level before."""
    times = [100.0] * 8 + [85.0] * 2 + [100.0] * 6 + [112.0] * 4
    judged = chart_sweeps(levels(*noisy(*times, share=0.005)), 0.05, 1)
    assert {each.reference_since for each in judged} == {"sweep-1"}
    assert [each.faster_since for each in judged if each.faster_since] == ["sweep-9"] * 4
    assert [each.sweep_id for each in judged if each.alarms] == [
        "sweep-17", "sweep-18", "sweep-19", "sweep-20",
    ]  # fmt: skip


def test_a_few_fast_sweeps_do_not_blind_the_chart() -> None:
    """Runs beyond a limit on either side are not noise for which the limits must allow."""
    times = noisy(*[100.0] * 6, 80.0, 80.0, *[100.0] * 8)
    judged = chart_sweeps(levels(*times), 0.05, 1)
    assert any(each.faster_since == "sweep-7" for each in judged)
    assert judged[-1].reference_since == "sweep-1"
    assert max(each.noticeable for each in judged) < 0.13


def test_sweeps_of_a_new_level_are_judged_by_the_old_until_it_is_learned() -> None:
    judged = chart_sweeps(levels(*[100.0] * 6, *[70.0] * 8), 0.05, 1)
    since = [(each.sweep_id, each.reference_since, each.faster_since) for each in judged[1:]]
    assert since[:5] == [
        ("sweep-7", "sweep-1", None),
        *((f"sweep-{day}", "sweep-1", "sweep-7") for day in (8, 9, 10, 11)),
    ]
    assert since[5:] == [(f"sweep-{day}", "sweep-7", None) for day in (12, 13, 14)]


@pytest.mark.parametrize(("runs", "first"), [(1, 9), (2, 8), (3, 6)])
def test_an_alarm_takes_more_sweeps_of_fewer_runs(runs: int, first: int) -> None:
    assert alarms(*STEADY, *[150.0] * 4, runs=runs)[0] == first


def test_a_sweep_of_which_two_runs_are_slow_does_not_alarm_alone() -> None:
    slow = sweep_level("sweep-6", [100.0, 200.0, 200.0])
    [judged] = chart_sweeps([*levels(*STEADY), slow], 0.05, 4)
    assert not judged.alarms
    slow = sweep_level("sweep-6", [200.0, 200.0, 200.0])
    [judged] = chart_sweeps([*levels(*STEADY), slow], 0.05, 4)
    assert judged.alarms


def test_scatter_is_that_of_normal_values_and_one_outlier_moves_it_little() -> None:
    values = noisy(*[1.0] * 1000, share=0.02)
    deviations = [math.log(value) for value in values]
    assert scatter(deviations, 0.0) == pytest.approx(0.02, rel=0.1)
    few = [0.01, -0.01, 0.0, 0.02, -0.02, 0.01, 0.0, 0.01]
    assert scatter([*few[:2], 0.25, *few[3:]], 0.0) < 2 * scatter(few, 0.0)


def test_scatter_is_larger_where_sweeps_depend_on_another() -> None:
    cycle = [0.02 * math.sin(day / 3) for day in range(40)]
    shuffled = random.Random(1).sample(cycle, len(cycle))
    assert scatter(cycle, 0.0) > 2 * scatter(shuffled, 0.0)
    assert scatter([0.01 * day for day in range(9)], 0.0) < 0.06


def test_noticeable_step_grows_with_the_noise() -> None:
    [quiet] = chart_sweeps(levels(*[100.0] * 6), 0.05, 4)
    assert quiet.noticeable == pytest.approx(math.log(1.05) * 5 / 4)
    [loud] = chart_sweeps(levels(*noisy(*[100.0] * 6, share=0.05)), 0.05, 4)
    assert loud.noticeable > math.log(1.1)


def test_level_of_a_sweep_is_the_median_and_what_its_own_runs_scatter() -> None:
    level = sweep_level("a", [100.0, 110.0, 121.0])
    assert level.log_seconds == pytest.approx(math.log(110))
    # three logarithms 0.0953 apart: s = 0.0953, and the median's variance is pi/2 times s²/n
    assert level.error_variance == pytest.approx(math.pi / 2 * math.log(1.1) ** 2 / 3)
    # the faster of the middle two, which one slow host does not move
    two = sweep_level("a", [200.0, 100.0])
    assert (two.log_seconds, two.runs, two.error_variance) == (math.log(100), 2, 0.0)
    assert sweep_level("a", [150.0, 110.0, 100.0, 120.0, 130.0]).fast_run == math.log(110)


def test_sweeps_that_are_learnt_from_are_not_judged() -> None:
    assert chart_sweeps(levels(*STEADY), 0.05, 1) == ()
    assert chart_sweeps(levels(*STEADY[:-1]), 0.05, 1) == ()
    [judged] = chart_sweeps(levels(*STEADY, 100.0), 0.05, 1)
    assert not judged.alarms and judged.since is None
    assert judged.reference == pytest.approx(math.log(100))


def test_allowance_and_limit_are_the_tolerance_where_noise_is_small() -> None:
    assert design(0.0, 0.0, 0.05, 4) == pytest.approx((math.log(1.05),) * 2)
    assert design(0.005, 0.002, 0.05, 4) == pytest.approx((math.log(1.05),) * 2)


def test_limit_keeps_siegmunds_run_length() -> None:
    """The average run length for which the limit was chosen, from the approximation itself."""
    allowance, limit = design(0.05, 0.02, 0.0, 4)
    k = (allowance - 1.645 * 0.02) / 0.05
    b = limit / 0.05 + 1.166
    assert k == pytest.approx(0.5)
    length = (math.exp(2 * k * b) - 2 * k * b - 1) / (2 * k * k)
    assert length == pytest.approx(30 * 4 / 0.01, rel=0.001)


def test_noise_and_more_node_counts_widen_the_limit() -> None:
    limits = [
        design(sigma, 0.01, 0.05, counts)[1] for sigma, counts in ((0.05, 4), (0.03, 4), (0.03, 1))
    ]
    assert limits == sorted(limits, reverse=True)


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
    assert LEARNING_SWEEPS + [each.alarms for each in judged].index(True) < 17


def test_sweeps_out_of_control_are_not_learnt_from() -> None:
    before, *_, after = chart_sweeps(levels(*STEADY, 100.0, 120.0, 120.0, 100.0, 100.0), 0.05, 1)
    assert after.sigma <= before.sigma


def test_scatter_of_the_runs_is_the_least_that_sweeps_are_said_to_vary() -> None:
    [judged] = chart_sweeps(levels(*[100.0] * 6, error_variance=0.0016), 0.05, 1)
    # 1 + 1/5 times for five sweeps, whose correlation is taken to be 1/5
    assert judged.sigma == pytest.approx(0.04 * 1.2 * math.sqrt(1.2 / 0.8))


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


@pytest.mark.parametrize(("slow", "verdict"), [(1, "no alarm"), (3, "no alarm"), (4, "slower")])
def test_one_run_a_night_alarms_on_the_fourth(
    slow: int, verdict: str, snapshot: SnapshotAssertion
) -> None:
    made = judge_trend(trend(*nights(*STEADY, 100.0, *[130.0] * slow, runs=1)), 0.05)
    assert [each.verdict for each in made.counts] == [verdict]
    assert shown(made) == snapshot


def test_contended_night_is_neither_judged_nor_learned_from(snapshot: SnapshotAssertion) -> None:
    points = [point(3, 300.0, contended=True), *nights(*STEADY[:2])]
    points += [point(day, 100.0) for day in (4, 5, 6)]
    made = judge_trend(trend(*points, point(7, 180.0, contended=True)), 0.05)
    assert made.alarms == ()
    assert shown(made) == snapshot(name="contended")
    after = judge_trend(trend(*points, point(7, 101.0)), 0.05)
    assert [(each.verdict, each.learnt) for each in after.counts] == [("no alarm", 6)]


def test_faster_sweeps_say_so_then_are_the_level(snapshot: SnapshotAssertion) -> None:
    points = nights(*STEADY, *[70.0] * 6)
    assert shown(judge_trend(trend(*points[:7]), 0.05)) == snapshot(name="faster")
    learned = judge_trend(trend(*points), 0.05)
    assert shown(learned) == snapshot(name="learned")
    [count] = learned.counts
    assert (count.verdict, count.level_since) == ("no alarm", "sweep-06")
    assert count.ratio == pytest.approx(1.0)


def test_a_sweep_that_is_not_faster_any_more_is_not_called_so() -> None:
    judged = judge_trend(trend(*nights(*STEADY, 70.0, 70.0, 70.0, 101.0)), 0.05)
    [count] = judged.counts
    assert (count.verdict, round(count.ratio or 0, 1)) == ("no alarm", 1.0)
    assert "a new level is learned from" in count.reason


def test_count_that_most_sweeps_have_is_lost_where_the_first_lacks_it_too() -> None:
    points = [*nights(*STEADY, 100.0), *(point(day, 50.0, 2) for day in (2, 3, 4, 5))]
    assert judge_trend(trend(*points), 0.05).alarms == (2,)


def test_noisy_trend_says_what_it_would_notice(snapshot: SnapshotAssertion) -> None:
    made = judge_trend(trend(*nights(*noisy(*[100.0] * 12, share=0.05))), 0.05)
    [count] = made.counts
    assert count.noticeable is not None and count.noticeable > 0.1
    assert made.headline == snapshot


def test_count_that_the_latest_sweep_lacks_is_lost_and_one_of_neither_end_is_not_asked(
    snapshot: SnapshotAssertion,
) -> None:
    points = [*nights(*STEADY, 100.0), point(1, 50.0, 2), point(3, 25.0, 4)]
    made = judge_trend(trend(*points), 0.05)
    assert [(each.nodes, each.verdict) for each in made.counts] == [(1, "no alarm"), (2, "lost")]
    assert made.alarms == (2,)
    assert shown(made) == snapshot
    assert judge_trend(trend(*points), 0.05, nodes=2).counts == made.counts[1:]
    [unexpected] = judge_trend(trend(*points), 0.05, nodes=4).counts
    assert (unexpected.verdict, unexpected.n) == ("cannot alarm", 0)


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
