"""Times of nodes with contended CPUs that got 50% or more: both bounds of each time decide together
(docs/method.md, "Attainment")."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.outcome.attainment import LEAST_ATTAINED
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from tests.nodesweep.scaling.conftest import summarise

SHARES = st.sampled_from([0.5, 0.7, 0.75, 0.8, 0.9, 0.94, 0.96, 1.0])
TIMES = st.floats(5, 200).map(lambda seconds: round(seconds, 1))


def run(
    nodes: int, seconds: float, share: float = 1.0, repeat: int = 1, attempt: int = 1
) -> JobOutcome:
    return JobOutcome(
        nodes=nodes,
        repeat=repeat,
        attempt=attempt,
        job_name=f"n{nodes}-r{repeat}-a{attempt}",
        status="Completed",
        platform_kind="emulated",
        clocks=Clocks(train_seconds=seconds, submit_to_end_seconds=seconds + 5),
        train_clock="program",
        utilisation={"attained_percent": 100 * share},
        given_cost_usd=nodes * seconds,
    )


def advise(
    times: Mapping[int, float], shares: Mapping[int, float] | None = None, **goals: float
) -> Recommendation:
    outcomes = [run(n, seconds, (shares or {}).get(n, 1.0)) for n, seconds in times.items()]
    answer = recommend(summarise(outcomes), RecommendationConfig(**goals))
    assert answer is not None
    return answer


@settings(max_examples=300, deadline=None)
@given(
    true=st.lists(TIMES, min_size=2, max_size=4),
    shares=st.lists(SHARES, min_size=4, max_size=4),
    slowed=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    goals=st.fixed_dictionaries({})
    | st.fixed_dictionaries({"deadline_seconds": st.floats(20, 120)})
    | st.fixed_dictionaries(
        {"hour_value_usd": st.floats(1, 1e5)}, optional={"budget_usd_per_run": st.floats(50, 500)}
    ),
)
def test_what_is_recommended_or_named_holds_the_undisturbed_answer(
    true: list[float], shares: list[float], slowed: list[float], goals: dict[str, float]
):
    """Whatever a contended time would have been between its two ends."""
    counts = [2**index for index in range(len(true))]
    undisturbed = advise(dict(zip(counts, true, strict=True)), **goals)
    told = {n: share for n, share in zip(counts, shares, strict=False)}
    measured = {
        n: seconds / (1 if told[n] >= LEAST_ATTAINED else told[n] + (1 - told[n]) * part)
        for n, seconds, part in zip(counts, true, slowed, strict=False)
    }
    answer = advise(measured, told, **goals)
    right = undisturbed.chosen and undisturbed.chosen.nodes
    if answer.chosen is not None:
        assert answer.chosen.nodes == right
    else:
        assert right is None or right in answer.between
    if all(share >= LEAST_ATTAINED for share in told.values()):
        assert answer.between == ()


def test_both_ends_agree(snapshot):
    """8 nodes fail even at 90% of their time, 4 pass even with a baseline that was 6% faster."""
    answer = advise({1: 100, 2: 51, 4: 27, 8: 22}, {1: 0.94, 8: 0.9})
    assert answer.chosen is not None
    assert (answer.chosen.nodes, answer.between) == (4, ())
    rejected = {choice.nodes: choice.reason for choice in answer.rejected}
    assert rejected[8] == snapshot


def test_the_counts_between_which_contended_times_do_not_decide_are_named(snapshot):
    answer = advise({1: 100, 2: 52, 4: 36, 8: 30}, {4: 0.85})
    assert (answer.chosen, answer.runner_up) == (None, None)
    assert (answer.between, answer.not_ruled_out) == ((2, 4), (4,))
    assert answer.reason == snapshot
    assert [choice.nodes for choice in answer.rejected] == [1, 2, 4, 8]
    [four] = answer.undecided
    assert [(each.nodes, each.runs) for each in four.more_runs] == [(4, 1)]


def test_a_contended_baseline_is_judged_by_its_ends():
    answer = advise({1: 100, 2: 55, 4: 26}, {1: 0.8})
    assert answer.chosen is not None and answer.chosen.nodes == 4
    answer = advise({1: 100, 2: 62}, {1: 0.8})
    assert answer.between == (1, 2)


def test_below_half_of_the_cpu_there_is_no_recommendation():
    assert advise({1: 100, 2: 55, 4: 26}, {1: 0.5}).between == (1, 4)
    answer = advise({1: 100, 2: 55, 4: 26}, {1: 0.49})
    assert (answer.chosen, answer.between) == (None, ())
    assert answer.reason.startswith("No recommendation")


def test_very_many_contended_counts_are_judged_once():
    """Dividing the range of the baseline's time for each would take minutes."""
    times = {nodes: 100 / nodes for nodes in range(1, 41)}
    assert advise(times, dict.fromkeys(times, 0.5)).between == tuple(range(1, 41))


def test_a_count_that_nothing_is_known_of_above_those_in_question_leaves_no_answer(snapshot):
    answer = advise({1: 100, 2: 68, 4: 30}, {2: 0.9, 4: 0.4})
    assert (answer.chosen, answer.between) == (None, ())
    assert answer.reason == snapshot


def test_the_cheapest_within_a_deadline_may_be_either(snapshot):
    """In node-seconds: 110 of one node, 96 to 120 of two."""
    answer = advise({1: 110, 2: 60}, {2: 0.8}, deadline_seconds=260)
    assert answer.between == (1, 2)
    assert answer.reason == snapshot
    answer = advise({1: 110, 2: 60}, {2: 0.94}, deadline_seconds=260)
    assert answer.chosen is not None and answer.chosen.nodes == 1
    assert advise({1: 110, 2: 60}, {2: 0.94}, deadline_seconds=125).between == (2,)


def test_a_time_that_meets_the_deadline_at_both_ends_is_open_due_to_the_next_run(snapshot):
    """2 nodes: 36 to 60 s from submission to end."""
    shares = dict.fromkeys((1, 2, 4), 0.6)
    answer = advise({1: 100, 2: 55, 4: 30}, shares, deadline_seconds=75)
    assert answer.between == (1, 2, 4)
    assert {choice.nodes: choice.reason for choice in answer.rejected} == snapshot


def test_a_count_that_may_miss_the_deadline_at_both_ends_is_not_ruled_out():
    """1 node: 94 to 105 s from submission to end, and the next run may take twice as long."""
    answer = advise({1: 100, 4: 40}, {1: 0.9}, deadline_seconds=120)
    assert answer.chosen is not None and answer.chosen.nodes == 4
    assert (answer.between, answer.not_ruled_out) == ((), (1,))


@pytest.mark.parametrize(
    ("shares", "seconds", "is_contended"),
    [
        ((0.8, 0.99), 40.0, False),
        ((0.8, 0.9, 0.85), 40.0, True),
        ((0.8, 0.8), 50.0, True),
    ],
)
def test_the_least_contended_attempt_counts_for_its_point(shares, seconds, is_contended):
    outcomes = [run(1, 100)] + [
        run(2, 60 - 10 * attempt, share, attempt=attempt)
        for attempt, share in enumerate(shares, start=1)
    ]
    row = summarise(outcomes)[1]
    assert (row.n, row.train.seconds, "starved" in row.flags) == (1, seconds, is_contended)
    assert row.least_time_share == (max(shares) if is_contended else None)
