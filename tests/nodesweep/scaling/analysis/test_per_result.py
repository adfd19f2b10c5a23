"""A count's cost and time are those of a finished result, including the failures before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nodesweep.configs.models import RecommendationConfig, ReportConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.cost import CostSpread
from nodesweep.scaling.analysis.hour_value import hour_value_ranges
from nodesweep.scaling.analysis.measured_count import cost_change, node_hours_per_result
from nodesweep.scaling.analysis.per_result import (
    Amounts,
    PerResult,
    expected,
    max_failures,
    next_result_bound,
    per_result,
    share_interval,
)
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.recommend import pareto_front, recommend
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report import analyse
from nodesweep.scaling.report.plots.cost import draw_cost
from tests.nodesweep.scaling.conftest import summarise

PRICE = Price(instance_type="ml.g4dn.xlarge", usd_per_hour=1.41)
# {nodes: (billed seconds of each completed attempt, of each failed one)}; the last 100 s of a
# completed one are not training
MOSTLY_FAILING = {1: ([4100] * 3, []), 4: ([1200] * 3, []), 8: ([580] * 3, [560] * 6)}
Attempts = Mapping[int, tuple[Sequence[float], Sequence[float | None]]]


def attempts_of(billed: Attempts, **changes: Any) -> list[JobOutcome]:
    outcomes = []
    for nodes, (completed, failed) in billed.items():
        for repeat, seconds in enumerate([*completed, *failed], start=1):
            done = repeat <= len(completed)
            train = seconds - 100 if done and seconds is not None else None
            fields: dict[str, Any] = {
                "status": "Completed" if done else "Failed",
                "reason": None if done else "AlgorithmError: NCCL timeout",
                "created_at": "2026-11-27T00:00:00+00:00",
                "clocks": Clocks(train_seconds=train, billable_seconds=seconds),
                "train_clock": "program" if done else None,
                "platform_kind": "aws",
            }
            job = f"n{nodes}-r{repeat}"
            outcomes.append(JobOutcome(nodes, repeat, 1, job, **{**fields, **changes}))
    return outcomes


def rows_of(billed: Attempts, price: Price | None = PRICE) -> tuple[SummaryRow, ...]:
    return summarise(attempts_of(billed), price)


def advise(billed: Attempts, price: Price | None = PRICE, **goals: float) -> Recommendation:
    answer = recommend(rows_of(billed, price), RecommendationConfig(**goals))
    assert answer is not None
    return answer


def chosen(answer: Recommendation) -> int | None:
    return answer.chosen and answer.chosen.nodes


def why_not(answer: Recommendation, nodes: int) -> str:
    return next(choice.reason for choice in answer.rejected if choice.nodes == nodes)


def answers(answer: Recommendation, nodes: int) -> dict[str, str]:
    judged = next(each for each in answer.judged if each.nodes == nodes)
    return {each.criterion: each.answer for each in judged.verdicts}


def test_a_count_whose_jobs_mostly_fail_is_not_the_cheapest_that_meets_a_deadline(snapshot):
    # Eight nodes: (3 x 580 + 6 x 560) / 3 = 1,700 s of 8 nodes a result, $5.33; four: $1.88.
    answer = advise(MOSTLY_FAILING, deadline_seconds=1500)
    assert chosen(answer) == 4
    assert answers(answer, 8) == {"completes": "undecided", "deadline": "fail"}
    assert why_not(answer, 8) == snapshot
    assert answer.reason == snapshot


def test_the_headline_names_the_attempts_and_the_cost_of_a_result(make_report, snapshot):
    report = make_report(attempts_of(MOSTLY_FAILING), price=PRICE)
    assert report.headline == snapshot
    few = {**MOSTLY_FAILING, 8: ([580] * 20, [560])}
    assert make_report(attempts_of(few), price=PRICE).headline == snapshot
    base = {1: ([400] * 20, [300]), 2: ([390] * 3, [])}
    assert make_report(attempts_of(base), price=PRICE).headline == snapshot


def test_the_largest_efficient_count_is_undecided_until_its_jobs_are_shown_to_complete(snapshot):
    answer = advise(MOSTLY_FAILING)
    assert (chosen(answer), answer.not_ruled_out) == (4, (8,))
    assert answers(answer, 8) == {
        "completes": "undecided",
        "efficiency": "pass",
        "doubling_ratio": "pass",
        "faster": "undecided",
    }
    assert answer.reason == snapshot
    assert why_not(answer, 8) == snapshot


@pytest.mark.parametrize(
    ("completed", "failed", "expected_answer"),
    [
        (3, 1, "undecided"),
        (4, 1, "undecided"),
        (5, 1, "pass"),
        (6, 1, "pass"),
        (20, 1, "pass"),
        (30, 30, "undecided"),
        (3, 6, "undecided"),
        (3, 9, "fail"),
        (1, 11, "fail"),
    ],
)
def test_a_count_completes_if_its_interval_is_on_one_side_of_half(
    completed, failed, expected_answer, snapshot
):
    answer = advise({1: ([4100] * 3, []), 8: ([580] * completed, [560] * failed)})
    assert answers(answer, 8)["completes"] == expected_answer
    assert chosen(answer) == (8 if expected_answer == "pass" else 1)
    verdict = next(v for v in answer.judged[1].verdicts if v.criterion == "completes")
    assert verdict.value == completed / (completed + failed)
    assert (verdict.reason, [each.runs for each in verdict.more_runs]) == snapshot


def test_two_failures_in_a_hundred_attempts_change_little():
    times = {1: ([4100] * 3, []), 8: ([580] * 98, [560] * 2)}
    answer = advise(times, deadline_seconds=600, budget_usd_per_run=2)
    assert chosen(answer) == 8
    assert rows_of(times)[1].per_result.result.usd == pytest.approx(
        8 * (98 * 580 + 2 * 560) / 98 * 1.41 / 3600
    )


def test_a_budget_is_held_by_the_results_cost(snapshot):
    billed = {1: ([4100] * 3, []), 8: ([580] * 20, [560] * 10)}
    # A run at 8 nodes costs $1.82, a result $2.69, and 19 of 20 cost up to two failures more
    assert chosen(advise(billed, budget_usd_per_run=2)) == 1
    assert why_not(advise(billed, budget_usd_per_run=2), 8) == snapshot
    answer = advise(billed, budget_usd_per_run=4)
    assert (chosen(answer), answer.not_ruled_out) == (1, (8,))
    assert why_not(answer, 8) == snapshot
    assert chosen(advise(billed, budget_usd_per_run=8)) == 8


def test_failures_make_a_deadline_uncertain(snapshot):
    billed = {1: ([4100] * 3, []), 8: ([580, 590, 600] * 7, [560])}
    answer = advise(billed, deadline_seconds=600)
    assert (chosen(answer), answer.not_ruled_out) == (None, (8,))
    assert why_not(answer, 8) == snapshot
    # 1 of 22 fails: more than 5% at any number of runs that is worth its cost
    assert answer.judged[1].more_runs == ()
    assert chosen(advise(billed, deadline_seconds=1100)) == 8
    # After a seventh run 19 of 20 results have at most one failure: 500 + 560 s
    soon = advise({**billed, 8: ([580, 590, 600] * 2, [560])}, deadline_seconds=1100)
    assert [(each.nodes, each.runs) for each in soon.judged[1].more_runs] == [(8, 1)]


def test_waiting_counts_the_failed_attempts_from_submission_to_end():
    billed = {1: ([4100] * 3, []), 2: ([2100] * 20, [1000])}
    waits = [
        replace(each, clocks=each.clocks.model_copy(update=_waiting(each)))
        for each in attempts_of(billed)
    ]
    rows = summarise(waits, PRICE)
    assert rows[1].per_result.failed_attempt.submit_to_end_seconds == 1300
    assert rows[1].per_result.result.submit_to_end_seconds == 2400 + 1300 / 20
    answer = recommend(rows, RecommendationConfig(deadline_seconds=2450))
    assert (answer.deadline_clock, answers(answer, 2)["deadline"]) == ("submit_to_end", "fail")


def _waiting(outcome: JobOutcome) -> dict[str, float]:
    return {"submit_to_end_seconds": (outcome.clocks.billable_seconds or 0) + 300}


def test_without_costs_the_node_time_of_a_result_decides(snapshot):
    billed = {1: ([4100] * 3, []), 4: ([1250] * 3, []), 8: ([580] * 20, [560] * 10)}
    answer = advise(billed, None, deadline_seconds=4000)
    # 8 x (480 + 280) = 6,080 node-seconds against 4,600 at 4 nodes and 4,000 at 1
    assert chosen(answer) == 1
    assert [why_not(answer, nodes) for nodes in (4, 8)] == snapshot
    assert answer.reason == snapshot


def test_a_dearer_result_is_off_the_front():
    assert pareto_front(rows_of({1: ([4100], []), 4: ([1200], []), 8: ([580], [])})) == (1, 8)
    assert pareto_front(rows_of(MOSTLY_FAILING)) == (1, 4)


def test_the_nearest_count_within_the_deadline_names_its_failures(snapshot):
    answer = advise({1: ([4100] * 3, []), 8: ([580] * 3, [60] * 6)}, deadline_seconds=1200)
    assert (chosen(answer), answer.not_ruled_out) == (None, (8,))
    assert answer.reason == snapshot


def test_a_baseline_with_a_failure_remains_unless_it_mostly_fails(snapshot):
    answer = advise({1: ([400] * 3, [300]), 2: ([390] * 3, [])})
    assert chosen(answer) == 1
    assert answer.chosen.reason == snapshot
    none = advise({1: ([400] * 3, [300] * 12), 2: ([390] * 3, [])})
    assert chosen(none) is None
    assert none.reason == snapshot


def test_a_designs_own_answers_do_not_decide_once_attempts_have_failed():
    def own(measured: Any, goals: Any) -> Recommendation:
        raise AssertionError("it does not know of failed attempts")

    assert chosen(recommend(rows_of(MOSTLY_FAILING), RecommendationConfig(), own)) == 4


def counted(**changes: Any) -> PerResult | None:
    [done] = attempts_of({8: ([580], [])})
    [lost] = attempts_of({8: ([], [560])}, **changes)
    return summarise([done, lost], PRICE)[0].per_result


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "Failed"},
        {"reason": "InternalServerError: try again"},
        {"reason": "CapacityError: no instances"},
        {"status": "Stopped", "reason": "MaxRuntimeExceeded: the job reached its limit of 560 s"},
        {"created_at": None, "is_given": True},
    ],
)
def test_an_attempt_that_the_job_or_the_platform_failed_counts(changes):
    [done] = attempts_of({8: ([580], [])})
    [lost] = attempts_of({8: ([], [560])}, **changes)
    per = summarise([done, lost], PRICE)[0].per_result
    assert (per.completed, per.failed, per.failed_attempt.train_seconds) == (1, 1, 560)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "Stopped", "reason": "stopped on request"},
        {"status": "Stopped", "reason": None},
        {"created_at": None, "reason": "sweep.budget_usd: the sweep may cost $5"},
        {"spot": True},
        {"status": "Completed", "reason": None},
    ],
)
def test_a_stop_a_refusal_a_spot_attempt_and_a_repeat_do_not_count(changes):
    assert counted(**changes) is None


def test_where_no_attempt_failed_or_none_completed_nothing_is_expected():
    rows = rows_of({1: ([4100], []), 2: ([], [500])})
    assert [row.per_result for row in rows] == [None, None]
    assert "per_result" not in rows[0].model_dump()
    assert expected(5.0, None, "usd") == next_result_bound(5.0, None, "usd") == 5.0


def test_an_unknown_failed_attempt_counts_as_a_completed_run():
    per = rows_of({1: ([4100], []), 8: ([580] * 2, [None])})[1].per_result
    assert per.failed_attempt.usd == pytest.approx(8 * 580 * 1.41 / 3600)
    assert per.failed_attempt.train_seconds == 480
    assert per.failed_attempt.submit_to_end_seconds is None
    assert per.result.usd == pytest.approx(1.5 * 8 * 580 * 1.41 / 3600)


def test_a_failed_row_of_a_table_without_billed_time_took_its_train_time():
    done, lost = attempts_of({8: ([580], [None])}, platform_kind="measured")
    lost = replace(lost, clocks=Clocks(train_seconds=18.5))
    per = summarise([done, lost], None)[0].per_result
    assert (per.failed_attempt.train_seconds, per.result.train_seconds) == (18.5, 498.5)


def test_an_attempt_that_got_no_instances_costs_nothing():
    changes = {"phases": {"Starting": 900.0}, "clocks": Clocks(submit_to_end_seconds=900)}
    per = counted(reason="CapacityError: none left", **changes)
    assert (per.failed_attempt.usd, per.failed_attempt.train_seconds) == (0, 0)
    trained = counted(phases={"Starting": 60.0, "Training": 400.0})
    assert trained.failed_attempt.train_seconds == 400


def test_a_rate_has_no_seconds_to_lose():
    outcomes = attempts_of({8: ([101], [])}, train_clock="throughput")
    outcomes += attempts_of({8: ([], [560])})
    per = summarise(outcomes, PRICE)[0].per_result
    assert (per.failed_attempt.train_seconds, per.result.train_seconds) == (1, 2)


def test_a_failed_probe_counts_as_a_whole_run(probes):
    done = probes([(1, 1), (2, 1)])
    lost = replace(done[1], status="Failed", created_at="2026-11-27", repeat=2, projection=None)
    per = summarise([*done, lost], PRICE)[1].per_result
    assert per.failed_attempt.train_seconds == done[1].clocks.train_seconds
    assert per.result.usd == pytest.approx(2 * per.failed_attempt.usd)


def test_contended_times_and_failed_attempts_are_judged_together():
    outcomes = [
        replace(each, utilisation={"attained_percent": 90.0}) if each.nodes == 1 else each
        for each in attempts_of({1: ([4100] * 3, []), 8: ([580] * 20, [560] * 10)})
    ]
    answer = recommend(summarise(outcomes, PRICE), RecommendationConfig(budget_usd_per_run=2))
    assert answers(answer, 8)["budget"] == "fail"


def test_the_cost_plot_shows_what_a_result_takes(make_report):
    drawing = draw_cost(make_report(attempts_of(MOSTLY_FAILING), price=PRICE))
    assert drawing.numbers.split("; ")[2] == "8 nodes: 26 min 40 s, run cost $5.33"
    assert "failed attempts included" in drawing.caption
    unpriced = draw_cost(make_report(attempts_of(MOSTLY_FAILING)))
    assert unpriced.numbers.split("; ")[2] == "8 nodes: 26 min 40 s, node-hours (N x T) 3.56"


def test_the_interval_is_that_of_jeffreys():
    # Quantiles of Beta(3.5, 6.5) and, by symmetry, of Beta(6.5, 3.5)
    share = share_interval(3, 6)
    assert (share.level, share.low, share.high) == (0.9, *share_of_3_in_9)
    mirrored = share_interval(6, 3)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - share.high, 1 - share.low))


share_of_3_in_9 = (pytest.approx(0.1317, abs=1e-4), pytest.approx(0.6040, abs=1e-4))


def test_failures_before_the_next_result_by_hand():
    # Beta(3.5, 1.5): more than 2 with .3 x 2.5/6 x 3.5/7 = .0625, more than 3 with 4.5/8 of that
    assert max_failures(3, 1) == 3
    # Beta(98.5, 2.5): more than none with 2.5/101
    assert max_failures(98, 2) == 0
    assert max_failures(1, 1000) > 1000


counts = st.integers(1, 40)


@given(counts, counts, st.floats(0.1, 1e6), st.floats(0, 1e6))
def test_equal_attempts_cost_all_of_them_over_the_completed_ones(completed, failed, run, lost):
    attempts = [(each, run) for each in attempts_of({2: ([200] * completed, [])})]
    attempts += [(each, lost) for each in attempts_of({2: ([], [100] * failed)})]
    whole = Amounts(usd=run, train_seconds=100, submit_to_end_seconds=None)
    per = per_result(attempts, whole, "program")
    assert per.result.usd == pytest.approx((completed * run + failed * lost) / completed)
    assert per.result.submit_to_end_seconds is None
    assert per.completed_share.contains(completed / (completed + failed))
    bounds = per.interval(run, run, "usd")
    assert bounds.low <= per.result.usd * (1 + 1e-9) and per.result.usd <= bounds.high * (1 + 1e-9)
    assert next_result_bound(run, per, "usd") >= per.result.usd * (1 - 1e-9)


def test_an_older_report_with_the_replaced_cost_is_read():
    old = {"interval": None, "next_run_usd": 2.0, "usd_per_completed_run": 5.32}
    assert CostSpread.model_validate(old).next_run_usd == 2.0
    with pytest.raises(ValidationError):
        CostSpread.model_validate("damaged")


def test_the_value_of_an_hour_counts_failed_attempts_too() -> None:
    # at $20 an hour 8 nodes' runs cost $1.82 + $2.67 to 4 nodes' $1.88 + $6.11, their results more
    sound = advise({**MOSTLY_FAILING, 8: ([580] * 3, [])}, hour_value_usd=20)
    failing = advise(MOSTLY_FAILING, hour_value_usd=20)
    assert (chosen(sound), chosen(failing)) == (8, 4)
    assert "3 of 9 attempts completed" in why_not(failing, 8)
    # 1 of 4 attempts fails, as far as is known: the interval of the total is that of a result
    some = advise({**MOSTLY_FAILING, 8: ([580] * 12, [560] * 4)}, hour_value_usd=20)
    totals = {
        each.nodes: verdict
        for each in some.judged
        for verdict in each.verdicts
        if verdict.criterion == "hour_value"
    }
    assert chosen(some) == 8
    assert totals[8].interval is not None
    assert totals[8].interval.high > totals[8].value


def headline_at_an_hour(billed: Attempts, usd: float) -> str:
    rules = ReportConfig(recommendation=RecommendationConfig(hour_value_usd=usd))
    made = datetime(2026, 11, 27, tzinfo=UTC)
    return analyse("s", None, None, attempts_of(billed), PRICE, {}, made, rules).headline


def test_a_range_of_hour_values_does_not_contradict_the_value_that_was_asked_about() -> None:
    # by medians 2 nodes are better at $50, but 1 of their 4 attempts failed
    billed = {1: ([1100] * 3, []), 2: ([605, 610, 615], [100])}
    [least, most] = hour_value_ranges(rows_of(billed))
    assert (least.nodes, most.nodes, most.from_usd < 50) == (1, 2, True)
    assert chosen(advise(billed, hour_value_usd=50)) == 1
    told = headline_at_an_hour(billed, 50)
    assert "at the given value of an hour" in told
    assert "if an hour is worth" not in told


def test_no_hour_value_makes_a_count_the_best_at_which_attempts_mostly_fail() -> None:
    billed = {1: ([4100] * 3, []), 4: ([1200] * 3, []), 8: ([580] * 3, [10] * 40)}
    assert [each.nodes for each in hour_value_ranges(rows_of(billed))] == [1, 4]
    assert "if an hour is worth more than" in headline_at_an_hour(billed, 1000)


def test_an_hour_value_names_the_attempts_if_no_count_completes_enough() -> None:
    billed = {1: ([4100], [10] * 40), 4: ([1200], [10] * 40)}
    answer = advise(billed, hour_value_usd=50)
    assert (chosen(answer), answer.rule, answer.basis) == (None, "hour_value", "point")
    least = "No measured node count is shown to complete at least half of its attempts"
    assert answer.reason.startswith(f"{least};")
    assert hour_value_ranges(rows_of(billed)) == ()
    both = advise(billed, hour_value_usd=50, budget_usd_per_run=1).reason
    assert both.startswith(
        "No measured node count is shown to cost at most the budget of $1.00 and to complete at "
        "least half of its attempts;"
    )


def test_one_run_and_a_failure_are_judged_by_the_values_alone() -> None:
    answer = advise({1: ([4100], [100]), 4: ([1200], [50])}, hour_value_usd=5)
    assert answer.basis == "point"


def test_the_nearest_count_to_a_deadline_is_not_called_the_fastest() -> None:
    # 1 of 4 attempts failed at both: 13.6 min at most on 2 nodes, 14.5 min on 4
    billed = {1: ([1100] * 3, []), 2: ([610, 611, 612], [100]), 4: ([360, 361, 363], [300])}
    told = advise(billed, deadline_seconds=600).reason
    assert "at the node count nearest to passing, 2 nodes, train time per result" in told


def test_of_counts_that_miss_a_deadline_the_fastest_is_named() -> None:
    # the next result may take longer on 4 nodes than on 1, but it is expected sooner
    billed = {1: ([209] * 3, []), 4: ([153, 154, 155], [60])}
    assert "at the fastest, 4 nodes" in advise(billed, deadline_seconds=30).reason


def test_contended_attempts_cost_what_was_measured() -> None:
    billed = {1: ([4100] * 3, []), 4: ([1200] * 3, []), 8: ([690, 700, 710], [60])}
    rows = tuple(
        row.model_copy(update={"flags": ("starved",), "least_time_share": 0.8})
        if row.nodes == 8
        else row
        for row in rows_of(billed)
    )
    measured = rows[-1].per_result
    assert measured is not None and measured.result.usd == pytest.approx(2.256, rel=1e-3)
    answer = recommend(rows, RecommendationConfig())
    assert answer is not None
    assert "$2.26 per result" in why_not(answer, 8)
    # 0.8 of the completed run's 2.19 USD and all of the failed attempt's share, 0.06
    dear = recommend(rows, RecommendationConfig(budget_usd_per_run=2))
    assert dear is not None
    assert "cost per result $1.82–$2.26 may or may not meet $2.00" in dear.reason


def test_node_hours_are_those_of_a_result_where_they_are_the_cost() -> None:
    price = Price(instance_type="fat", usd_per_hour=None, unit="node-hours", reason="none is set")
    base, _, row = rows_of(MOSTLY_FAILING, price)
    # 580 s and 6/3 failed attempts of 560 s, to 4,100 s on one node
    assert node_hours_per_result(row) == pytest.approx(8 * 1700 / 3600)
    assert cost_change(row, base) == "232% more node-hours per result"
    assert row.per_result is not None
    lost = row.per_result.failed_attempt.model_copy(update={"node_hours": None})
    older = row.per_result.model_copy(update={"failed_attempt": lost})
    older_row = row.model_copy(update={"per_result": older})
    assert node_hours_per_result(older_row) == row.costs.node_hours
    assert "node_hours" not in lost.model_dump()
