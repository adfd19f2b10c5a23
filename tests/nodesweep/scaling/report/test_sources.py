"""Where the times of a report are from: said in words at every run, and what follows for the
recommendation.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.planning.plan import plan_sweep
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
    """A run whose train time is known by these sources, best first."""
    clock, seconds = next(iter(by.items()))
    said = {"train_seconds": by["logged"]} if "logged" in by else {}
    return make_outcome(nodes, seconds, repeat, train_clock=clock, train_seconds_by=by, logged=said)


def caveats(report, word: str) -> list[str]:
    return [caveat for caveat in report.caveats if word in caveat]


def cells(table, heading: str) -> list[str]:
    return [cell.replace("\n", " ") for cell in table.cells[heading]]


def terminal(report) -> str:
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_terminal(report))
    return console.export_text()


@pytest.fixture
def by_log(make_outcome, make_report):
    """The platform held 122.3 s of start-up and more; the program's own times say 0.5x."""
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


def test_the_programs_own_times_make_the_curve(by_log):
    assert [row.train.seconds for row in by_log.summary] == [6.138, 12.276]
    assert [row.train.speedup for row in by_log.summary] == [1, 0.5]
    assert by_log.recommendation.chosen.nodes == 1
    assert by_log.points[0].train_seconds_by == {"logged": 6.138, "training_phase": 122.3}
    assert caveats(by_log, "Training phase") == []


def test_the_source_stands_in_table_page_markdown_and_terminal(by_log):
    assert cells(main_table(by_log), "T from") == ["the program's log"] * 2
    assert cells(attempts_table(by_log), "T from") == ["the program's log"] * 2
    assert brief_table(by_log).caption.endswith(" T from the program's log.")
    assert " T from the program's log." in terminal(by_log)
    assert "the program's log |" in render_markdown(by_log)
    assert "the program&#39;s log" in render_html(by_log)
    assert (
        by_log.train_clock
        == by_log.points[1].train_clock
        == by_log.conditions.train_clock
        == "logged"
    )


def test_the_training_phase_alone_gives_times_and_no_advice(by_phase):
    assert (by_phase.recommendation, by_phase.pareto, by_phase.fits.laws) == (None, (), ())
    assert [row.train.speedup for row in by_phase.summary] == [None, None]
    assert cells(main_table(by_phase), "S") == ["–", "–"], "not even a baseline"
    assert (
        by_phase.headline
        == "On emulated nodes, no recommendation: no program reported a train time; the "
        "platform's Training phase, which includes more than the training, took 2 min 2 s on "
        "1 node and 1 min 42 s on 2 nodes."
    )
    [holds] = caveats(by_phase, "pip install")
    assert holds.startswith(
        "Train times are the platform's full Training phase, which also includes starting the"
        " container"
    )
    assert (
        "the program wrote no metrics.json and logged no train_seconds=…. So there is no speedup"
        in holds
    )
    assert not caveats(by_phase, "another job's end"), "waiting for the machine is Pending"
    everywhere = [render_markdown(by_phase), render_html(by_phase), terminal(by_phase)]
    assert all("1.2x" not in text and "No speedup" not in text for text in everywhere)
    assert set(by_phase.fits.left_out.values()) == {
        "the times are those of the platform's Training phase, not the program's own"
    }


def test_the_training_phase_is_drawn_by_its_phases_alone(make_report, make_outcomes):
    outcomes = [
        replace(each, phases={"Training": 122.3})
        for each in make_outcomes({1: 122.3, 2: 101.9}, **PHASE)
    ]
    files = render_files(make_report(outcomes))
    assert sorted(name for name in files if name.endswith(".svg")) == ["phases.svg"]
    bare = render_files(make_report(make_outcomes({1: 122.3, 2: 101.9}, **PHASE)))
    assert not any(name.endswith(".svg") for name in bare)


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        ("phase_from_start_line", "from the program's line run_start_unix_seconds=… on"),
        (
            "phase_from_first_step",
            "from the program's first line step=… on: they exclude the first step",
        ),
    ],
)
def test_start_up_that_the_log_shows_is_left_out_and_said(clock, words, make_outcome, make_report):
    report = make_report(
        [
            run(make_outcome, 1, **{clock: 22.0, "training_phase": 122.0}),
            run(make_outcome, 1, 2, **{clock: 20.0, "training_phase": 122.0}),
            run(make_outcome, 2, **{clock: 12.0, "training_phase": 102.0}),
            make_outcome(2, None, 2),
        ]
    )
    assert report.recommendation is None
    assert (
        "Training phase minus the start-up shown in the log took 21.0 s on 1 node"
        in report.headline
    )
    assert [row.train.seconds for row in report.summary] == [21.0, 12.0]
    [caveat] = caveats(report, words)
    assert (
        "(excluding start-up: 1 min 40 s to 1 min 42 s at 1 node and 1 min 30 s at 2 nodes)"
        in caveat
    )
    assert cells(main_table(report), "T from")[0].startswith("the Training phase from the ")


