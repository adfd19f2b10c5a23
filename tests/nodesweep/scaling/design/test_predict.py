"""The predict design: its runs, its report on unmeasured counts, and its refusals."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from nodesweep.cli.commands.confirming import with_confirm
from nodesweep.scaling.design.base import Attempt
from nodesweep.scaling.design.progress import points_done, progress_of
from nodesweep.scaling.design.registry import DESIGNS
from nodesweep.scaling.outcome.projection import ProjectedPart, Projection
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.report.predictions.predict import predict
from nodesweep.scaling.report.render import render_html, render_json, render_markdown
from nodesweep.scaling.report.terminal import render_terminal
from nodesweep.scaling.trend.history import history_frame
from tests.nodesweep.scaling.report.predictions.conftest import (  # noqa: F401
    PRICE,
    budget_report,
    make_budget_outcomes,
)
from tests.nodesweep.scaling.rules.facts import facts_of

PREDICT = DESIGNS["predict"]
TIMES = {1: (100.0, 0.0), 2: (50.0, 2.0)}
AT_8 = {8: (12.5, 0.9)}


@pytest.fixture
def predict_config(make_config):
    """Return a factory of configs over 1, 2, 4 and 8 nodes, as in `predict_config(confirm=8)`."""

    def make(report=None, policy="fixed_per_replica", image="image", training=None, **sweep):
        given = {"design": "predict", "node_counts": [1, 2, 4, 8], "repeats": 3, **sweep}
        batch = {"batch": {"policy": policy, "size": 16}}
        return make_config(
            sweep=given,
            training={**batch, **(training or {})},
            report=report or {},
            image={"context": image},
        )

    return make


@pytest.fixture
def predicted(budget_report, predict_config):  # noqa: F811
    """Return a factory of reports of predict sweeps, from times by node count."""

    def make(times=TIMES, config=None, **given):
        return budget_report(times, config=config or predict_config(), **given)

    return make


def attempts(*points):
    return [Attempt(nodes, repeat, 10.0, False) for nodes, repeat in points]


def on_terminal(report):
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(render_terminal(report))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize(
    ("counts", "measured"),
    [
        ([1, 2, 4], (1, 2)),
        ([1, 2, 4, 8], (1, 2)),
        ([1, 2, 4, 8, 16], (1, 2, 4)),
        ([1, 2, 5, 12], (1, 2, 5)),
        ([2, 4, 8, 16, 32, 64], (2, 4, 8, 16)),
    ],
)
def test_the_smallest_counts_are_measured_and_the_largest_is_within_reach(
    predict_config, counts, measured
):
    sweep = predict_config(node_counts=counts).sweep
    assert sweep.measured_counts == measured
    assert sweep.most_jobs == 3 * len(measured)


def test_one_run_of_each_would_show_no_noise(predict_config):
    assert predict_config(repeats=1).sweep.arm_repeats == 2
    assert predict_config(repeats=1).sweep.most_jobs == 4


def test_a_prediction_is_confirmed_once_all_it_is_made_from_has_ended(predict_config):
    base = [(nodes, repeat) for nodes in (1, 2) for repeat in (1, 2, 3)]
    config = predict_config()
    first = PREDICT.progress(config, (), attempts())
    assert list(first.next_points) == base and "4 and 8" in first.reason
    assert PREDICT.progress(config, (), attempts(*base)).next_points == ()
    confirming = predict_config(confirm=8)
    before = PREDICT.progress(confirming, (), attempts())
    assert list(before.next_points) == base and "one run on 8 nodes" in before.reason
    then = PREDICT.progress(confirming, (), attempts(*base))
    assert then.next_points == ((8, 1),) and "8 nodes" in then.reason
    assert PREDICT.progress(confirming, (), attempts(*base, (8, 1))).next_points == ()
    often = predict_config(confirm=8, confirm_repeats=3)
    assert "then 3 runs on 8 nodes" in PREDICT.progress(often, (), attempts()).reason
    then = PREDICT.progress(often, (), attempts(*base, (8, 2)))
    assert then.next_points == ((8, 1), (8, 3))
    assert [often.sweep.may_run(8, repeat) for repeat in (1, 3, 4)] == [True, True, False]
    assert not config.sweep.may_run(8) and config.sweep.may_run(1, 3)
    assert often.sweep.most_jobs == 9


def test_the_plan_has_the_jobs_in_order_and_then_those_that_may_confirm(predict_config):
    config = predict_config(repeats=2, order="ascending")
    instance = config.node_type(config.training.instance_type)
    plan = plan_sweep(config, instance)
    assert [(point.nodes, point.repeat) for point in plan.points] == [
        (1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2),
    ]  # fmt: skip
    bounds = [
        plan_sweep(predict_config(repeats=2, **more), instance).cost_bound_usd
        for more in (
            {},
            {"confirm": 4},
            {"confirm": 8},
            {"confirm": 8, "confirm_repeats": 2},
            {"design": "full"},
        )
    ]
    assert all(less < more for less, more in pairwise(bounds))
    assert "4 and 8 nodes" in PREDICT.plan_lines(config)[0]
    assert "--confirm" not in PREDICT.plan_lines(predict_config(confirm=8))[0]


def test_only_what_is_run_needs_quota(predict_config):
    facts = facts_of(predict_config())
    assert (facts.max_nodes, facts.peak_nodes) == (2, 2)
    facts = facts_of(predict_config(confirm=8))
    assert (facts.max_nodes, facts.peak_nodes) == (8, 8)
    at_once = predict_config(confirm=8, confirm_repeats=3, max_parallel_jobs=4)
    assert facts_of(at_once).peak_nodes == 26


def test_its_cost_is_estimated_for_its_own_sweeps(predict_config, make_config):
    cost = PREDICT.estimate(predict_config(repeats=2)).cost
    assert cost.expected == pytest.approx(2 * (99 + 2 * 55) / 60)
    assert cost.most - cost.expected == pytest.approx(8 * 13.5 / 60)
    assert PREDICT.estimate(make_config()) is None


@pytest.fixture
def short_config(predict_config):
    """Return a factory of configs whose jobs end early, for the shipped program."""

    def make(**given):
        return predict_config(policy="fixed_global", image="../infra/image", **given)

    return make


def test_short_runs_cost_a_share_of_whole_ones(short_config):
    cost = PREDICT.estimate(short_config(repeats=2)).cost
    whole = 2 * (99 + 2 * 55) / 60
    assert (cost.least, cost.expected) == pytest.approx((whole * 30 / 5000, whole * 0.1))
    assert cost.most - cost.expected == pytest.approx(2 * 8 * 13.5 / 60 * 0.1)
    few = PREDICT.estimate(short_config(repeats=2, probe={"max_share": 0.001})).cost
    assert few.expected == few.least == pytest.approx(cost.least)
    most = PREDICT.estimate(short_config(repeats=2, probe={"max_steps": 50})).cost
    assert most.expected == pytest.approx(whole * 50 / 5000)


def test_the_plan_says_how_short_the_runs_are(short_config, predict_config, snapshot):
    assert PREDICT.plan_lines(short_config()) == snapshot
    own = PREDICT.plan_lines(predict_config())
    assert len(own) == 2 and "training.max_runtime_seconds" in own[1]
    assert not any("all-reduces" in line for line in PREDICT.plan_lines(short_config()))


@pytest.mark.parametrize(
    "given",
    [
        {"training": {"baseline_seconds": 60.0}},
        {"policy": "fixed_per_replica"},
        {},
        {"probe": {"max_share": 1}},
        {"image": "own"},
    ],
)
def test_what_keeps_the_runs_from_being_short_is_hinted_at(predict_config, given, snapshot):
    given = {"policy": "fixed_global", "image": "../infra/image", **given}
    assert [*PREDICT.program_hints(facts_of(predict_config(**given)))] == snapshot


def shortened(outcome, share=0.1):
    """Return the outcome as if the run had ended after a share of its time."""
    whole = outcome.clocks.train_seconds
    projection = Projection(
        train_seconds=whole, error_seconds=0.1, extra_seconds=whole * (1 - share),
        ended="max_steps", steps=10, planned_steps=100, measured_seconds=whole * share,
        parts=(ProjectedPart(name="epochs", left_out=2, seconds_each=None, error_seconds=None),),
        epochs_seen=0,
    )  # fmt: skip
    ranks = [
        {**each, "seconds": {name: share * seconds for name, seconds in each["seconds"].items()}}
        for each in outcome.metrics["budget"]
    ]
    return replace(
        outcome,
        train_clock="projected",
        train_seconds_by={"projected": whole},
        projection=projection,
        metrics={**outcome.metrics, "budget": ranks, "samples": None, "final_metric": None},
        clocks=outcome.clocks.model_copy(update={"billable_seconds": whole * share + 30}),
    )


def test_short_runs_predict_what_whole_ones_do_and_say_so(
    short_config,
    make_budget_outcomes,  # noqa: F811
    make_report,
    snapshot,
):
    outcomes = make_budget_outcomes({1: (100.0, 0.0), 2: (52.0, 2.0)}, batch=64)
    config = short_config(node_counts=[1, 2, 4], report={"recommendation": {"min_efficiency": 0.3}})
    whole, short = (
        make_report(each, price=PRICE, config=config).prediction
        for each in (outcomes, [shortened(each) for each in outcomes])
    )
    assert short.counts[0].interval.low == pytest.approx(whole.counts[0].interval.low, rel=0.05)
    assert short.counts[0].seconds == pytest.approx(whole.counts[0].seconds, rel=0.05)
    assert (whole.next_job.runs, short.next_job.runs) == (3, 3)
    assert (whole.next_job.share, short.next_job.share) == pytest.approx((1, 0.1))
    saved = whole.next_job.seconds - short.next_job.seconds
    assert short.next_job.seconds == pytest.approx(short.counts[0].seconds * 0.1)
    assert whole.next_job.usd - short.next_job.usd == pytest.approx(saved * 4 * 0.001, rel=0.05)
    report = make_report([shortened(each) for each in outcomes], price=PRICE, config=config)
    assert {point.kind for point in report.points} == {"probe"}
    assert [
        each for each in report.caveats if each.startswith(("Projected", "Not seen"))
    ] == snapshot


def test_short_runs_confirm_as_often_as_others_run(
    short_config,
    make_budget_outcomes,  # noqa: F811
    make_report,
    capsys,
):
    config = short_config(node_counts=[1, 2, 4], report={"recommendation": {"min_efficiency": 0.3}})
    times = {1: (100.0, 0.0), 2: (52.0, 2.0), 4: (27.0, 2.0)}
    outcomes = [shortened(each) for each in make_budget_outcomes(times, batch=64)]
    reports = [
        make_report(
            [each for each in outcomes if each.nodes < 4 or each.repeat <= most], config=config
        )
        for most in range(4)
    ]
    assert "next: 3 short runs on 4 nodes (each about 3" in reports[0].headline
    assert "s, 10% of T(4)) would measure T(4)" in reports[0].headline
    for measured in (0, 1, 2):  # the latter two: of a command that was cut off
        sweep = with_confirm(config, reports[measured], reports[0]).sweep
        assert (sweep.confirm, sweep.confirm_repeats) == (4, 3)
    assert "--confirm: 3 short runs on 4 nodes" in capsys.readouterr().err
    assert with_confirm(config, reports[3], reports[0]) is None
    assert "repeat the command" in capsys.readouterr().err
    levels = [
        each.interval.level
        for count in reports[3].prediction.judged[1:]
        for each in count.verdicts
        if each.criterion == "efficiency"
    ]
    assert levels == [0.9, 0.9]  # of the noise of all runs


def test_no_count_is_confirmed_more_often_than_others_run(predict_config):
    with pytest.raises(ValueError, match=r"confirm_repeats is 4; allowed: 1 to 3.*raise repeats"):
        predict_config(confirm=8, confirm_repeats=4)
    for design in ("full", "predict"):
        with pytest.raises(ValueError, match="confirm_repeats is 2, but confirm is null"):
            predict_config(design=design, confirm_repeats=2)


def test_short_runs_never_look_measured(
    short_config,
    make_budget_outcomes,  # noqa: F811
    make_report,
    snapshot,
):
    """This holds in the recommendation and in the check of a count that a short run confirmed."""
    config = short_config(node_counts=[1, 2, 4], report={"recommendation": {"min_efficiency": 0.9}})
    times = {1: (100.0, 0.0), 2: (52.0, 2.0), 4: (45.0, 4.0)}
    outcomes = [shortened(each) for each in make_budget_outcomes(times, batch=64)]
    base = make_report([each for each in outcomes if each.nodes < 4], config=config)
    assert base.prediction.headline == snapshot
    confirmed = make_report(
        [each for each in outcomes if each.nodes < 4 or each.repeat == 1], config=config
    )
    assert confirmed.prediction.headline == snapshot
    assert [each.text for each in confirmed.prediction.checked] == snapshot
    assert confirmed.prediction.assumes == snapshot
    assert base.prediction.assumes[0] == snapshot


def test_what_was_not_measured_never_looks_measured(predicted, predict_config, snapshot):
    report = predicted()
    assert [row.nodes for row in report.summary] == [1, 2]
    assert [each.nodes for each in report.prediction.counts] == [4, 8]
    assert report.recommendation is None and report.hour_values == ()
    assert report.headline == snapshot
    assert set(history_frame(report)["nodes"]) == {1, 2}
    assert points_done(predict_config(), report) == (6, 6)
    written = json.loads(render_json(report))
    assert written["recommendation"] is None
    assert [each["nodes"] for each in written["prediction"]["counts"]] == [4, 8]
    assert type(report).model_validate(written) == report
    for text in (render_markdown(report), render_html(report)):
        assert "Predicted, not measured" in text and "predicted" in text
    assert on_terminal(report) == snapshot


def test_the_headline_names_a_growing_batch_and_failed_jobs(predicted, predict_config):
    report = predicted()
    failed = report.summary[-1].model_copy(update={"n_failed": 1})
    rows = (*report.summary[:-1], failed)
    for policy, grows in (("fixed_per_replica", True), ("fixed_global", False)):
        given = report.model_copy(update={"summary": rows, "policy": policy})
        found = PREDICT.predict(predict_config(), given)
        assert "; 1 of 6 jobs did not complete; next: one run on 8 nodes" in found.headline
        assert ("throughput scaling with a batch that grows" in found.headline) == grows
        assumes = any("larger batch is assumed" in each for each in found.prediction.assumes)
        assert assumes == grows


def test_the_same_is_predicted_from_the_report_later(predicted):
    report = predicted()
    again = predict(report, [4, 8], confirming=1)
    assert again == report.prediction


def test_two_runs_of_each_are_judged_by_the_noise_of_all(predicted, predict_config):
    report = predicted(config=predict_config(repeats=2), noise=(0.99, 1.01))
    prediction = report.prediction
    assert [each.nodes for each in prediction.judged] == [1, 2, 4, 8]
    two = prediction.judged[1]
    assert all(each.interval for each in two.verdicts if each.criterion == "efficiency")
    assert "point estimates" not in prediction.headline


def test_a_confirmed_count_is_compared_with_its_prediction(
    predicted,
    predict_config,
    make_budget_outcomes,  # noqa: F811
    make_report,
    snapshot,
):
    config = predict_config(confirm=8)
    outcomes = [*make_budget_outcomes(TIMES), *make_budget_outcomes(AT_8, noise=(1.0,))]
    report = make_report(outcomes, price=PRICE, config=config)
    assert [row.nodes for row in report.summary] == [1, 2, 8]
    prediction = report.prediction
    assert [each.nodes for each in prediction.counts] == [4]
    assert [each.nodes for each in prediction.judged] == [1, 2, 4, 8]
    [check] = prediction.checked
    assert check.measured == pytest.approx((14.4,)) and check.nodes == 8
    assert check.text in on_terminal(report).replace("\n", " ")
    assert check.text == snapshot
    assert report.headline == snapshot
    low = next(each for each in prediction.judged if each.nodes == 8).verdicts
    assert all(each.interval for each in low if each.criterion == "efficiency")
    assert points_done(config, report) == (7, 7)


@pytest.mark.parametrize("seconds", [14.4, 60.0])
def test_a_confirmed_count_without_a_step_budget_is_measured_all_the_same(
    seconds,
    predict_config,
    make_budget_outcomes,  # noqa: F811
    make_report,
):
    [confirmed] = make_budget_outcomes(AT_8, noise=(1.0,))
    confirmed = replace(
        confirmed,
        metrics={name: each for name, each in confirmed.metrics.items() if name != "budget"},
        train_seconds_by={"observed": seconds},
        clocks=confirmed.clocks.model_copy(update={"train_seconds": seconds}),
    )
    report = make_report(
        [*make_budget_outcomes(TIMES), confirmed], price=PRICE, config=predict_config(confirm=8)
    )
    prediction = report.prediction
    assert [each.nodes for each in prediction.counts] == [4]
    eight = next(each for each in prediction.judged if each.nodes == 8).verdicts
    [efficiency] = [each.value for each in eight if each.criterion == "efficiency"]
    assert efficiency == pytest.approx(100 / seconds / 8)
    assert prediction.next_job is None or prediction.next_job.nodes == 4


def test_a_confirming_run_on_contended_nodes_is_not_asked_for_again(predicted, predict_config):
    report = predicted({**TIMES, **AT_8})
    eight = report.summary[-1].model_copy(update={"flags": ("starved",)})
    config = predict_config()
    for last, job in ((eight, None), (eight.model_copy(update={"n": 0}), 8)):
        of_rows = report.model_copy(update={"summary": (*report.summary[:-1], last)})
        found = PREDICT.predict(config, of_rows).prediction
        assert [each.nodes for each in found.counts] == [4, 8]
        assert (found.next_job and found.next_job.nodes) == job


def test_nothing_is_left_to_predict_once_all_is_measured(
    predict_config,
    make_budget_outcomes,  # noqa: F811
    make_report,
    snapshot,
):
    config = predict_config(node_counts=[1, 2, 4], confirm=4)
    last = make_budget_outcomes({4: (25.0, 2.5)}, noise=(1.0,))
    report = make_report([*make_budget_outcomes(TIMES), *last], price=PRICE, config=config)
    assert (report.prediction.counts, report.prediction.next_job) == ((), None)
    assert len(report.prediction.checked) == 1
    assert "Predicted, not measured" not in on_terminal(report)
    assert report.headline == snapshot
    for text in (render_markdown(report), render_html(report)):
        assert "Predictions checked by measurement" in text and "Predicted, not" not in text
        assert report.prediction.checked[0].text in text.replace("\N{NO-BREAK SPACE}", " ")


def test_what_can_not_be_predicted_is_refused_in_words(
    predict_config, make_outcomes, make_report, snapshot
):
    report = make_report(
        make_outcomes({1: (100.0, 101.0), 2: (51.0, 52.0)}), config=predict_config(repeats=2)
    )
    assert report.prediction is None and report.recommendation is not None
    assert report.headline == snapshot
    assert report.caveats[0] == snapshot


def test_the_progress_of_a_sweep_with_a_failed_run(predict_config, make_outcomes, make_outcome):
    config = predict_config(repeats=2, confirm=4)
    ended = [*make_outcomes({1: (100.0, 101.0)}), make_outcome(2), make_outcome(2, 51.0, 2)]
    assert progress_of(config, ended).next_points == ((4, 1),)


def test_a_comparison_without_an_interval_has_only_the_times(predicted):
    [check] = predict(predicted({**TIMES, 4: (25.0, 1.5)}, noise=(1.0,)), [8]).checked
    assert check.interval is None
    assert check.text.count("measured") == 1 and "interval" not in check.text
