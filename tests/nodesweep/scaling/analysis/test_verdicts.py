"""The three verdicts on a limit: pass, fail, and undecided if the runs do not show which."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.intervals import paired_ratio_interval
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.speedup import baseline_of, summarise_runs
from nodesweep.scaling.analysis.verdicts import JudgedCount, not_ruled_out
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report.headline import write_headline
from tests.nodesweep.scaling.analysis.test_recommend import advise, chosen, rows_of, why_not

REFERENCE = {1: 5940.0, 2: 3300.0, 4: 1620.0, 8: 810.0}
# By Amdahl's law with a serial fraction of 3% efficiency is 83% at 8 nodes and 69% at 16; of
# 8% it is 81% at 4 and 64% at 8.
AMDAHL = tuple(
    {nodes: 1000 * (serial + (1 - serial) / nodes) for nodes in counts}
    for serial, counts in ((0.03, (1, 2, 4, 8, 16)), (0.08, (1, 2, 4, 8)))
)


def of(answer: Recommendation, nodes: int) -> JudgedCount:
    return next(each for each in answer.judged if each.nodes == nodes)


def verdicts(answer: Recommendation, nodes: int) -> dict[str, str]:
    return {verdict.criterion: verdict.answer for verdict in of(answer, nodes).verdicts}


def headline(times, usd=None) -> str:
    rows = rows_of(times, usd)
    advice = recommend(rows, RecommendationConfig())
    return write_headline("aws", baseline_of(rows), rows, 9, advice)


def test_an_interval_with_the_limit_inside_decides_nothing_and_says_what_would(snapshot):
    # E(2) = 99.99/(2 x 60.3) = .83, from .72 to .95; logs with s = .020 and .073
    answer = advise({1: [98, 100, 102], 2: [56, 60, 65]}, {1: 10, 2: 12})
    assert (chosen(answer), answer.not_ruled_out) == (1, (2,))
    assert verdicts(answer, 2) == {
        "efficiency": "undecided",
        "doubling_ratio": "undecided",
        "faster": "pass",
    }
    efficiency = of(answer, 2).verdicts[0]
    assert (efficiency.limit, efficiency.interval.low) == (0.75, pytest.approx(0.7, abs=1e-4))
    assert efficiency.interval.bounds[0] == pytest.approx(0.7365, abs=1e-4)
    # log(.829/.735) / log(.829/.75) = 1.2 times as near: 1.4 times the runs, of which 3 are there
    assert [(each.nodes, each.runs) for each in of(answer, 2).more_runs] == [(1, 2), (2, 2)]
    assert answer.reason == snapshot

    assert why_not(answer, 2) == snapshot
    assert headline({1: [98, 100, 102], 2: [56, 60, 65]}) == snapshot


def test_what_is_wholly_below_a_limit_fails_and_what_is_wholly_above_passes(snapshot):
    answer = advise({1: [99, 100, 101], 2: [54, 55, 56], 4: [44, 45, 46]})
    assert (chosen(answer), answer.not_ruled_out, of(answer, 4).answer) == (2, (), "fail")
    assert verdicts(answer, 4)["efficiency"] == "fail"
    assert why_not(answer, 4) == snapshot
    assert of(answer, 1).verdicts == ()


def test_a_wide_interval_is_never_said_to_be_below_the_limit(snapshot):
    # 40% noise: E(2) = .63, from 28 to 138%
    answer = advise({1: [86, 100, 112], 2: [52, 94.3, 100]})
    interval = of(answer, 2).verdicts[0].interval
    assert (round(interval.low, 2), round(interval.high, 2)) == (0.28, 1.38)
    assert verdicts(answer, 2)["efficiency"] == "undecided"
    text = answer.reason + why_not(answer, 2) + headline({1: [86, 100, 112], 2: [52, 94.3, 100]})
    assert "below 75%" not in text
    assert text == snapshot


def test_one_run_is_judged_by_its_value_as_before():
    answer = advise({1: 100, 2: 68, 4: 25})
    assert (chosen(answer), answer.not_ruled_out) == (4, ())
    assert of(answer, 2).answer == "fail" and of(answer, 4).answer == "pass"
    assert all(verdict.interval is None for each in answer.judged for verdict in each.verdicts)


def test_a_larger_count_than_measured_may_pass_where_the_largest_does(snapshot):
    answer = advise({1: 100, 2: 50})
    assert answer.larger_may_pass
    assert answer.reason == snapshot
    assert not advise({1: 100, 2: 90}).larger_may_pass


def test_two_counts_that_are_within_each_others_interval_are_not_called_slower(snapshot):
    # 3 nodes hold E and have no D; their mean is that of 2 nodes or above it
    times = {1: [139, 140, 141], 2: [39, 40, 41], 3: [41, 42, 43]}
    answer = advise(times)
    assert verdicts(answer, 3) == {"efficiency": "pass", "faster": "undecided"}
    assert why_not(answer, 3) == snapshot
    assert [each.nodes for each in of(answer, 3).more_runs] == [2, 3]
    assert (chosen(answer), answer.not_ruled_out) == (2, (3,))
    same = advise({**times, 3: [39, 40, 41]})
    assert of(same, 3).more_runs == ()
    assert same.reason == snapshot
    assert verdicts(advise({**times, 3: [46, 47, 48]}), 3)["faster"] == "fail"


def test_what_is_on_the_limit_takes_no_number_of_runs(snapshot):
    answer = advise({1: [98, 100, 102], 2: [60, 66.66, 75]})
    assert verdicts(answer, 2)["efficiency"] == "undecided"
    assert of(answer, 2).more_runs == ()
    assert answer.reason == snapshot


def test_several_undecided_counts_share_their_runs(snapshot):
    answer = advise({1: [98, 100, 102], 2: [55, 59, 64], 4: [26, 28, 32]}, {1: 10, 2: 12, 4: 20})
    assert answer.not_ruled_out == (2, 4)
    text = not_ruled_out(answer.undecided)
    assert text == snapshot

    needed = {each.nodes: each.runs for each in of(answer, 4).more_runs}
    assert needed == {1: 1, 4: 1}


runs = st.lists(st.floats(10, 1000), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(runs, runs, st.integers(2, 4))
def test_more_runs_of_the_same_times_never_turn_a_pass_into_a_failure(base, other, times):
    few, more = advise({1: base, 2: other}), advise({1: base * times, 2: other * times})
    for before, after in zip(few.judged, more.judged, strict=True):
        for first, then in zip(before.verdicts, after.verdicts, strict=True):
            assert (first.answer, then.answer) != ("pass", "fail"), first.criterion


@pytest.mark.parametrize("repeats", [3, 5])
@pytest.mark.parametrize("curve", [REFERENCE, *AMDAHL], ids=["reference", "3%", "8%"])
def test_at_5_percent_noise_what_is_said_is_right_in_85_of_100_sweeps(curve, repeats):
    """A sweep is right if the chosen count truly passes and the largest that passes is chosen or
    not ruled out.

    An answer that rules nothing out would always be right, so it may do that in at most half of the
    sweeps.
    """
    best = chosen(advise(curve))
    assert best is not None and best > 1
    generator = np.random.default_rng(11)
    right = everything = 0
    for _ in range(40):
        answer = advise(
            {n: generator.lognormal(math.log(t), 0.05, repeats).tolist() for n, t in curve.items()}
        )
        found = chosen(answer) or 0
        right += found == best or (found < best and best in answer.not_ruled_out)
        everything += len(answer.not_ruled_out) == len(curve) - 1
    assert right >= 0.85 * 40
    assert everything <= 0.5 * 40


def test_a_shuffled_sweep_judges_by_the_spread_of_all_its_runs(make_outcomes, snapshot):
    """The pair of 1 and 2 nodes alone, with 2 degrees of freedom, cannot decide E(2)."""
    rows, _ = summarise_runs(
        make_outcomes(
            {
                1: [99.0, 102.0, 100.0],
                2: [64.0, 63.0, 62.0],
                4: [33.0, 34.0, 33.5],
                8: [26.0, 27.0, 26.5],
            }
        ),
        paired=True,
    )
    answer = recommend(rows, RecommendationConfig())
    assert [(each.nodes, each.answer) for each in answer.judged] == [
        (1, "pass"),
        (2, "pass"),
        (4, "undecided"),
        (8, "fail"),
    ]
    assert why_not(answer, 4) == snapshot
    low, high = of(answer, 2).verdicts[0].interval.bounds
    own = paired_ratio_interval({1: 99, 2: 102, 3: 100}, {1: 64, 2: 63, 3: 62})
    assert own.low / 2 < 0.75 < low < high < own.high / 2


def test_too_few_pairs_are_said_where_point_estimates_are_judged(snapshot):
    def run(nodes: int, repeat: int) -> JobOutcome:
        return JobOutcome(
            nodes=nodes,
            repeat=repeat,
            attempt=1,
            job_name=f"n{nodes}-r{repeat}",
            status="Completed",
            platform_kind="aws",
            clocks=Clocks(train_seconds=100 / nodes + repeat / 10),
            train_clock="program",
        )

    outcomes = [run(1, repeat) for repeat in (1, 2, 3)] + [run(2, repeat) for repeat in (2, 3, 4)]
    rows, _ = summarise_runs(outcomes, paired=True)
    answer = recommend(rows, RecommendationConfig())
    assert answer is not None and (chosen(answer), answer.basis) == (2, "point")
    assert answer.reason == snapshot
