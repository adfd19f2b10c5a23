"""Which node count is recommended under a deadline, and what is said of those that miss it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from configs.models import RecommendationConfig
from scaling.analysis.recommend import recommend
from scaling.analysis.speedup import SummaryRow, summarise
from scaling.outcome.outcome import Clocks, JobOutcome
from tests.scaling.analysis.test_recommend import (
    PERFECT,
    REFERENCE,
    advise,
    chosen,
    runner_up,
    why_not,
)


def test_deadline_takes_the_cheapest_that_meets_it():
    answer = advise(REFERENCE, {1: 10, 2: 11, 4: 13, 8: 12}, deadline_seconds=3300)
    assert (answer.rule, chosen(answer), runner_up(answer)) == ("deadline", 2, 8)
    assert answer.reason.startswith(
        "2 nodes is the cheapest measured count that trains within 55 min 0 s (start-up not "
    )
    assert (
        why_not(answer, 1)
        == "train time 1 h 39 min misses the deadline of 55 min 0 s by 44 min 0 s"
    )
    assert why_not(answer, 8) == "run cost $12.00 is above the $11.00 of 2 nodes"
    assert runner_up(advise(REFERENCE, deadline_seconds=900)) is None


def test_deadline_needs_no_efficiency():
    assert chosen(advise({1: 100, 8: 50}, deadline_seconds=60)) == 8


def test_deadline_without_prices_takes_the_least_node_time():
    # Node-time: 100, 110 and 104 s; the cost of one count alone orders nothing
    answer = advise({1: 100, 2: 55, 4: 26}, {2: 1}, deadline_seconds=60)
    assert (chosen(answer), runner_up(answer)) == (4, 2)
    assert "not every run cost is known, so the least node-time counts as cheapest" in answer.reason
    assert why_not(answer, 2) == "node-time 1 min 50 s is above the 1 min 44 s of 4 nodes"


def test_of_equally_cheap_counts_the_faster_meets_the_deadline_best():
    answer = advise({1: 0.3, 3: 0.1}, deadline_seconds=1)
    assert chosen(answer) == 3
    assert (
        why_not(answer, 1)
        == "node-time 300 ms is that of 3 nodes, and the train time is not shorter"
    )


def test_a_missed_deadline_names_the_fastest_and_by_how_much():
    answer = advise(REFERENCE, deadline_seconds=600)
    assert (answer.chosen, answer.runner_up, len(answer.rejected)) == (None, None, 4)
    assert answer.reason.startswith(
        "No measured count trains within 10 min 0 s (start-up not included); at the fastest, 8"
        " nodes, train time 13 min 30 s misses the deadline of 10 min 0 s by 3 min 30 s"
    )


def test_a_deadline_is_met_by_the_upper_bound():
    times = {1: [98, 100, 102], 2: [50, 51, 59]}
    assert advise(times, deadline_seconds=59).basis == "interval"
    assert chosen(advise(times, deadline_seconds=59)) == 2
    answer = advise(times, deadline_seconds=55)
    assert chosen(answer) is None
    assert (
        why_not(answer, 2)
        == "train time 51.0 s (up to 59.0 s) misses the deadline of 55.0 s by 4.0 s"
    )


def test_a_deadline_met_only_above_the_budget_names_the_cheapest_in_time():
    answer = advise(
        REFERENCE, {1: 10, 2: 11, 4: 13, 8: 12}, deadline_seconds=1700, budget_usd_per_run=11
    )
    assert answer.reason.startswith(
        "No measured count trains within 28 min 20 s (start-up not included) for at most $11.00; "
        "at the cheapest in time, 8 nodes, run cost $12.00 is above the budget of $11.00"
    )
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
    """{nodes: (train seconds, seconds from submission to end) of each run}"""
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


def test_a_deadline_is_held_against_what_a_person_waits_where_every_run_knows_it():
    # 4 nodes train within 60 s and end after 95 s; 2 nodes end after 80 s.
    rows = waiting({1: [(100, 120)], 2: [(55, 80)], 4: [(30, 95)]})
    answer = recommend(rows, RecommendationConfig(deadline_seconds=80))
    assert answer is not None and (chosen(answer), answer.deadline_clock) == (2, "submit_to_end")
    assert answer.reason.startswith(
        "2 nodes is the cheapest measured count that ends within 1 min 20 s of its submission"
        " (waiting included); "
    )
    assert (
        why_not(answer, 4)
        == "time from submission to end 1 min 35 s misses the deadline of 1 min 20 s by 15.0 s"
    )
    missed = recommend(rows, RecommendationConfig(deadline_seconds=70))
    assert (
        missed is not None
        and "at the fastest, 2 nodes, time from submission to end 1 min 20 s" in missed.reason
    )


def test_waiting_is_held_to_the_deadline_by_its_upper_bound():
    runs = {1: [(98, 120), (100, 121), (102, 122)], 2: [(50, 70), (51, 71), (52, 90)]}
    answer = recommend(waiting(runs), RecommendationConfig(deadline_seconds=80))
    assert answer is not None and (chosen(answer), answer.basis) == (None, "interval")
    assert why_not(answer, 2).startswith(
        "time from submission to end 1 min 11 s (up to 1 min 30 s) misses"
    )


def test_one_run_that_does_not_know_its_waiting_puts_all_on_the_train_clock():
    runs = {1: [(100, 120)], 2: [(55, 80), (55, None)], 4: [(30, 95)]}
    answer = recommend(waiting(runs), RecommendationConfig(deadline_seconds=80))
    assert answer is not None and answer.deadline_clock == "train"
    assert [choice.nodes for choice in answer.rejected if "misses" in choice.reason] == [1]
    assert "trains within 1 min 20 s (start-up not included)" in answer.reason
    assert advise(PERFECT).deadline_clock is None
