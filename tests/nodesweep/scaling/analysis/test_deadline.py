"""The recommended node count under a deadline, and the text about counts that miss it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from tests.nodesweep.scaling.analysis.test_recommend import (
    PERFECT,
    REFERENCE,
    advise,
    chosen,
    rows_of,
    runner_up,
    why_not,
)
from tests.nodesweep.scaling.conftest import summarise


def test_deadline_takes_the_cheapest_that_meets_it(snapshot):
    answer = advise(REFERENCE, {1: 10, 2: 11, 4: 13, 8: 12}, deadline_seconds=6600)
    assert (answer.rule, chosen(answer), runner_up(answer)) == ("deadline", 2, 8)
    assert answer.reason == snapshot
    assert why_not(answer, 1) == snapshot
    assert why_not(answer, 8) == snapshot
    assert runner_up(advise(REFERENCE, deadline_seconds=1620)) is None


def test_one_run_on_the_deadline_decides_nothing(snapshot):
    """Half of the next runs on 2 nodes take longer than this run did."""
    answer = advise(REFERENCE, {1: 10, 2: 11, 4: 13, 8: 12}, deadline_seconds=3300)
    assert (chosen(answer), answer.not_ruled_out) == (8, (2,))
    assert answer.reason == snapshot
    assert why_not(answer, 2) == snapshot
    verdict = answer.judged[1].verdicts[0]
    assert (verdict.answer, verdict.next_run) == ("undecided", None)
    assert [(each.nodes, each.runs, each.usd) for each in verdict.more_runs] == [(2, 2, 22.0)]
    none = advise(REFERENCE, deadline_seconds=1000)
    assert (chosen(none), none.not_ruled_out) == (None, (8,))
    assert none.reason == snapshot
    assert [each.answer for each in none.judged] == ["fail", "fail", "fail", "undecided"]


@pytest.mark.parametrize("seconds", [30, 80])
def test_a_fast_count_of_another_model_does_not_meet_the_deadline(seconds, snapshot):
    loss = {1: 1.0, 2: 1.0, 4: 9.0}
    answer = advise({1: 100, 2: 60, 4: 20}, loss=loss, deadline_seconds=seconds)
    assert chosen(answer) is None
    assert answer.reason == snapshot


def test_the_limit_that_rules_out_the_nearest_count_is_named(snapshot):
    answer = advise({1: 100, 2: 60}, {1: 10, 2: 12}, deadline_seconds=80, budget_usd_per_run=11)
    assert (chosen(answer), answer.not_ruled_out) == (None, ())
    assert answer.reason == snapshot
    # 4 nodes are faster, but only 2 nodes may pass
    answer = advise(
        {1: 100, 2: 60, 4: 50}, {1: 10, 2: 11, 4: 12}, deadline_seconds=80, budget_usd_per_run=11
    )
    assert answer.not_ruled_out == (2,)
    assert answer.reason == snapshot


def test_a_margin_above_every_noise_decides_with_one_run():
    assert chosen(advise({1: 100, 2: 50}, deadline_seconds=100)) == 2
    assert chosen(advise({1: 100, 2: 50}, deadline_seconds=99)) is None


def with_nights(rows, sigma):
    return tuple(row.model_copy(update={"night_sigma": sigma}) for row in rows)


def test_a_history_shows_which_margin_one_run_needs(snapshot):
    """Nights differ by 2%, so that two nights differ by up to exp(1.645 x sqrt 2 x .02) - 1 =
    4.8%."""
    rows = with_nights(rows_of({1: 100, 2: 50}), 0.02)
    met = recommend(rows, RecommendationConfig(deadline_seconds=52.5))
    assert (chosen(met), met.basis) == (2, "interval")
    assert met.reason == snapshot
    open_ = recommend(rows, RecommendationConfig(deadline_seconds=52.3))
    assert (chosen(open_), open_.not_ruled_out) == (None, (2,))
    assert open_.reason == snapshot
    assert open_.judged[1].verdicts[0].more_runs == ()  # no run of tonight shows another night


def test_the_next_run_of_many_is_another_night_too(snapshot):
    rows = rows_of({1: [98, 100, 102], 2: [50, 51, 52]}, {1: 10, 2: 11})
    within = recommend(rows, RecommendationConfig(deadline_seconds=56))
    assert chosen(within) == 2
    # exp(hypot(log(54.5 / 51), 1.645 x sqrt 2 x .05)) = 1.146: 58.4 s
    nights = with_nights(rows, 0.05)
    assert chosen(recommend(nights, RecommendationConfig(deadline_seconds=58.5))) == 2
    open_ = recommend(nights, RecommendationConfig(deadline_seconds=58))
    assert chosen(open_) is None
    assert why_not(open_, 2) == snapshot
    # more runs narrow what tonight adds, to 1.645 standard deviations of a run
    assert [each.runs for each in open_.judged[1].verdicts[0].more_runs] == [1]
    assert recommend(nights, RecommendationConfig(deadline_seconds=55)).undecided[0].more_runs == ()
    # a cost of 11 USD may be 12.9 USD on another day
    dear = recommend(nights, RecommendationConfig(budget_usd_per_run=12))
    assert why_not(dear, 2) == snapshot


def test_deadline_needs_no_efficiency():
    assert chosen(advise({1: 100, 8: 50}, deadline_seconds=100)) == 8


def test_deadline_without_prices_takes_the_least_node_time(snapshot):
    # Node-time: 100, 98 and 96 s; the cost of one count alone orders nothing
    answer = advise({1: 100, 2: 49, 4: 24}, {2: 1}, deadline_seconds=99)
    assert (chosen(answer), runner_up(answer)) == (4, 2)
    assert answer.reason == snapshot
    assert why_not(answer, 2) == snapshot


def test_of_equally_cheap_counts_the_faster_meets_the_deadline_best(snapshot):
    answer = advise({1: 0.3, 3: 0.1}, deadline_seconds=1)
    assert chosen(answer) == 3
    assert why_not(answer, 1) == snapshot


def test_a_missed_deadline_names_the_fastest_and_by_how_much(snapshot):
    answer = advise(REFERENCE, deadline_seconds=600)
    assert (answer.chosen, answer.runner_up, len(answer.rejected)) == (None, None, 4)
    assert answer.reason == snapshot


def test_a_deadline_is_met_by_the_next_run_and_not_by_the_mean(snapshot):
    # The next run of 2 nodes: exp(3.974 + 2.920 x .0904 x sqrt(4/3)) = 72.1 s
    times = {1: [98, 100, 102], 2: [50, 51, 59]}
    met = advise(times, deadline_seconds=73)
    assert (chosen(met), met.basis) == (2, "interval")
    answer = advise(times, {1: 10, 2: 11}, deadline_seconds=65)
    assert (chosen(answer), answer.not_ruled_out) == (None, (2,))
    assert why_not(answer, 2) == snapshot
    verdict = answer.judged[1].verdicts[0]
    assert (verdict.answer, verdict.next_run) == ("undecided", pytest.approx(72.1, abs=0.1))
    # log(72.1/53.2)/3.37 = .090 is the spread; log(65/53.2) is 2.22 times that, and of 6 runs the
    # bound is 2.18 times the spread away
    assert [(each.nodes, each.runs, each.usd) for each in verdict.more_runs] == [(2, 3, 33.0)]
    assert answer.reason == snapshot
    assert answer.undecided[0].nodes == 2
    near = advise(times, deadline_seconds=55)
    assert near.reason == snapshot
    assert advise(times, deadline_seconds=50.9).judged[1].answer == "fail"


def test_an_undecided_count_is_named_only_where_it_would_be_preferred(snapshot):
    times = {1: [98, 100, 102], 2: [50, 51, 59], 4: [25, 25, 26]}
    cheap = advise(times, {1: 10, 2: 11, 4: 13}, deadline_seconds=65)
    assert (chosen(cheap), cheap.not_ruled_out) == (4, (2,))
    assert cheap.reason == snapshot
    dear = advise(times, {1: 10, 2: 14, 4: 13}, deadline_seconds=65)
    assert (chosen(dear), dear.not_ruled_out) == (4, ())


def test_two_runs_say_by_how_much_the_next_may_be_slower(snapshot):
    answer = advise({1: 150, 2: [50, 54]}, deadline_seconds=110)
    assert (chosen(answer), answer.basis) == (2, "point")
    assert answer.reason == snapshot


def test_a_deadline_met_only_above_the_budget_names_the_cheapest_in_time(snapshot):
    answer = advise(
        REFERENCE, {1: 10, 2: 11, 4: 13, 8: 12}, deadline_seconds=1700, budget_usd_per_run=11
    )
    assert answer.reason == snapshot
    assert why_not(answer, 1).startswith("train time")
    assert (
        chosen(
            advise(
                REFERENCE,
                {1: 10, 2: 11, 4: 13, 8: 12},
                deadline_seconds=1700,
                budget_usd_per_run=12,
            )
        )
        == 8
    )


def waiting(runs: Mapping[int, Sequence[tuple[float, float | None]]]) -> tuple[SummaryRow, ...]:
    """Return runs of {nodes: (train seconds, seconds from submission to end) of each run}."""
    return summarise(
        [
            JobOutcome(
                nodes=nodes,
                repeat=repeat,
                attempt=1,
                job_name=f"n{nodes}-{repeat}",
                status="Completed",
                platform_kind="aws",
                clocks=Clocks(submit_to_end_seconds=whole, train_seconds=train),
                train_clock="program",
            )
            for nodes, times in runs.items()
            for repeat, (train, whole) in enumerate(times, start=1)
        ]
    )


def test_a_deadline_is_held_against_what_a_person_waits_where_every_run_knows_it(snapshot):
    # 4 nodes train within 30 s and end after 395 s; 2 nodes end after 180 s.
    rows = waiting({1: [(400, 420)], 2: [(155, 180)], 4: [(30, 395)]})
    answer = recommend(rows, RecommendationConfig(deadline_seconds=360))
    assert answer is not None and (chosen(answer), answer.deadline_clock) == (2, "submit_to_end")
    assert answer.reason == snapshot
    assert why_not(answer, 4) == snapshot
    missed = recommend(rows, RecommendationConfig(deadline_seconds=170))
    assert missed is not None
    assert missed.reason == snapshot


def test_waiting_is_held_to_the_deadline_by_its_upper_bound(snapshot):
    runs = {1: [(98, 120), (100, 121), (102, 122)], 2: [(50, 70), (51, 71), (52, 90)]}
    answer = recommend(waiting(runs), RecommendationConfig(deadline_seconds=80))
    assert answer is not None and (chosen(answer), answer.basis) == (None, "interval")
    assert why_not(answer, 2) == snapshot


def test_one_run_that_does_not_know_its_waiting_puts_all_on_the_train_clock(snapshot):
    runs = {1: [(100, 120)], 2: [(55, 80), (55, None)], 4: [(30, 95)]}
    answer = recommend(waiting(runs), RecommendationConfig(deadline_seconds=80))
    assert answer is not None and answer.deadline_clock == "train"
    assert [choice.nodes for choice in answer.rejected if "misses" in choice.reason] == [1]
    assert answer.reason == snapshot
    assert advise(PERFECT).deadline_clock is None


def contended(rows, nodes, share):
    """Return the rows with the runs of a count contended to this share; None: unknown."""
    return tuple(
        row.model_copy(update={"flags": (*row.flags, "starved"), "least_time_share": share})
        if row.nodes == nodes
        else row
        for row in rows
    )


def test_a_count_too_contended_to_be_judged_may_be_the_cheapest(snapshot):
    """2 nodes were measured at 240 s and 12 USD, but may need half of both, or an unknown share."""
    rows = rows_of({1: 400, 2: 240, 4: 90}, {1: 10, 2: 12, 4: 13})
    goals = RecommendationConfig(deadline_seconds=200)
    assert chosen(recommend(rows, goals)) == 4
    for share in (0.5, None):
        answer = recommend(contended(rows, 2, share), goals)
        assert (chosen(answer), answer.between) == (None, (2, 4))
    assert answer.reason == snapshot
    # even at 69% it would miss the deadline
    late = recommend(
        contended(rows_of({1: 900, 2: 800, 4: 90}, {1: 10, 2: 9, 4: 13}), 2, 0.69), goals
    )
    assert (chosen(late), late.not_ruled_out) == (4, ())
    # and at half its price it would still cost more
    dear = recommend(
        contended(rows_of({1: 400, 2: 240, 4: 90}, {1: 10, 2: 30, 4: 13}), 2, 0.5), goals
    )
    assert chosen(dear) == 4
    alone = recommend(
        contended(rows_of({1: 400, 2: 380, 4: 300}, {1: 9, 2: 9, 4: 9}), 4, None), goals
    )
    assert (chosen(alone), alone.between, alone.reason) == (None, (4,), snapshot)


def test_a_baseline_too_contended_to_be_judged_leaves_what_needs_no_baseline():
    """One node may have needed 40% of 900 s and 10 USD, or an unknown share."""
    rows = rows_of({1: 900, 2: 240, 4: 90}, {1: 10, 2: 12, 4: 13})
    least, unknown = (contended(rows, 1, share) for share in (0.4, None))
    assert chosen(recommend(least, RecommendationConfig())) is None
    late = recommend(least, RecommendationConfig(deadline_seconds=200))
    assert (chosen(late), late.between, late.chosen.reason) == (4, (), "1 min 30 s")
    may_meet = recommend(unknown, RecommendationConfig(deadline_seconds=200))
    assert (chosen(may_meet), may_meet.between) == (None, (1, 4))
    assert chosen(recommend(least, RecommendationConfig(hour_value_usd=1000))) == 4
    cheap = recommend(least, RecommendationConfig(hour_value_usd=0.01))
    assert (chosen(cheap), cheap.between) == (None, (1, 2))
