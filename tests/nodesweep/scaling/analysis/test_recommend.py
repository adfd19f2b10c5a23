"""The recommended node count with its reasons, and the Pareto front, compared with rows worked out
by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis import deadline as deadline_module
from nodesweep.scaling.analysis import measured_count as counts_module
from nodesweep.scaling.analysis import recommend as recommend_module
from nodesweep.scaling.analysis import verdicts as verdicts_module
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.measured_count import cost_change
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.recommend import pareto_front, recommend
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from tests.nodesweep.scaling.conftest import summarise

REFERENCE = {1: 99 * 60.0, 2: 55 * 60.0, 4: 27 * 60.0, 8: 13.5 * 60.0}
PERFECT = {1: 120, 2: 60, 3: 40, 4: 30}
LOSSES = {"name": "val_loss", "goal": "minimize"}


def rows_of(
    times: Mapping[int, float | Sequence[float] | None],
    usd: Mapping[int, float] | None = None,
    loss: Mapping[int, float] | None = None,
) -> tuple[SummaryRow, ...]:
    """Return rows of {nodes: train seconds of its runs, None if failed}, with cost and final
    loss."""
    outcomes = []
    for nodes, given_seconds in times.items():
        repeats = given_seconds if isinstance(given_seconds, Sequence) else [given_seconds]
        for repeat, seconds in enumerate(repeats, start=1):
            outcomes.append(
                JobOutcome(
                    nodes=nodes,
                    repeat=repeat,
                    attempt=1,
                    job_name=f"n{nodes}-r{repeat}",
                    status="Completed" if seconds else "Failed",
                    platform_kind="measured",
                    clocks=Clocks(train_seconds=seconds),
                    train_clock="measured" if seconds else None,
                    given_cost_usd=(usd or {}).get(nodes),
                    metrics={"final_metric": {**LOSSES, "value": loss[nodes]}} if loss else None,
                )
            )
    return summarise(outcomes)


def advise(
    times: Mapping[int, Any],
    usd: Mapping[int, float] | None = None,
    loss: Mapping[int, float] | None = None,
    **goals: float,
) -> Recommendation:
    answer = recommend(rows_of(times, usd, loss), RecommendationConfig(**goals))
    assert answer is not None
    return answer


def chosen(answer: Recommendation) -> int | None:
    return answer.chosen and answer.chosen.nodes


def runner_up(answer: Recommendation) -> int | None:
    return answer.runner_up and answer.runner_up.nodes


def why_not(answer: Recommendation, nodes: int) -> str:
    return next(choice.reason for choice in answer.rejected if choice.nodes == nodes)


def test_reference_row_recommends_its_largest_count_by_point_estimates(snapshot):
    # E = 1, .9, .917, .917; D = 1.8, 2.04, 2: all above the limits
    answer = advise(REFERENCE)
    assert (answer.rule, answer.basis) == ("efficiency", "point")
    assert (chosen(answer), runner_up(answer)) == (8, 4)
    assert answer.chosen.reason == snapshot
    assert answer.runner_up.reason == snapshot
    assert answer.reason == snapshot
    assert [choice.nodes for choice in answer.rejected] == [1, 2, 4]
    assert why_not(answer, 4) == snapshot


def test_a_baseline_that_may_be_within_the_budget_on_another_day_is_not_ruled_out(snapshot):
    rows = (
        row.model_copy(update={"night_sigma": 0.1}) for row in rows_of({1: 9, 2: 8}, {1: 1, 2: 2})
    )
    answer = recommend(tuple(rows), RecommendationConfig(budget_usd_per_run=1.1))
    assert answer is not None
    assert (chosen(answer), answer.not_ruled_out) == (None, (1,))
    assert answer.reason == snapshot


def test_perfect_scaling_recommends_the_largest_and_says_what_was_not_judged(snapshot):
    answer = advise(PERFECT)
    assert chosen(answer) == 4
    assert "not judged" not in answer.reason
    assert advise({1: 120, 3: 40}).reason == snapshot


def test_a_count_that_meets_its_limits_exactly_passes_in_spite_of_rounding():
    # E(3) = 0.1 / (3 x 0.0444…) is 0.75 but for the last digit; D(2) = 1.5 and E(2) = .75 exactly
    assert chosen(advise({1: 0.1, 3: 0.1 / 2.25})) == 3
    assert chosen(advise({1: 0.3, 2: 0.2})) == 2


@pytest.mark.parametrize(
    "seconds",
    [
        68,
        66.8,
        100,
    ],
)
def test_an_inefficient_count_leaves_the_baseline(seconds, snapshot):
    answer = advise({1: 100, 2: seconds})
    assert (chosen(answer), runner_up(answer)) == (1, 2)
    assert why_not(answer, 2) == snapshot
    assert answer.chosen.reason == snapshot
    assert answer.reason == snapshot


def test_limits_are_the_configs(snapshot):
    assert chosen(advise({1: 100, 2: 68}, min_efficiency=0.7, min_doubling_ratio=1.4)) == 2
    assert chosen(advise(REFERENCE, min_efficiency=0.91)) == 8
    assert chosen(advise(REFERENCE, min_doubling_ratio=2.0)) == 8
    assert why_not(advise({1: 100, 2: 54}, min_efficiency=0.95), 2) == snapshot


def test_a_doubling_that_does_not_pay_is_rejected_though_its_efficiency_holds(snapshot):
    # 4 is superlinear (E = 1.25), so 8 holds E = .8 with D = 1.28
    answer = advise({1: 100, 2: 45, 4: 20, 8: 15.625})
    assert chosen(answer) == 4
    assert why_not(answer, 8) == snapshot


def test_a_larger_count_may_pass_where_a_smaller_one_does_not(snapshot):
    # E = .667, then 1
    answer = advise({1: 100, 2: 75, 4: 25})
    assert (chosen(answer), runner_up(answer)) == (4, 1)
    assert answer.reason == snapshot


def test_a_failed_half_leaves_the_doubling_ratio_unjudged(snapshot):
    answer = advise({1: 80, 2: 40, 4: None, 8: 10})
    assert chosen(answer) == 8
    assert answer.reason == snapshot
    assert [choice.nodes for choice in answer.rejected] == [1, 2]


def test_a_count_slower_than_a_smaller_one_is_never_the_largest_that_passes(snapshot):
    # 2 nodes are superlinear: 3 hold E = .76 and no D is known, but they are slower than 2
    answer = advise({1: 100, 2: 40, 3: 44})
    assert chosen(answer) == 2
    assert why_not(answer, 3) == snapshot


def test_relative_baseline_is_the_fallback_and_needs_no_doubling_ratio(snapshot):
    answer = advise({2: 60, 4: 59})
    assert chosen(answer) == 2
    assert answer.reason == snapshot
    assert advise({2: 60, 4: 30}).chosen.reason == snapshot


def test_three_runs_are_judged_by_their_interval(snapshot):
    # Median E(2) = 100/(2 x 62) = .81, but the slowest of three runs against the fastest baseline:
    # 98/(2 x 75) = .65
    answer = advise({1: [98, 100, 102], 2: [60, 62, 75]})
    assert (chosen(answer), answer.basis) == (1, "interval")
    assert why_not(answer, 2) == snapshot
    assert "interval" not in answer.reason
    assert chosen(advise({1: [98, 100, 102], 2: [60, 62, 63]})) == 2


def test_counts_with_too_few_runs_are_named(snapshot):
    answer = advise({1: [98, 100, 102], 2: [50, 51, 52], 4: [26, 27]})
    assert (chosen(answer), answer.basis) == (4, "point")
    assert answer.reason == snapshot


def test_throughput_only_is_never_chosen_nor_runner_up(snapshot):
    loss = {1: 0.5, 2: 0.5, 4: 0.9}
    answer = advise({1: 100, 2: 50, 4: 25}, loss=loss)
    assert (chosen(answer), runner_up(answer)) == (2, 1)
    assert why_not(answer, 4) == snapshot
    assert chosen(advise({1: 100, 2: 50, 4: 25}, loss=loss, deadline_seconds=30)) is None
    assert runner_up(advise({1: 100, 4: 25}, loss=loss)) is None


def test_a_throughput_only_count_rules_out_no_larger_one(snapshot):
    # 4 nodes are slower than 2 (D = .8), but those did not train the same model
    answer = advise({1: 100, 2: 20, 4: 25}, loss={1: 0.5, 2: 0.9, 4: 0.5})
    assert chosen(answer) == 4
    assert answer.reason == snapshot
    assert answer.chosen.reason == snapshot


def test_budget_rules_out_dearer_counts(snapshot):
    usd = {1: 10, 2: 11, 4: 12, 8: 13.001}
    answer = advise(REFERENCE, usd, budget_usd_per_run=13)
    assert chosen(answer) == 4
    assert answer.chosen.reason == snapshot
    assert why_not(answer, 8) == snapshot
    assert answer.reason == snapshot
    assert chosen(advise(REFERENCE, usd, budget_usd_per_run=13.001)) == 8


def test_nothing_within_the_budget_or_no_known_cost_recommends_nothing(snapshot):
    answer = advise(REFERENCE, {1: 10, 2: 11, 4: 12, 8: 13}, budget_usd_per_run=9)
    assert (answer.chosen, answer.runner_up) == (None, None)
    assert answer.reason == snapshot
    unpriced = advise(REFERENCE, budget_usd_per_run=9)
    assert chosen(unpriced) is None
    assert why_not(unpriced, 8) == snapshot


@pytest.mark.parametrize("times", [{1: None, 2: None}, {1: 10, 2: None}, {4: [10, 11, 12]}])
def test_fewer_than_two_measured_counts_give_no_recommendation(times):
    assert recommend(rows_of(times), RecommendationConfig()) is None


def test_pareto_front_by_hand():
    times = {1: 100, 2: 60, 4: 60, 8: 20, 16: 30}
    assert pareto_front(rows_of(times, {1: 1, 2: 2, 4: 3, 8: 4, 16: 5})) == (1, 2, 8)
    assert pareto_front(rows_of(times, {1: 1, 2: 2, 4: 2, 8: 4, 16: 3.9})) == (1, 2, 4, 8, 16)


def test_pareto_front_leaves_out_what_has_no_time_no_cost_or_another_model():
    assert pareto_front(rows_of(REFERENCE)) == ()
    assert pareto_front(rows_of({1: 9, 2: 5, 4: None, 8: 2}, {1: 1, 2: 2, 4: 1})) == (1, 2)
    assert pareto_front(rows_of({1: 9, 2: 5}, {1: 1, 2: 1}, loss={1: 0.5, 2: 0.9})) == (1,)


def test_rounding_decides_no_tie_of_the_pareto_front():
    # 0.1 + 0.2 dollars and 0.3 are the same cost
    assert pareto_front(rows_of({1: 9, 2: 5}, {1: 0.3, 2: 0.1 + 0.2})) == (2,)


curves = st.dictionaries(st.integers(1, 64), st.floats(0.01, 1e5), min_size=2, max_size=7)
goals_with_or_without_deadline = st.builds(
    RecommendationConfig,
    deadline_seconds=st.none() | st.floats(0.01, 1e5),
    min_efficiency=st.floats(0.1, 1),
)


def counts(answer: Recommendation) -> tuple[object, ...]:
    return chosen(answer), runner_up(answer), [choice.nodes for choice in answer.rejected]


@given(curves, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_change_the_efficient_count(times, factor):
    scaled = advise({nodes: seconds * factor for nodes, seconds in times.items()})
    assert counts(scaled) == counts(advise(times))


@given(curves, goals_with_or_without_deadline, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(times, goals, generator: random.Random):
    rows = list(rows_of(times, times))
    expected = recommend(rows, goals), pareto_front(rows)
    generator.shuffle(rows)
    assert (recommend(rows, goals), pareto_front(rows)) == expected


@given(curves, goals_with_or_without_deadline)
def test_chosen_and_rejected_are_the_measured_counts(times, goals):
    answer = recommend(rows_of(times), goals)
    named = [choice.nodes for choice in answer.rejected] + (
        [answer.chosen.nodes] if answer.chosen else []
    )
    assert sorted(named) == sorted(times)
    assert answer.runner_up is None or answer.runner_up.nodes in set(times) - {chosen(answer)}
    assert all(choice.reason for choice in answer.rejected)


cheap_and_fast = st.dictionaries(
    st.integers(1, 64), st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12
)


@given(cheap_and_fast)
def test_pareto_members_are_not_dominated_and_all_others_are(points):
    rows = rows_of(
        {n: float(p[0]) for n, p in points.items()}, {n: float(p[1]) for n, p in points.items()}
    )
    front = pareto_front(rows)
    for nodes, (seconds, usd) in points.items():
        beaten = any(
            t <= seconds and c <= usd and (t < seconds or c < usd) for t, c in points.values()
        )
        assert (nodes in front) is not beaten


CENT_A_NODE_SECOND = Price(instance_type="ml.m5.large", usd_per_hour=36)


def pooled(nodes: int, seconds: float, retained: float) -> JobOutcome:
    """Return a run of that length, after which its warm pool is kept for the retained seconds."""
    return JobOutcome(
        nodes=nodes,
        repeat=1,
        attempt=1,
        job_name=f"n{nodes}",
        status="Completed",
        platform_kind="aws",
        clocks=Clocks(train_seconds=seconds, billable_seconds=seconds),
        train_clock="program",
        retained_billable_seconds=retained,
    )


def test_the_warm_pool_counts_into_budget_and_price(snapshot):
    rows = summarise([pooled(1, 100, 0), pooled(2, 50, 100)], CENT_A_NODE_SECOND)
    assert (rows[1].costs.run_usd, rows[1].costs.total_usd) == pytest.approx((1.0, 3.0))
    assert cost_change(rows[1], rows[0]) == snapshot
    assert pareto_front(rows) == (1, 2)
    answer = recommend(rows, RecommendationConfig(budget_usd_per_run=2))
    assert answer is not None and chosen(answer) == 1
    assert why_not(answer, 2) == snapshot
    late = recommend(rows, RecommendationConfig(deadline_seconds=200))
    assert late is not None and late.deadline_clock == "train"
    assert why_not(late, 2) == snapshot


def test_the_warm_pool_can_take_a_count_off_the_pareto_front():
    # Without its pool 2 nodes cost 0.90 against 1.00 USD and are faster; with it 2.90, and 3 nodes
    # beat them.
    def front(retained: float) -> tuple[int, ...]:
        outcomes = [pooled(1, 100, 0), pooled(2, 45, retained), pooled(3, 40, 0)]
        return pareto_front(summarise(outcomes, CENT_A_NODE_SECOND))

    assert front(retained=100) == (1, 3)
    assert front(retained=0) == (2, 3)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=12))
def test_the_first_count_that_is_as_fast_is_named(seconds):
    answer = advise({nodes: float(each) for nodes, each in enumerate(seconds, start=1)})
    for choice in answer.rejected:
        earlier = [
            n
            for n, each in enumerate(seconds, start=1)
            if n < choice.nodes and each <= seconds[choice.nodes - 1]
        ]
        is_slower = bool(earlier) and choice.nodes > 1
        assert ("faster than" in choice.reason) == is_slower
        if is_slower:
            assert f" than {nodes_text(earlier[0])}" in choice.reason


@pytest.mark.parametrize("deadline", [None, 60.0])
def test_work_grows_with_the_counts_and_not_with_their_pairs(monkeypatch, deadline):
    rows = rows_of({n: 100 / n + 1 for n in range(1, 301)}, {n: 1.0 + n for n in range(1, 301)})
    calls = []

    def count(number: float) -> float:
        calls.append(number)
        return number

    for module in (counts_module, deadline_module, recommend_module, verdicts_module):
        monkeypatch.setattr(module, "rounded", count)
    recommend(rows, RecommendationConfig(deadline_seconds=deadline))
    pareto_front(rows)
    assert len(calls) < 12 * 300


def costs_of(each: Mapping[int, Sequence[float | None]], **changes: Any) -> list[JobOutcome]:
    """Return rows of {nodes: cost of each of its runs, negative if failed}."""
    return [
        JobOutcome(
            nodes=nodes,
            repeat=repeat,
            attempt=1,
            job_name=f"n{nodes}-{repeat}",
            status="Failed" if usd is not None and usd < 0 else "Completed",
            platform_kind="measured",
            is_given=True,
            clocks=Clocks(train_seconds=None if usd is not None and usd < 0 else 100 / nodes),
            train_clock="measured",
            given_cost_usd=None if usd is None else abs(usd),
            **changes,
        )
        for nodes, costs in each.items()
        for repeat, usd in enumerate(costs, start=1)
    ]


def test_the_budget_is_held_by_the_next_run_and_not_by_the_median(snapshot):
    # The next run of 2 nodes: exp(2.3951 + 2.920 x .0912 x sqrt(4/3)) = $14.92
    rows = summarise(costs_of({1: [10, 10, 10], 2: [10, 11, 12]}))
    assert rows[1].cost_spread.next_run_usd == pytest.approx(14.92, abs=0.01)
    # exp(2.3951 ± 4.303 x .0912 / sqrt 3)
    interval = rows[1].cost_spread.interval
    assert (interval.low, interval.high) == pytest.approx((8.746, 13.758), abs=0.001)
    answer = recommend(rows, RecommendationConfig(budget_usd_per_run=12.5))
    assert answer is not None and (chosen(answer), answer.not_ruled_out) == (1, (2,))
    assert why_not(answer, 2) == snapshot
    assert chosen(recommend(rows, RecommendationConfig(budget_usd_per_run=15))) == 2


def test_what_a_result_costs_counts_the_failed_attempts():
    rows = summarise(costs_of({1: [10, -6, 10, 10], 2: [None, 5], 4: [-3]}))
    assert rows[0].per_result.result.usd == 12
    assert [row.per_result for row in rows[1:]] == [None, None]
    assert rows[1].cost_spread.next_run_usd is None
    assert summarise(costs_of({1: [0, 0, 0]}))[0].cost_spread.next_run_usd is None