def test_two_sources_are_never_mixed(make_outcome, make_report):
    """One run wrote metrics.json, the other one only logged: both count by their logs."""
    report = make_report(
        [
            run(make_outcome, 1, program=10.0, logged=10.5, training_phase=30.0),
            run(make_outcome, 2, logged=6.0, training_phase=25.0),
        ]
    )
    assert report.train_clock == "logged"
    assert [report.train_seconds(point) for point in report.points] == [10.5, 6.0]
    assert cells(main_table(report), "T from") == [
        "the program's log; metrics.json in some runs",
        "the program's log",
    ]
    assert (
        cells(attempts_table(report), "T from")[0] == "metrics.json 10.0 s, used: the program's log"
    )
    assert caveats(report, "1 of 2 jobs wrote no metrics.json, and sources are never mixed")


def test_a_run_without_the_curves_source_is_left_out_and_said(make_outcome, make_report):
    report = make_report(
        [
            run(make_outcome, 1, program=10.0, training_phase=30.0),
            run(make_outcome, 1, 2, training_phase=31.0),
            run(make_outcome, 2, program=6.0, training_phase=25.0),
        ]
    )
    assert report.train_clock == "program"
    assert caveats(
        report,
        "1 job completed without a readable train time from metrics.json, the curve's source, at 1",
    )
    assert cells(attempts_table(report), "T from")[1] == "the Training phase"


def test_a_table_of_times_has_no_such_column(make_outcomes, make_report):
    report = make_report(
        make_outcomes({1: 9, 2: 5}, train_clock="measured", platform_kind="measured")
    )
    assert "T from" not in main_table(report).cells
    assert "T from" not in brief_table(report).caption


def test_a_world_size_that_nothing_confirms_is_no_world_size(
    make_outcome, make_report, make_config
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
    assert cells(main_table(report), "status") == [
        "ok",
        "ok, world size unconfirmed",
        "failed (1)",
    ]
    assert cells(main_table(report), "world") == ["1", "–", "–"]
    assert cells(attempts_table(report), "status")[1] == "Completed, world size unconfirmed"
    [caveat] = caveats(report, "World size unconfirmed")
    assert caveat.startswith(
        "World size unconfirmed at 2 nodes: neither metrics.json nor the log reports how many"
    )
    assert "(2 were planned)" in caveat
    for text in (render_markdown(report), render_html(report), terminal(report)):
        assert "world size unconfirmed" in text
    assert report.headline.endswith(
        "; 1 of 3 jobs did not complete; world size unconfirmed at 2 nodes."
    )


def test_step_times_of_the_log_stand_with_the_run(make_outcome, make_report):
    said = {"train_seconds": 6.0, "steady_step_seconds": 0.25}
    report = make_report([make_outcome(1, 6.0, train_clock="logged", logged=said)])
    assert cells(attempts_table(report), "step") == ["250 ms"]


def test_a_dataset_that_changed_while_the_sweep_ran_is_a_caveat(make_report, make_outcomes):
    change = "s3://bucket/raw/a was written on 2026-11-24 00:00:00 UTC"
    report = make_report(make_outcomes({1: 8.0, 2: 4.0}), provenance={"dataset_change": change})
    [said] = caveats(report, "changed in S3")
    assert said.endswith(f"may not have trained on the same data: {change}.")
    assert not caveats(make_report(make_outcomes({1: 8.0, 2: 4.0})), "changed in S3")


def test_packages_that_every_node_installs_at_every_start_are_a_caveat_with_the_reason(
    make_report, make_outcomes
):
    reason = "requirements.txt: ./own is a place in the code"
    report = make_report(
        make_outcomes({1: 8.0, 2: 4.0}), provenance={"requirements_at_start": reason}
    )
    [said] = caveats(report, "requirements.txt")
    assert (
        said.endswith(f"instead of once as a layer of the image: {reason}.")
        and "which is billed" in said
    )
    assert not caveats(make_report(make_outcomes({1: 8.0, 2: 4.0})), "requirements.txt")
