"""The report of contended nodes, where the answer depends on them and where it does not."""

from __future__ import annotations

from rich.console import Console

from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.render import render_html, render_json, render_markdown
from nodesweep.scaling.report.terminal import render_terminal

TIMES = {1: 100.0, 2: 52.0, 4: 36.0, 8: 30.0}


def report_of(make_outcome, make_report, shares, times=TIMES, **given) -> ScalingReport:
    outcomes = [
        make_outcome(
            nodes,
            seconds,
            platform_kind="emulated",
            utilisation={"attained_percent": 100 * shares.get(nodes, 1.0)},
        )
        for nodes, seconds in times.items()
    ]
    return make_report(outcomes, **given)


def test_the_box_on_top_has_the_counts_and_the_command(make_outcome, make_report, snapshot):
    report = report_of(make_outcome, make_report, {4: 0.85})
    command = f"nodesweep run CONFIG --resume {report.sweep_id}"
    assert f"`{command}`" in report.headline
    assert report.headline == snapshot
    page = render_html(report)
    assert '<p class="chosen">2 or 4 nodes</p>' in page
    assert f"<code>{command}</code> repeats" in page
    assert report.headline.partition("`")[0] in render_markdown(report).replace("\\", "")
    assert ScalingReport.model_validate_json(render_json(report)) == report
    console = Console(width=300, no_color=True)
    with console.capture() as shown:
        console.print(render_terminal(report, lambda text: text.replace("CONFIG", "mine.yaml")))
    assert command.replace("CONFIG", "mine.yaml") in shown.get()


def test_both_ends_of_the_speedup_stand_where_the_answer_does_not_hang_on_them(
    make_outcome, make_report, snapshot
):
    times = {1: 100.0, 2: 52.0, 4: 27.0, 8: 22.0}
    report = report_of(make_outcome, make_report, {4: 0.9, 8: 0.9}, times)
    assert report.headline == snapshot
    assert "--resume" not in report.headline


def test_a_report_of_sound_runs_has_no_field_of_contended_ones(make_outcome, make_report):
    written = render_json(report_of(make_outcome, make_report, {}))
    assert "between" not in written and "least_time_share" not in written


def test_a_deadline_needs_no_ratio_to_a_baseline_that_was_too_contended(
    make_outcome, make_report, make_config, snapshot
):
    times = {1: 900.0, 2: 240.0, 4: 90.0}
    config = make_config(report={"recommendation": {"deadline_seconds": 200}})
    report = report_of(make_outcome, make_report, {1: 0.4}, times, config=config)
    assert report.recommendation is not None and report.recommendation.chosen is not None
    assert report.recommendation.chosen.nodes == 4
    assert report.headline == snapshot
    assert "faster than 1 node" not in report.recommendation.chosen.reason
