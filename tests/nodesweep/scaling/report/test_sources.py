"""The source of a report's times is named at every run and decides about the recommendation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.outcome.observed import NO_OWN_CLOCK
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.report.facts import sweep_facts
from nodesweep.scaling.report.render import (
    render_files,
    render_html,
    render_markdown,
    render_terminal,
)
from nodesweep.scaling.report.tables.attempts import attempts_table
from nodesweep.scaling.report.tables.summary import brief_table, main_table

PHASE = {
    "train_clock": "training_phase",
    "platform_kind": "emulated",
    "instance_type": "ml.local.small",
}


def run(make_outcome, nodes: int, repeat: int = 1, **by):
    """Return a run whose train time these sources know, best first."""
    clock, seconds = next(iter(by.items()))
    said = {"train_seconds": by["logged"]} if "logged" in by else {}
    return make_outcome(nodes, seconds, repeat, train_clock=clock, train_seconds_by=by, logged=said)


def cells(table, heading: str) -> list[str]:
    return [cell.replace("\n", " ") for cell in table.cells[heading]]


def terminal(report) -> str:
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_terminal(report))
    return console.export_text()


@pytest.fixture
def by_log(make_outcome, make_report):
    """Return a report whose platform times include the start-up, while the program's own times give
    0.5x."""
    return make_report(
        [
            run(make_outcome, 1, logged=6.138, training_phase=122.3),
            run(make_outcome, 2, logged=12.276, training_phase=101.9),
        ]
    )


@pytest.fixture
def by_phase(make_outcomes, make_report):
    outcomes = [
        replace(each, phases={"Training": 1.0})
        for each in make_outcomes({1: 122.3, 2: 101.9}, **PHASE)
    ]
    return make_report(outcomes)


def test_the_programs_own_times_make_the_curve(by_log, added, snapshot):
    assert [row.train.seconds for row in by_log.summary] == [6.138, 12.276]
    assert [row.train.speedup for row in by_log.summary] == [1, 0.5]
    assert by_log.recommendation.chosen.nodes == 1
    assert by_log.points[0].train_seconds_by == {"logged": 6.138, "training_phase": 122.3}
    assert added(by_log) == snapshot


def test_the_source_stands_in_table_page_markdown_and_terminal(by_log, snapshot):
    [source] = {*cells(main_table(by_log), "T from"), *cells(attempts_table(by_log), "T from")}
    assert source == snapshot
    assert brief_table(by_log).caption.endswith(f" T from {source}.")
    assert f" T from {source}." in terminal(by_log)
    assert f" {source} |" in render_markdown(by_log)
    assert source.replace("'", "&#39;") in render_html(by_log)
    assert (
        by_log.train_clock
        == by_log.points[1].train_clock
        == by_log.conditions.train_clock
        == "logged"
    )


def test_the_training_phase_alone_gives_times_and_no_advice(by_phase, added, snapshot):
    assert (by_phase.recommendation, by_phase.pareto, by_phase.fits.laws) == (None, (), ())
    assert [row.train.speedup for row in by_phase.summary] == [None, None]
    assert cells(main_table(by_phase), "S") == ["–", "–"], "not even a baseline"
    assert by_phase.headline == snapshot(name="headline")
    assert added(by_phase) == snapshot(name="caveats")
    everywhere = [render_markdown(by_phase), render_html(by_phase), terminal(by_phase)]
    assert all("1.2x" not in text for text in everywhere)
    assert by_phase.fits.left_out == snapshot(name="laws left out")


@pytest.mark.usefixtures("pages_with_plots")
def test_the_training_phase_is_drawn_by_its_phases_alone(make_report, make_outcomes):
    outcomes = [
        replace(each, phases={"Training": 122.3})
        for each in make_outcomes({1: 122.3, 2: 101.9}, **PHASE)
    ]
    files = render_files(make_report(outcomes))
    assert sorted(name for name in files if name.endswith(".svg")) == ["phases.svg"]
    bare = render_files(make_report(make_outcomes({1: 122.3, 2: 101.9}, **PHASE)))
    assert not any(name.endswith(".svg") for name in bare)


@pytest.mark.parametrize("clock", ["phase_from_start_line", "phase_from_first_step"])
def test_start_up_that_the_log_shows_is_left_out_and_said(
    clock, make_outcome, make_report, added, snapshot
):
    report = make_report(
        [
            run(make_outcome, 1, **{clock: 22.0, "training_phase": 122.0}),
            run(make_outcome, 1, 2, **{clock: 20.0, "training_phase": 122.0}),
            run(make_outcome, 2, **{clock: 12.0, "training_phase": 102.0}),
            make_outcome(2, None, 2),
        ]
    )
    assert report.recommendation is None
    assert [row.train.seconds for row in report.summary] == pytest.approx([440**0.5, 12.0])
    assert report.headline == snapshot(name="headline")
    assert added(report) == snapshot(name="caveats")
    assert cells(main_table(report), "T from") == snapshot(name="column")


def test_two_sources_are_never_mixed(make_outcome, make_report, added, snapshot):
    """One run wrote metrics.json, the other one only logged: both count by their logs."""
    report = make_report(
        [
            run(make_outcome, 1, program=10.0, logged=10.5, training_phase=30.0),
            run(make_outcome, 2, logged=6.0, training_phase=25.0),
        ]
    )
    assert report.train_clock == "logged"
    assert [report.train_seconds(point) for point in report.points] == [10.5, 6.0]
    assert cells(main_table(report), "T from") == snapshot(name="column of node counts")
    assert cells(attempts_table(report), "T from") == snapshot(name="column of runs")
    assert added(report) == snapshot(name="caveats")


def test_a_run_without_the_curves_source_is_left_out_and_said(
    make_outcome, make_report, added, snapshot
):
    report = make_report(
        [
            run(make_outcome, 1, program=10.0, training_phase=30.0),
            run(make_outcome, 1, 2, training_phase=31.0),
            run(make_outcome, 2, program=6.0, training_phase=25.0),
        ]
    )
    assert report.train_clock == "program"
    assert added(report) == snapshot(name="caveats")
    assert cells(attempts_table(report), "T from") == snapshot(name="column")


def test_a_table_of_times_has_no_such_column(make_outcomes, make_report):
    report = make_report(
        make_outcomes({1: 9, 2: 5}, train_clock="measured", platform_kind="measured")
    )
    assert "T from" not in main_table(report).cells
    assert "T from" not in brief_table(report).caption


def test_a_world_size_that_nothing_confirms_is_no_world_size(
    make_outcome, make_report, make_config, added, snapshot
):
    config = make_config()
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    outcomes = [
        make_outcome(1, 10.0, world_size=1, planned={"world_size": 1}),
        make_outcome(2, 6.0, planned={"world_size": 2}),
        make_outcome(4, None, planned={"world_size": 4}),
    ]
    report = make_report(outcomes, config=config, plan=plan)
    assert [row.world_size for row in report.summary] == [1, None, None]
    status = cells(main_table(report), "status")
    assert status == snapshot(name="status")
    assert cells(main_table(report), "world") == ["1", "–", "–"]
    doubt = status[1].removeprefix("ok, ")
    assert cells(attempts_table(report), "status")[1] == f"Completed, {doubt}"
    assert added(report) == snapshot(name="caveats")
    for text in (render_markdown(report), render_html(report), terminal(report)):
        assert doubt in text
    assert report.headline == snapshot(name="headline")


def test_step_times_of_the_log_stand_with_the_run(make_outcome, make_report):
    said = {"train_seconds": 6.0, "steady_step_seconds": 0.25}
    report = make_report([make_outcome(1, 6.0, train_clock="logged", logged=said)])
    assert cells(attempts_table(report), "step") == ["250 ms"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dataset_change", "s3://bucket/raw/a was written on 2026-11-24 00:00:00 UTC"),
        ("requirements_at_start", "requirements.txt: ./own is a place in the code"),
    ],
)
def test_a_change_of_the_dataset_and_packages_installed_at_each_start_are_caveats(
    name, reason, make_report, make_outcomes, added, snapshot
):
    outcomes = make_outcomes({1: 8.0, 2: 4.0})
    [caveat] = added(make_report(outcomes, provenance={name: reason}))
    assert reason in caveat
    assert caveat == snapshot
    assert added(make_report(outcomes)) == []


def test_an_observed_time_makes_the_curve_and_says_so(make_outcome, make_report, added, snapshot):
    report = make_report(
        [
            run(make_outcome, 1, observed=6.1, training_phase=122.3),
            run(make_outcome, 2, observed=3.2, training_phase=101.9),
        ]
    )
    assert (report.train_clock, report.summary[1].train.speedup) == ("observed", 6.1 / 3.2)
    assert dict(sweep_facts(report))["train clock"] == snapshot
    assert added(report) == []


def test_observed_and_reported_times_are_not_mixed(make_outcome, make_report, added, snapshot):
    report = make_report(
        [
            run(make_outcome, 1, logged=6.0, observed=6.1, training_phase=122.3),
            run(make_outcome, 2, observed=3.2, training_phase=101.9),
        ]
    )
    assert [row.train.seconds for row in report.summary] == [6.1, 3.2]
    assert added(report) == snapshot


def test_why_a_program_was_not_measured_is_a_caveat(make_outcome, make_report, added, snapshot):
    reason = "the program never imported torch"
    report = make_report(
        [
            replace(run(make_outcome, 1, training_phase=122.3), not_observed=reason),
            replace(run(make_outcome, 2, training_phase=101.9), not_observed=reason),
            replace(run(make_outcome, 4, logged=4.0, training_phase=9.9), not_observed=reason),
        ]
    )
    assert added(report) == snapshot
    silent = make_outcome(1, None, train_clock=None, unprojected=NO_OWN_CLOCK)
    assert added(make_report([silent])) == snapshot(name="measure: helper")
