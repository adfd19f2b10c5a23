"""Projected times are marked wherever they are shown, with their error and their validation."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.outcome.projection import ProjectedPart
from nodesweep.scaling.report.points_csv import render_csv
from nodesweep.scaling.report.render import render_html, render_markdown
from nodesweep.scaling.report.share import without_account_names
from nodesweep.scaling.report.terminal import render_terminal
from nodesweep.scaling.trend.compare import IncomparableError, compare
from nodesweep.scaling.trend.compare_render import comparison_title
from nodesweep.scaling.trend.history import history_frame, read_history
from nodesweep.scaling.trend.history_render import render_history_terminal
from tests.nodesweep.scaling.conftest import PROBED_SECONDS, projection

PROBES = [(1, 1), (2, 1), (4, 1)]
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=3600.0)


@pytest.fixture
def report(make_report, probe_config, probes, whole):
    """Return a report of three probes and a validation run; a node-second costs a dollar."""
    outcomes = [*probes(PROBES), whole(4, 21.3)]
    return make_report(outcomes, config=probe_config(), price=PRICE)


def terminal(report):
    console = Console(width=400, file=io.StringIO())
    console.print(render_terminal(report))
    return console.file.getvalue()


def test_the_curve_is_projected_and_the_check_is_no_part_of_it(report):
    assert report.train_clock == "projected"
    assert [row.train.seconds for row in report.summary] == list(PROBED_SECONDS.values())
    assert [row.n_projected for row in report.summary] == [1, 1, 1]
    assert [row.projection_error_seconds for row in report.summary] == [0.5, 0.5, 0.5]
    assert [point.used for point in report.points] == [True, True, True, False]
    assert report.check is not None and report.check.is_within_error
    assert report.recommendation.chosen.nodes == 4


def test_a_run_costs_what_is_projected_and_the_sweep_what_was_paid(report):
    """A probe was billed 30 s, a whole run 0.9 x T more; the check has no billed time here."""
    assert [row.costs.run_usd for row in report.summary] == pytest.approx(
        [nodes * (30.0 + 0.9 * PROBED_SECONDS[nodes]) for nodes in (1, 2, 4)]
    )
    assert [row.clocks.billable.seconds for row in report.summary] == pytest.approx(
        [30.0 + 0.9 * PROBED_SECONDS[nodes] for nodes in (1, 2, 4)]
    )
    assert [point.costs.run_usd for point in report.points[:3]] == [30.0, 60.0, 120.0]
    assert report.costs.spent_usd == 210.0


def test_the_headline_says_so_with_the_check(report, snapshot):
    assert report.headline == snapshot


def test_without_a_check_the_headline_says_that(make_report, probe_config, probes, snapshot):
    report = make_report(probes(PROBES), config=probe_config())
    assert report.headline == snapshot
    assert report.check is None and "check" not in report.model_dump(mode="json")
    assert report.caveats == snapshot


@pytest.fixture
def moved(make_report, probe_config, probes, whole):
    """Return a report in which 2 nodes were validated before the answer changed to 4."""
    made_first = whole(2, 41.2, created_at="2026-01-01T00:00:00+00:00")
    outcomes = [*probes(PROBES), made_first, whole(4, 21.3)]
    return make_report(outcomes, config=probe_config(), price=PRICE)


def test_a_check_of_another_count_stays_in_every_form_of_the_report(moved, snapshot):
    assert [point.kind for point in moved.points] == ["probe", "probe", "check", "probe", "check"]
    assert [check.nodes for check in moved.other_checks] == [2]
    caveat = (
        "Validation run at another node count, from before the recommendation changed: 2 nodes "
        "took 41.2 s, 0.5% more than the 41.0 s ± 500 ms projected, within this error; the "
        "spread between runs is not included."
    )
    assert caveat in moved.caveats
    assert moved.caveats == snapshot
    page = render_html(moved)
    assert (
        "41.2 s, the validation run of its node count" in page
        and "21.3 s, the validation run" in page
    )
    assert page.count("Completed, validation run") == 2
    assert render_markdown(moved) == snapshot
    assert terminal(moved) == snapshot
    written = json.loads(json.dumps(moved.model_dump(mode="json")))
    assert [check["nodes"] for check in written["other_checks"]] == [2]
    assert type(moved).model_validate(written) == moved
    rows = list(csv.DictReader(io.StringIO(render_csv(moved))))
    assert [row["kind"] for row in rows] == ["probe", "probe", "check", "probe", "check"]


def test_until_the_new_answer_is_checked_the_earlier_check_is_no_check_of_it(
    make_report, probe_config, probes, whole, snapshot
):
    report = make_report([*probes(PROBES), whole(2, 41.2)], config=probe_config())
    assert report.check is None
    assert report.headline == snapshot
    assert report.caveats == snapshot


def test_a_check_without_a_time_is_said(make_report, probe_config, probes, make_outcome, snapshot):
    report = make_report([*probes(PROBES), make_outcome(4, None, 2)], config=probe_config())
    assert report.caveats == snapshot


def test_where_none_is_recommended_none_is_checked(make_report, make_config, probes, snapshot):
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 1},
        report={"recommendation": {"deadline_seconds": 1}},
    )
    report = make_report(probes(PROBES), config=config)
    assert report.caveats == snapshot


def test_caveats_have_the_errors_and_the_check(report, snapshot):
    said = "\n".join(report.caveats)
    assert said == snapshot


def test_that_no_probe_says_how_well_a_model_is_trained_is_said_once(
    make_report, probe_config, probes, whole, snapshot
):
    metric = {"final_metric": {"value": 0.9}}
    report = make_report([*probes(PROBES), whole(4, 21.3, metrics=metric)], config=probe_config())
    said = "\n".join(report.caveats)
    assert said == snapshot


def test_an_unknown_error_is_not_made_up(make_report, probe_config, probes, whole, snapshot):
    report = make_report([*probes(PROBES, error=None), whole(4, 21.3)], config=probe_config())
    assert {row.projection_error_seconds for row in report.summary} == {None}
    assert report.caveats[0] == snapshot
    assert report.caveats[1] == snapshot


def test_three_probes_have_intervals_and_their_check_knows_how_runs_differ(
    make_report, probe_config, probes, whole, snapshot
):
    points = [(nodes, repeat) for nodes in (1, 2, 4) for repeat in (1, 2, 3)]
    report = make_report([*probes(points), whole(4, 22.0, 4)], config=probe_config(repeats=3))
    check = next(caveat for caveat in report.caveats if caveat.startswith("Validation run:"))
    assert check == snapshot
    (four,) = [line for line in render_markdown(report).splitlines() if line.startswith("| 4 |")]
    assert "22.0 s" in four and "19.6 s, 24.6 s" in four and "±" not in four


def test_a_count_whose_probes_tell_no_time_costs_the_others_nothing(
    make_report, probe_config, probes, make_outcome, snapshot
):
    """The metric disappeared at 4 nodes."""
    lost = make_outcome(4, 9.0, train_clock=None, unprojected="the program does not say how long")
    report = make_report([*probes(PROBES[:2]), lost], config=probe_config())
    assert report.train_clock == "projected"
    assert [row.train.speedup is not None for row in report.summary] == [True, True, False]
    assert report.recommendation.chosen.nodes == 2
    assert report.caveats == snapshot


@pytest.mark.parametrize("design", ["full", "sequential"])
def test_whole_jobs_that_ended_themselves_early_are_named(
    design, make_report, make_config, probes, whole, snapshot
):
    """A limit of steps was left in the program; the missing steps are projected, although nobody
    requested a probe."""
    sweep = {"node_counts": [1, 2, 4], "design": design, "repeats": 3}
    report = make_report(probes(PROBES), config=make_config(sweep=sweep))
    assert report.train_clock == "projected"
    (said,) = [each for each in report.caveats if each.startswith("Partial runs: ")]
    assert said == snapshot


def test_probes_that_nothing_had_told_to_end_are_named(make_report, probe_config, probes, snapshot):
    """The helper was given 500 steps, but the program made 50 without asking it."""

    def caveats(ended: str) -> set[str]:
        metrics = {"probe": {"ended": ended, "planned_steps": 500}}
        return set(make_report(probes(PROBES, metrics=metrics), config=probe_config()).caveats)

    assert caveats("complete") - caveats("precise") == snapshot(name="added")
    unplanned = make_report(probes(PROBES), config=None)
    assert unplanned.caveats == snapshot(name="without a config")


def test_a_check_that_ended_itself_early_is_no_check(make_report, probe_config, probes, snapshot):
    short = probes([(4, 2)], created_at="2026-01-01T00:00:00+00:00")
    report = make_report([*probes(PROBES), *short], config=probe_config())
    assert report.check is None
    said = "\n".join(report.caveats)
    assert said == snapshot

    whole_ones = make_report(probes(PROBES), config=probe_config()).caveats
    assert not any(each.startswith("Partial runs") for each in whole_ones)


def test_steps_without_any_variance_are_odd_but_in_a_simulation(
    make_report, probe_config, probes, make_outcome, snapshot
):
    part = ProjectedPart(name="steps", left_out=450, seconds_each=0.1, error_seconds=0.0)
    even = projection(80.0, 0.0).model_copy(update={"parts": (part,)})
    outcomes = [*probes(PROBES[1:]), *probes(PROBES[:1], projection=even)]
    said = make_report(outcomes, config=probe_config()).caveats
    assert said == snapshot
    simulated = [replace(each, platform_kind="simulated") for each in outcomes]
    of_simulation = make_report(simulated, config=probe_config()).caveats
    assert [each for each in said if each not in of_simulation] == snapshot


def test_programs_that_never_ended_early_are_named(
    make_report, probe_config, whole, make_outcome, snapshot
):
    every = [whole(nodes, seconds, 1) for nodes, seconds in PROBED_SECONDS.items()]
    report = make_report(every, config=probe_config())
    assert report.train_clock == "program"
    assert report.caveats[0] == snapshot
    failed = make_report([make_outcome(1)], config=probe_config())
    assert not any("Probe design" in caveat for caveat in failed.caveats)


def test_every_form_of_the_report_says_projected(report, snapshot):
    markdown, page, text = render_markdown(report), render_html(report), terminal(report)
    shared = render_html(without_account_names(report))
    for rendered in (markdown, page, text, shared):
        assert "T projected)" in rendered
    assert markdown == snapshot
    assert "50 of 500 steps, ± 500 ms" in page
    assert "21.3 s, the validation run" in page
    assert "Completed, validation run" in page
    for rendered in (markdown, page):
        assert "1 min 20 s projected" in rendered


def test_report_json_and_points_csv_say_projected(report):
    written = json.loads(json.dumps(report.model_dump(mode="json")))
    assert written["train_clock"] == "projected"
    assert written["points"][0]["projection"]["steps"] == 50
    assert "projection" not in written["points"][3]
    assert written["check"]["measured_seconds"] == 21.3
    rows = list(csv.DictReader(io.StringIO(render_csv(report))))
    assert [row["train_clock"] for row in rows] == ["projected"] * 3 + ["program"]
    assert [row["projection_error_seconds"] for row in rows] == ["0.5", "0.5", "0.5", ""]
    assert "projection_parts" not in rows[0]


def test_a_report_reads_back(report):
    assert type(report).model_validate(report.model_dump(mode="json")) == report


def test_what_compares_and_what_gathers_sweeps_says_projected(
    make_report, probe_config, probes, make_outcomes
):
    projected = make_report(probes(PROBES), config=probe_config())
    comparison = compare(projected, projected)
    assert "; T projected)" in comparison_title(comparison)
    measured = make_report(make_outcomes({1: 80.0, 2: 41.0}))
    alike = compare(measured, measured)
    assert "projected" not in comparison_title(alike)
    assert not any("projected" in note for note in (*alike.notes, *comparison.notes))
    assert "train_clock" not in alike.model_dump()["a"]


def test_a_projected_sweep_is_compared_with_a_measured_one_only_where_that_is_asked_for(
    make_report, probe_config, probes, whole, snapshot
):
    projected = make_report(probes(PROBES), config=probe_config())
    runs = [whole(nodes, seconds, 1) for nodes, seconds in PROBED_SECONDS.items()]
    measured = make_report(runs, config=probe_config(design="full"))
    with pytest.raises(IncomparableError) as refused:
        compare(projected, measured)
    assert str(refused.value) == snapshot
    for pair, note in (
        ((projected, measured), "T(A) is projected from probes but T(B) is measured, "),
        ((measured, projected), "T(B) is projected from probes but T(A) is measured, "),
    ):
        comparison = compare(*pair, allowed=frozenset({"train_clock"}))
        assert "; T projected" in comparison_title(comparison)
        assert [each for each in comparison.notes if each.startswith(note)]


def test_projected_and_measured_sweeps_share_no_trend(
    make_report, probe_config, probes, whole, snapshot
):
    """This holds even if everything else is equal; the cost is that of the billed time."""
    points = [(nodes, repeat) for nodes in (1, 2, 4) for repeat in (1, 2, 3)]
    projected = make_report(probes(points), config=probe_config(), price=PRICE)
    runs = [whole(nodes, PROBED_SECONDS[nodes], repeat) for nodes, repeat in points]
    measured = make_report(runs, config=probe_config(design="full"), sweep_id="bench-full")
    trends = read_history([history_frame(each) for each in (projected, measured)])
    assert sorted(trend.conditions["train_clock"] for trend in trends) == ["program", "projected"]
    assert [len(trend.sweeps) for trend in trends] == [1, 1]
    console = Console(width=200, file=io.StringIO())
    console.print(render_history_terminal("bench", trends))
    said = console.file.getvalue()
    assert "T projected" in said
    assert said == snapshot


def test_other_designs_have_no_word_of_it(make_report, make_outcomes):
    report = make_report(make_outcomes({1: 80.0, 2: 41.0}))
    assert "projected" not in render_markdown(report)
    assert "projection" not in render_csv(report) and ",kind" not in render_csv(report)
    assert "other_checks" not in report.model_dump(mode="json")
    assert "projection" not in json.dumps(report.model_dump(mode="json"))
