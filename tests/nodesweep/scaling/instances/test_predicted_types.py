"""sweep.design: predict over several types: measured and predicted cells are compared together."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from nodesweep.cli.commands.confirming import refuse_confirm
from nodesweep.scaling.design.predict import Predict
from nodesweep.scaling.instances.progress import asked_keys, sweep_progress
from nodesweep.scaling.outcome.attainment import ATTAINED
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report.plots import drawing_style
from nodesweep.scaling.report.plots.types import draw_frontier, draw_types
from nodesweep.scaling.report.render import render_html, render_json, render_markdown
from nodesweep.scaling.report.terminal import render_terminal
from tests.nodesweep.scaling.design.test_predict import shortened
from tests.nodesweep.scaling.instances.conftest import (
    CHEAP,
    FAST,
    OUT_OF_MEMORY,
    SWEEP,
    TYPES,
    UNPRICED,
    arm_of,
    plan_for,
)
from tests.nodesweep.scaling.report.predictions.conftest import (  # noqa: F401
    make_budget_outcomes,
)

COUNTS = (1, 2, 4, 8)
TIMES = {1: (100.0, 0.0), 2: (50.0, 2.0)}
SPEED = {CHEAP: 1.0, FAST: 3.0}


@pytest.fixture
def predicting(types_config):
    """Return a factory of predict sweeps of two types, given the goals."""

    def make(goals=None, **given):
        sweep = {"design": "predict", "node_counts": COUNTS, **given}
        return types_config(goals, **sweep)

    return make


@pytest.fixture
def ran(make_budget_outcomes):  # noqa: F811
    """Return the runs of both types on 1 and 2 nodes; the times are those of one in SPEED."""

    def make(times=TIMES, types=TYPES, **given):
        made = []
        for name in TYPES:
            speed = SPEED[name]
            own = {n: (work / speed, sent / speed) for n, (work, sent) in times.items()}
            made += [
                replace(
                    each,
                    job_name=f"{SWEEP}-n{each.nodes}{arm_of(name).code}-r{each.repeat}-a1-abcd",
                    instance_type=name,
                    region="us-east-1",
                    platform_kind="aws",
                )
                for each in make_budget_outcomes(own, **given)
                if name in types
            ]
        return made

    return make


def cells(report):
    return {(arm.instance_type, arm.nodes): arm for arm in report.instances.arms}


def on_terminal(report):
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(render_terminal(report))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_measured_and_predicted_cells_are_ranked_together(predicting, types_report, ran, snapshot):
    report, by_type = types_report(predicting({"deadline_seconds": 90.0}), ran())
    assert report.headline == snapshot
    assert on_terminal(report) == snapshot
    assert {cell: arm.predicted for cell, arm in cells(report).items()} == {
        (name, nodes): nodes > 2 for name in TYPES for nodes in COUNTS
    }
    for name in TYPES:
        own = by_type[arm_of(name)]
        for count in own.prediction.counts:
            arm = cells(report)[name, count.nodes]
            assert (arm.n, arm.train_seconds, arm.train_interval) == (
                0, count.seconds, count.interval
            )  # fmt: skip
            assert (arm.total_usd, arm.total_usd_interval) == (count.usd, count.usd_interval)
            assert (arm.speedup, arm.efficiency) == (count.speedup, count.efficiency)
        assert {each.nodes: each.answer for each in own.prediction.judged} == {
            nodes: cells(report)[name, nodes].answer for nodes in COUNTS
        }
        assert (
            f"instance_type={name} --confirm`." in by_type[arm_of(CHEAP)].headline or name == FAST
        )
    assert report.costs.spent_usd == pytest.approx(
        sum(own.costs.spent_usd for own in by_type.values())
    )


@pytest.mark.parametrize(
    ("deadline", "answer"),
    [(85.0, "fail"), (88.5, "undecided"), (124.0, "undecided"), (125.0, "pass")],
)
def test_a_deadline_inside_the_interval_is_undecided(
    predicting, types_report, ran, deadline, answer
):
    """A run on 4 nodes of the first type ends after 88 s, and in 19 of 20 cases within 124.2 s."""
    report, _ = types_report(predicting({"deadline_seconds": deadline}), ran())
    arm = cells(report)[CHEAP, 4]
    assert (arm.answer, arm.predicted) == (answer, True)
    if answer == "pass":
        assert arm.reason is None
    else:
        assert ("meets the deadline" in arm.reason) == (answer == "undecided")


def test_a_predicted_choice_is_called_predicted_everywhere(predicting, types_report, ran, snapshot):
    report, _ = types_report(predicting({"budget_usd_per_run": 0.06}), ran())
    assert report.headline == snapshot
    choice = report.instances.answers[0]
    assert cells(report)[choice.instance_type, choice.nodes].predicted
    assert report.recommendation is None
    page, text = render_html(report), render_markdown(report)
    assert f"{choice.nodes} x {choice.instance_type} (predicted)</p>" in page
    for shown in (page, text, on_terminal(report)):
        assert "predicted, not measured" in " ".join(shown.split())
    written = json.loads(render_json(report))
    assert type(report).model_validate(written) == report
    measured = [arm for arm in written["instances"]["arms"] if arm["n"]]
    assert measured and not any("predicted" in arm for arm in measured)


def test_the_plots_have_hollow_markers_and_intervals(predicting, types_report, ran):
    report, _ = types_report(predicting(), ran())
    with drawing_style():
        drawings = [draw(report, report.instances) for draw in (draw_types, draw_frontier)]
    for drawing in drawings:
        assert "Hollow: predicted" in drawing.caption
        assert drawing.numbers.count("predicted") == 4
        hollow = [line for line in drawing.axes.lines if line.get_linestyle() == "None"]
        assert [len(line.get_xdata()) for line in hollow] == [2, 2]
    most = max(arm.train_interval.high for arm in report.instances.arms)
    assert drawings[0].axes.get_ylim()[1] > most


def test_a_contended_type_keeps_its_measured_cells(predicting, types_report, ran, snapshot):
    outcomes = [
        replace(each, utilisation={ATTAINED: 60.0})
        if each.instance_type == FAST and each.nodes == 2
        else each
        for each in ran()
    ]
    report, by_type = types_report(predicting({"deadline_seconds": 90.0}), outcomes)
    assert by_type[arm_of(FAST)].prediction is None
    assert {nodes: cells(report)[FAST, nodes].reason for nodes in COUNTS} == snapshot
    assert cells(report)[FAST, 1].train_seconds and not cells(report)[FAST, 4].train_seconds
    assert cells(report)[CHEAP, 4].predicted
    assert report.headline == snapshot
    assert [each for each in report.caveats if "No predictions" in each] == snapshot


def test_a_type_that_fails_on_2_nodes_is_not_predicted(predicting, types_report, ran, snapshot):
    outcomes = [
        replace(each, status="Failed", reason=OUT_OF_MEMORY, metrics={}, clocks=Clocks())
        if each.instance_type == CHEAP and each.nodes == 2
        else each
        for each in ran()
    ]
    report, _ = types_report(predicting({"deadline_seconds": 90.0}), outcomes)
    assert {nodes: cells(report)[CHEAP, nodes].reason for nodes in COUNTS} == snapshot
    assert report.headline == snapshot
    assert not cells(report)[CHEAP, 8].predicted and cells(report)[FAST, 8].predicted


def test_single_runs_show_no_noise_so_nothing_is_ranked_by_a_prediction(
    predicting, types_report, ran, snapshot
):
    report, _ = types_report(predicting({"budget_usd_per_run": 1.0}), ran(noise=(1.0,)))
    assert not any(arm.predicted for arm in report.instances.arms)
    assert [arm.answer for arm in report.instances.arms if arm.nodes > 2] == [None] * 4
    assert report.headline == snapshot
    assert [each for each in report.caveats if "ran twice" in each] == snapshot


def test_a_contended_count_is_predicted_from_the_others(predicting, types_report, ran):
    times = {1: (100.0, 0.0), 2: (50.0, 2.0), 4: (25.0, 1.5)}
    outcomes = [
        replace(each, utilisation={ATTAINED: 60.0})
        if each.instance_type == CHEAP and each.nodes == 2
        else each
        for each in ran(times)
    ]
    report, _ = types_report(predicting(node_counts=(1, 2, 4, 8, 16)), outcomes)
    arm = cells(report)[CHEAP, 2]
    assert (arm.n, arm.predicted, arm.train_interval.level) == (3, True, 0.9)
    assert not cells(report)[FAST, 2].predicted
    assert cells(report)[CHEAP, 16].predicted


def test_measured_cells_of_short_runs_are_called_projected(predicting, types_report, ran):
    outcomes = [shortened(each) for each in ran(batch=64)]
    report, _ = types_report(predicting(), outcomes)
    assert "4 of 8 combinations are predicted, not measured, the others projected from short" in (
        report.headline
    )
    assert [arm.kind for arm in report.instances.arms] == 2 * [
        "projected", "projected", "predicted", "predicted"
    ]  # fmt: skip


def test_without_a_price_the_fastest_prediction_has_no_cost(
    predicting, types_report, ran, snapshot
):
    config = predicting({"deadline_seconds": 90.0}, types=(CHEAP, UNPRICED))
    outcomes = [
        replace(each, instance_type=UNPRICED if each.instance_type == FAST else CHEAP)
        for each in ran()
    ]
    report, _ = types_report(config, outcomes)
    arm = cells(report)[UNPRICED, 8]
    assert (arm.predicted, arm.answer, arm.total_usd, arm.on_front) == (True, "pass", None, None)
    assert report.headline == snapshot


def test_every_type_runs_its_smallest_counts(predicting, ran):
    config = predicting(repeats=3)
    progress = sweep_progress(config, [])
    assert len(progress.asked) == len(progress.next_keys) == config.sweep.most_jobs == 12
    assert {key.nodes for key in progress.asked} == {1, 2}
    assert "4 and 8 nodes" in progress.reason
    outcomes = ran()
    cut_off = sweep_progress(config, outcomes[:7])
    assert cut_off.asked == progress.asked and len(cut_off.next_keys) == 5
    ended = sweep_progress(config, outcomes)
    assert ended.next_keys == () and "ended" in ended.reason
    assert sorted(asked_keys(config, outcomes)) == sorted(progress.asked)


def test_the_plan_bounds_only_what_is_measured(predicting):
    config = predicting()
    plan = plan_for(config)
    whole = plan_for(predicting(design="full"))
    assert plan.cost_bound_usd == pytest.approx(whole.cost_bound_usd * 3 / 15)
    assert Predict().plan_lines(config)[0] == f"{'':>4} 4 and 8 nodes: predicted, not run"
    alone = Predict().estimate(config.of_arm(CHEAP)).cost
    both = Predict().estimate(config).cost
    assert both.expected == both.most == pytest.approx(2 * alone.expected)


def test_several_types_are_confirmed_by_a_sweep_of_one(predicting, capsys):
    with pytest.raises(SystemExit):
        refuse_confirm(predicting(), detach=False, is_resume=True)
    assert "--set sweep.instance_types=null" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"confirm is 8, but instance_types.*of its type alone"):
        predicting(confirm=8)


def test_a_prediction_beats_nothing_for_sure(predicting, types_report, ran):
    """Only predicted cells of the second type are surely faster and cheaper than 8 nodes of the
    first."""
    quick = [
        replace(
            each,
            clocks=each.clocks.model_copy(update={"billable_seconds": each.clocks.train_seconds}),
        )
        for each in ran({1: (100.0, 0.0), 2: (50.0, 0.0)}, types=(FAST,))
    ]
    report, _ = types_report(predicting(), [*ran(types=(CHEAP,)), *quick])
    found = cells(report)
    eight = found[CHEAP, 8]
    below = [
        (arm.nodes, arm.predicted)
        for arm in found.values()
        if arm.train_interval.high < eight.train_interval.low
        and arm.total_usd_interval.high < eight.total_usd_interval.low
    ]
    assert below == [(4, True), (8, True)]
    assert not eight.beaten_for_sure and eight.on_front is False
