"""Predictions from a report: numbers by hand, the recommendation, and every refusal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.step_budget import WholeExchange
from nodesweep.scaling.report.predictions.inputs import NotPredictable
from nodesweep.scaling.report.predictions.predict import predict
from nodesweep.scaling.report.predictions.render import (
    prediction_rows,
    render_prediction_terminal,
)
from tests.nodesweep.scaling.report.predictions.conftest import PRICE

WEAK = {1: (100.0, 0.0), 2: (50.0, 2.0), 4: (25.0, 1.5)}
STRONG = {1: (100.0, 0.0), 2: (50.5, 0.4), 4: (26.0, 0.6)}


def shown(prediction):
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(render_prediction_terminal(prediction))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def term(count, name):
    return next(each for each in count.terms if each.name == name)


def test_the_next_doubling_by_hand(budget_report, snapshot):
    """At 8 nodes a run has 2.5 steps of 5 s compute, and 1.75 x 0.4 s of communication a step."""
    prediction = predict(budget_report())
    (count,) = prediction.counts
    assert count.nodes == 8
    assert term(count, "compute").seconds == pytest.approx(12.5)
    low, high = (getattr(term(count, "communication"), end) for end in ("low", "high"))
    assert low - 1e-6 <= 2.5 * 0.35 <= high
    assert term(count, "fixed").low == pytest.approx(1.0)
    assert count.seconds == pytest.approx(12.5 + 2.5 * 0.35 + 1.0)
    assert count.interval.low < count.seconds < count.interval.high
    # 30 s of start-up, 8 nodes at $0.001 per second
    assert count.usd == pytest.approx(8 * (count.seconds + 30) / 1000, rel=1e-4)
    assert count.usd_interval.low < count.usd < count.usd_interval.high
    assert [each.nodes for each in prediction.judged] == [1, 2, 4, 8]
    assert shown(prediction) == snapshot


def test_timed_all_reduces_narrow_communication_and_are_its_source(budget_report):
    report = budget_report(WEAK)
    whole = WholeExchange(latency_seconds=0.1, transfer_seconds=1.5, last_bucket_share=0.5)
    counts = tuple(
        each.model_copy(update={"exchange": None if each.nodes == 1 else whole})
        for each in report.step_budget.counts
    )
    budget = report.step_budget.model_copy(update={"counts": counts})
    (blind,) = predict(report).counts
    (timed,) = predict(report.model_copy(update={"step_budget": budget})).counts
    found, before = (term(each, "communication") for each in (timed, blind))
    assert found.high < before.high
    assert found.source == (
        "bounds only, from 2 and 4 nodes and timed all-reduces: they don't show how latency "
        "grows, nor how much slower an exchange is in a step"
    )
    assert "all-reduces" not in before.source


def test_a_fixed_global_batch_leaves_compute_open_until_its_batch_is_measured(
    budget_report, snapshot
):
    report = budget_report(STRONG, batch=64)
    open_ = predict(report)
    compute = term(open_.counts[0], "compute")
    assert compute.seconds is None
    # 50.5 s and 26 s at 32 and 16 samples: at least 26 - 24.5/2 at 8
    assert compute.low == pytest.approx(13.75) and compute.high == pytest.approx(26.0)
    assert open_.next_job.nodes == 1 and open_.next_job.global_batch_size == 8
    assert shown(open_) == snapshot
    # 40 steps of 8 samples in 110 s; the sweep's runs make 5 steps of 64
    alone = budget_report({1: (110.0, 0.0)}, batch=8, sweep_id="alone-20260102030405-0a1b2c3d")
    covered = predict(report, batches=[alone])
    assert term(covered.counts[0], "compute").seconds == pytest.approx(13.75)
    width = [
        each.counts[0].interval.high - each.counts[0].interval.low for each in (covered, open_)
    ]
    assert width[0] < width[1]
    assert "measured at 8 samples" in term(covered.counts[0], "compute").source


def with_passes(outcome):
    """Return a run on one node that then timed batches of 16 and 8 for 12 s."""
    rounds = {64: [10.0] * 5, 16: [2.6] * 5, 8: [1.4] * 5}
    timed = {
        "passes": [{"samples": n, "seconds": each} for n, each in rounds.items()],
        "passes_seconds": 12.0,
        "steps": 10,
        "batch": {"global_batch_size": 64},
    }
    clocks = outcome.clocks.model_copy(
        update={"billable_seconds": outcome.clocks.billable_seconds + 12.0}
    )
    return replace(outcome, metrics=outcome.metrics | timed, clocks=clocks)


def test_timed_passes_measure_compute_at_smaller_batches(
    make_budget_outcomes, make_report, snapshot
):
    plain = make_budget_outcomes({1: (100.0, 0.0), 2: (50.5, 0.4)}, batch=64)
    runs = [with_passes(each) if each.nodes == 1 else each for each in plain]
    reports = [make_report(each, price=PRICE) for each in (plain, runs)]
    bounded, timed = (predict(report, [4, 8]) for report in reports)
    assert reports[0].summary[0].costs == reports[1].summary[0].costs
    assert [term(each, "compute").seconds for each in bounded.counts] == [None, None]
    assert [term(each, "compute").seconds for each in timed.counts] == pytest.approx(
        [26.0, 14.0], rel=1e-3
    )
    for before, after in zip(bounded.counts, timed.counts, strict=True):
        assert after.interval.high - after.interval.low < before.interval.high - before.interval.low
    assert [term(each, "compute").source for each in timed.counts] == snapshot


def test_no_job_repeats_timed_passes_whose_slowdown_by_the_exchange_is_unknown(
    make_budget_outcomes, make_report
):
    plain = make_budget_outcomes({1: (100.0, 0.0), 2: (58.0, 0.0)}, batch=64)
    runs = [with_passes(each) if each.nodes == 1 else each for each in plain]
    bounded, timed = (predict(make_report(each, price=PRICE), [4]) for each in (plain, runs))
    for prediction in (bounded, timed):
        compute = term(prediction.counts[0], "compute")
        assert compute.seconds is None and compute.low < compute.high
    assert (bounded.next_job.nodes, timed.next_job.nodes) == (1, 4)


def test_a_predicted_count_is_recommended_and_confirmed(budget_report, snapshot):
    prediction = predict(budget_report({1: (100.0, 0.0), 2: (50.0, 0.2), 4: (25.0, 0.15)}))
    assert prediction.chosen == prediction.next_job.nodes == 8
    assert prediction.headline == snapshot


def test_a_warm_pool_costs_as_much_per_node_as_at_the_largest_measured_count(budget_report):
    report = budget_report()
    without = predict(report).counts[0]
    rows = [
        row.model_copy(
            update={"costs": row.costs.model_copy(update={"warm_pool_usd": 0.5 * row.nodes})}
        )
        for row in report.summary
    ]
    (count,) = predict(report.model_copy(update={"summary": tuple(rows)})).counts
    assert count.usd == pytest.approx(without.usd + 4.0)
    assert count.usd_interval.low == pytest.approx(without.usd_interval.low + 4.0)


def test_what_the_report_withholds_is_not_recommended(budget_report):
    report = budget_report()
    why = "Undecided between 2 and 4 nodes: runs got slower during the sweep."
    withheld = report.recommendation.model_copy(update={"chosen": None, "reason": why})
    with pytest.raises(NotPredictable, match="withholds its recommendation: Undecided between"):
        predict(report.model_copy(update={"recommendation": withheld}))
    for own in (None, withheld.model_copy(update={"basis": "sequential"})):
        assert predict(report.model_copy(update={"recommendation": own})).chosen is not None


def test_a_report_that_can_recommend_nothing_is_predicted_from(budget_report):
    report = budget_report()
    config = {"report": {"recommendation": {"budget_usd_per_run": 1e-6}}}
    none = report.recommendation.model_copy(update={"chosen": None})
    found = predict(report.model_copy(update={"recommendation": none, "config": config}))
    assert found.chosen is None


def test_a_count_that_fails_needs_no_job(budget_report, snapshot):
    slow = {1: (100.0, 0.0), 2: (50.0, 20.0), 4: (25.0, 30.0)}
    prediction = predict(budget_report(slow))
    assert prediction.chosen == 1 and prediction.next_job is None
    assert prediction.headline == snapshot


def test_no_count_may_be_recommended_at_all(budget_report, make_config, snapshot):
    config = make_config(report={"recommendation": {"deadline_seconds": 1.0}})
    prediction = predict(budget_report(config=config))
    assert (prediction.chosen, prediction.next_job) == (None, None)
    assert prediction.headline == snapshot


def test_single_runs_have_times_but_no_interval_and_no_recommendation(budget_report, snapshot):
    prediction = predict(budget_report(noise=(1.0,)))
    (count,) = prediction.counts
    assert (count.interval, count.usd_interval, prediction.judged) == (None, None, ())
    assert prediction.headline == snapshot
    assert shown(prediction) == snapshot


def test_counts_asked_for(budget_report):
    asked = predict(budget_report(), [16, 6, 8])
    assert [count.nodes for count in asked.counts] == [6, 8, 16]
    assert asked.counts[0].doubling_ratio is None
    two = {nodes: WEAK[nodes] for nodes in (1, 2)}
    assert [count.nodes for count in predict(budget_report(two)).counts] == [4, 8]


def test_a_contended_count_is_predicted_instead(budget_report):
    report = budget_report()
    last = report.summary[-1].model_copy(update={"flags": ("starved",)})
    report = report.model_copy(update={"summary": (*report.summary[:-1], last)})
    prediction = predict(report)
    assert prediction.measured_nodes == (1, 2)
    assert [each.nodes for each in prediction.judged] == [1, 2, 4, 8]


def test_without_price_or_billed_time_there_is_no_cost(budget_report):
    (count,) = predict(budget_report(price=None)).counts
    assert (count.usd, count.usd_interval) == (None, None)
    assert "–" in shown(predict(budget_report(price=None)))
    report = budget_report()
    last = report.summary[-1]
    clocks = last.clocks.model_copy(
        update={"billable": last.clocks.billable.model_copy(update={"seconds": None})}
    )
    rows = (*report.summary[:-1], last.model_copy(update={"clocks": clocks}))
    (count,) = predict(report.model_copy(update={"summary": rows})).counts
    assert (count.usd, count.usd_interval) == (None, None)


def test_node_hours_are_the_cost_where_nodes_have_no_price(budget_report):
    price = Price(instance_type="fat", usd_per_hour=None, unit="node-hours", reason="none is set")
    times = {1: (100.0, 0.0), 2: (50.0, 0.2), 4: (25.0, 0.15)}
    prediction = predict(budget_report(times, price=price))
    (count,) = prediction.counts
    # 30 s of start-up
    assert count.node_hours == pytest.approx(8 * (count.seconds + 30) / 3600, rel=1e-4)
    assert prediction.next_job.node_hours == count.node_hours
    text = f"{count.node_hours:.3g} node-hours"
    assert prediction_rows(prediction)[0][-2] == text and f", {text})" in prediction.headline
    # at a batch that was not measured, the job is its compute on one node
    job = predict(budget_report(STRONG, batch=64, price=price)).next_job
    assert job.node_hours == pytest.approx(job.seconds / 3600)


def test_waiting_is_predicted_or_within_the_communication(budget_report, make_report):
    report = budget_report(wait=0.5)
    waiting = term(predict(report).counts[0], "waiting")
    assert 0 < waiting.low <= waiting.high
    report = budget_report(wait=0.5)
    counts = tuple(
        count.model_copy(update={"parts": tuple(p for p in count.parts if p.name != "waiting")})
        for count in report.step_budget.counts
    )
    report = report.model_copy(
        update={"step_budget": report.step_budget.model_copy(update={"counts": counts})}
    )
    assert predict(report).assumes[-1].startswith("Communication includes")


def test_batches_between_those_measured(budget_report):
    report = budget_report(STRONG, batch=64)
    alone = budget_report({1: (200.0, 0.0)}, batch=4, sweep_id="alone-20260102030405-0a1b2c3d")
    source = term(predict(report, batches=[alone]).counts[0], "compute").source
    assert source.startswith("between")


def test_the_same_steps_on_more_samples(budget_report):
    """Runs of as many steps at every count: S compares samples per second."""
    report = budget_report({1: (10.0, 0.0), 2: (10.0, 0.2)})
    rows = tuple(
        row.model_copy(update={"samples_ratio": float(row.nodes)}) for row in report.summary
    )
    (count,) = predict(report.model_copy(update={"summary": rows}), [4]).counts
    assert term(count, "compute").seconds == pytest.approx(10.0)
    assert 0.8 < count.efficiency < 1.2


def changed(report, **row):
    rows = tuple(each.model_copy(update=row) for each in report.summary)
    return report.model_copy(update={"summary": rows})


def with_runs(report, by_run):
    counts = tuple(
        count.model_copy(
            update={"parts": tuple(p.model_copy(update={"by_run": by_run}) for p in count.parts)}
        )
        for count in report.step_budget.counts
    )
    return report.model_copy(
        update={"step_budget": report.step_budget.model_copy(update={"counts": counts})}
    )


def with_distribution(report, **degrees):
    return report.model_copy(update={"config": {"training": {"distribution": degrees}}})


REFUSED = {
    "no budget": lambda make: make().model_copy(update={"step_budget": None}),
    "old": lambda make: with_runs(make(), ()),
    "runs missing": lambda make: with_runs(make(), (1.0,)),
    "one count": lambda make: make({2: WEAK[2]}),
    "one node": lambda make: make({1: WEAK[1]}),
    "contended": lambda make: changed(make(), flags=("starved",)),
    "world unknown": lambda make: changed(make(), world_size=None),
    "batch unknown": lambda make: changed(make(), global_batch_size=None),
    "not all replicas": lambda make: changed(make(), world_size=3),
    "processes differ": lambda make: changed(make(), world_size=1),
    "tensor parallel": lambda make: with_distribution(make(), tensor_parallel_degree=2),
    "no policy": lambda make: (
        make({1: WEAK[1], 2: (50.0, 2.0), 4: (25.0, 1.5)}, batch=None)
        and _sizes(make(), {1: 16, 2: 32, 4: 32})
    ),
    "samples differ": lambda make: _ratios(make(), {1: 1.0, 2: 1.5, 4: 1.7}),
    "baseline without budget": lambda make: _without_count(make(), 1),
}


def _sizes(report, sizes):
    rows = tuple(
        row.model_copy(update={"global_batch_size": sizes[row.nodes]}) for row in report.summary
    )
    return report.model_copy(update={"summary": rows})


def _ratios(report, ratios):
    rows = tuple(
        row.model_copy(update={"samples_ratio": ratios[row.nodes]}) for row in report.summary
    )
    return report.model_copy(update={"summary": rows})


def _without_count(report, nodes):
    counts = tuple(each for each in report.step_budget.counts if each.nodes != nodes)
    return report.model_copy(
        update={"step_budget": report.step_budget.model_copy(update={"counts": counts})}
    )


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused(case, budget_report, snapshot):
    with pytest.raises(NotPredictable) as refused:
        predict(REFUSED[case](budget_report))
    assert str(refused.value) == snapshot


@pytest.mark.parametrize("nodes", [1, 4, 17, 0])
def test_node_counts_are_refused(nodes, budget_report, snapshot):
    with pytest.raises(NotPredictable) as refused:
        predict(budget_report(), [nodes])
    assert str(refused.value) == snapshot


def test_a_global_batch_must_divide(budget_report, snapshot):
    with pytest.raises(NotPredictable) as refused:
        predict(budget_report(STRONG, batch=64), [12])
    assert str(refused.value) == snapshot
    two = {nodes: STRONG[nodes] for nodes in (1, 2)}
    assert [each.nodes for each in predict(budget_report(two, batch=12)).counts] == [4]
    with pytest.raises(NotPredictable):
        predict(budget_report(two, batch=10))


FURTHER = {
    "another type": lambda make: make(instance_type="ml.m5.large"),
    "no budget": lambda make: make().model_copy(update={"step_budget": None}),
    "no single node": lambda make: make({2: WEAK[2]}),
    "rate unknown": lambda make: changed(make(), samples_per_second=None),
}


@pytest.mark.parametrize("case", FURTHER)
def test_a_further_report_is_refused(case, budget_report, snapshot):
    with pytest.raises(NotPredictable) as refused:
        predict(budget_report(), batches=[FURTHER[case](budget_report)])
    assert str(refused.value) == snapshot


def test_a_throughput_sweep_recommends_nothing(budget_report):
    report = changed(budget_report(), flags=("throughput_only",))
    assert predict(report).chosen != 8
