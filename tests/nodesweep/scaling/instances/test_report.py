"""The report of a sweep of several types: a joint report, and a report of each type."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from rich.console import Console

from nodesweep.scaling import names
from nodesweep.scaling.design.progress import points_done
from nodesweep.scaling.instances.report import analyse_sweep
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report.failures import failure_lines
from nodesweep.scaling.report.plots import drawing_style, to_svg
from nodesweep.scaling.report.plots.types import draw_frontier
from nodesweep.scaling.report.render import (
    render_csv,
    render_files,
    render_html,
    render_share,
)
from nodesweep.scaling.report.share import without_account_names
from nodesweep.scaling.report.tables.instances import arms_table
from nodesweep.scaling.report.terminal import render_terminal
from nodesweep.scaling.trend.report_file import parse_report
from tests.nodesweep.scaling.instances.conftest import (
    CHEAP,
    FAST,
    NOW,
    OUT_OF_MEMORY,
    SECONDS,
    SWEEP,
    UNPRICED,
    all_runs,
    arm_of,
    plan_for,
    probe,
    run,
)


def test_the_headline_names_type_and_nodes(types_config, types_report, snapshot):
    report, by_type = types_report(types_config({"deadline_seconds": 800}), all_runs())
    assert report.headline == snapshot
    assert report.instances.main == FAST and report.platform.instance_type == FAST
    assert list(by_type) == [arm_of(CHEAP), arm_of(FAST)]
    assert by_type[arm_of(FAST)].headline == snapshot


def test_emulated_nodes_open_the_headline(types_config, types_report, snapshot):
    runs = [run(*arm, platform_kind="emulated") for arm in SECONDS]
    report, _ = types_report(types_config(), runs)
    assert report.headline == snapshot


def test_the_validation_of_the_one_dataset_is_paid_once(types_config, types_report):
    spark = {"dataset_validation": {"engine": "spark", "usd": 1.25}}
    report, by_type = types_report(types_config(), all_runs(), **spark)
    assert report.costs.validation_usd == 1.25
    assert [own.costs.validation_usd for own in by_type.values()] == [1.25, 1.25]
    assert types_report(types_config(), all_runs())[0].costs.validation_usd is None


def test_speedup_is_within_a_type(types_config, types_report):
    report, by_type = types_report(types_config(), all_runs())
    arms = {(arm.instance_type, arm.nodes): arm for arm in report.instances.arms}
    assert arms[FAST, 1].speedup == 1
    assert arms[FAST, 2].speedup == pytest.approx(1200 / 620)
    assert by_type[arm_of(CHEAP)].baseline.train_seconds == pytest.approx(3600, rel=1e-4)
    assert report.costs.spent_usd == pytest.approx(
        sum(each.costs.spent_usd for each in by_type.values())
    )


def test_all_attempts_are_kept(types_config, types_report):
    config = types_config({"deadline_seconds": 1500})
    report, _ = types_report(config, all_runs(2))
    assert {point.instance_type for point in report.points} == {FAST}
    assert {point.instance_type for point in report.other_points} == {CHEAP}
    rows = list(csv.DictReader(io.StringIO(render_csv(report))))
    assert len(rows) == 12
    assert {row["platform"] for row in rows} == {"AWS, ml.m5.xlarge", "AWS, ml.m5.4xlarge"}
    assert points_done(config, report) == (12, 18)
    assert report.config["sweep"]["instance_types"] == [CHEAP, FAST]


def test_it_is_read_back_as_it_was_written(types_config, types_report):
    report, by_type = types_report(types_config(), all_runs())
    for each in (report, *by_type.values()):
        assert parse_report(each.model_dump_json().encode(), "here") == each
    assert "instances" not in json.loads(by_type[arm_of(CHEAP)].model_dump_json())


def test_a_sweep_of_one_type_has_the_report_it_had(make_config, make_outcomes, types_report):
    config = make_config(sweep={"node_counts": [1, 2], "repeats": 1})
    report, by_type = types_report(config, make_outcomes({1: 80.0, 2: 41.0}))
    assert by_type == {} and report.instances is None
    assert not {"instances", "other_points"} & json.loads(report.model_dump_json()).keys()


def test_memory_is_named_and_fails_that_arm_alone(types_config, types_report, snapshot):
    config = types_config(repeats=1)
    lacking = run(CHEAP, 2, train_seconds=None, reason=OUT_OF_MEMORY)
    rest = [run(*arm) for arm in SECONDS if arm not in ((CHEAP, 1), (CHEAP, 2))]
    report, _ = types_report(config, [lacking, *rest])
    arms = {(arm.instance_type, arm.nodes): arm for arm in report.instances.arms}
    assert arms[CHEAP, 2].n_failed == 1
    assert arms[CHEAP, 2].reason == snapshot
    assert arms[CHEAP, 1].reason == snapshot
    assert arms[CHEAP, 1].train_seconds is None and arms[CHEAP, 1].answer is None
    assert report.caveats == snapshot
    assert report.headline == snapshot
    assert (report.instances.points_done, report.instances.points_asked) == (4, 4)


def test_a_result_of_an_arm_is_in_the_report(types_config, types_report, snapshot):
    lost = run(CHEAP, 4, train_seconds=None, attempt=2, clocks=Clocks(billable_seconds=500.0))
    report, _ = types_report(types_config(), [*all_runs(), lost])
    arm = next(each for each in report.instances.arms if each.per_result is not None)
    assert (arm.instance_type, arm.nodes, arm.per_result.completed) == (CHEAP, 4, 3)
    assert (arm.seconds, arm.usd) == (
        arm.per_result.result.train_seconds,
        arm.per_result.result.usd,
    )
    assert arm.usd > arm.total_usd
    assert parse_report(report.model_dump_json().encode(), "here") == report
    assert report.headline == snapshot
    assert list(arms_table(report, report.instances).cells["per result"]) == snapshot


def test_a_type_that_fails_is_named(types_config, types_report, snapshot):
    failed = [run(CHEAP, nodes, train_seconds=None) for nodes in (1, 2)]
    report, by_type = types_report(types_config(repeats=1), [*failed, run(FAST, 1)])
    assert report.caveats == snapshot
    assert by_type[arm_of(CHEAP)].baseline is None
    arms = {(arm.instance_type, arm.nodes): arm for arm in report.instances.arms}
    assert (arms[CHEAP, 1].reason, arms[FAST, 4].reason) == snapshot
    assert failure_lines(report)[0] == snapshot


def test_a_type_without_a_job_and_one_without_a_price_are_said(
    types_config, types_report, snapshot
):
    types = (UNPRICED, CHEAP)
    config = types_config(types=types, repeats=1)
    report, by_type = types_report(config, [run(UNPRICED, 1, types=types)])
    assert list(by_type) == [arm_of(UNPRICED, types)]
    assert report.caveats == snapshot

    assert report.costs.spent_usd is None


def test_the_main_type_is_one_that_has_a_report(types_config, types_report, snapshot):
    report, _ = types_report(types_config(), [run(FAST, 1, train_seconds=None)])
    assert report.instances.main == FAST and report.instances.answers[0].nodes is None
    assert report.headline == snapshot


def test_times_of_no_program_are_not_compared(types_config, types_report, snapshot):
    phase = {"train_clock": "training_phase", "phases": {"Training": 60.0}}
    runs = [
        run(CHEAP, nodes, train_seconds_by={"training_phase": 60.0}, **phase) for nodes in (1, 2)
    ]
    report, _ = types_report(types_config(), [*runs, run(FAST, 1)])
    arm = report.instances.arms[0]
    assert arm.reason == snapshot
    assert arm.answer is None
    assert report.caveats == snapshot


def test_probes_are_called_projected(types_config, types_report, snapshot):
    config = types_config({"deadline_seconds": 2200}, design="probe", repeats=1)
    done = all_runs(1, probe)
    report, by_type = types_report(config, done)
    assert report.headline == snapshot
    check = run(CHEAP, 4, 2, train_seconds_by={"program": 951.0})
    report, by_type = types_report(config, [*done, check])
    assert report.headline == snapshot
    assert by_type[arm_of(FAST)].check is None
    assert report.caveats == snapshot


@pytest.mark.parametrize(
    ("measured_seconds", "recommended"),
    [
        pytest.param(951.0, (CHEAP, 4), id="as projected"),
        pytest.param(1300.0, None, id="another arm is cheaper"),
        pytest.param(2500.0, None, id="the deadline is missed"),
    ],
)
def test_a_full_run_that_contradicts_the_probes_leaves_no_choice(
    types_config, types_report, snapshot, measured_seconds, recommended
):
    config = types_config({"deadline_seconds": 2200}, design="probe", repeats=1, node_counts=[1, 4])
    done = [probe(*arm) for arm in SECONDS if arm[1] != 2]
    probed, _ = types_report(config, done)
    answer = probed.instances.answers[0]
    assert (answer.instance_type, answer.nodes) == (CHEAP, 4)
    check = run(
        CHEAP,
        4,
        2,
        train_seconds=measured_seconds,
        train_seconds_by={"program": measured_seconds},
    )
    report, _ = types_report(config, [*done, check])
    answer = report.instances.answers[0]
    assert answer.instance_type == (recommended and recommended[0])
    assert answer.reason == snapshot
    assert report.headline == snapshot
    assert report.instances.main == CHEAP


def test_a_dropped_arm_says_why(types_config, types_report, snapshot):
    report, _ = types_report(types_config(design="probe"), all_runs(2, probe))
    arms = {(arm.instance_type, arm.nodes): arm for arm in report.instances.arms}
    assert arms[FAST, 1].reason == snapshot


def test_no_outcome_is_no_report(types_config, snapshot):
    config = types_config()
    with pytest.raises(ValueError) as refused:
        analyse_sweep(SWEEP, config, plan_for(config), [], {}, {}, NOW)
    assert str(refused.value) == snapshot


@pytest.mark.usefixtures("pages_with_plots")
def test_the_page_and_the_markdown_have_every_arm(types_config, types_report):
    report, _ = types_report(types_config({"deadline_seconds": 800}), all_runs())
    files = render_files(report)
    page, text = files["report.html"].decode(), files["report.md"].decode()
    assert '<p class="chosen">2 x ml.m5.4xlarge</p>' in page
    assert '<a href="ml.m5.xlarge/report.html">ml.m5.xlarge</a>' in page
    assert 'id="plot-frontier"' in page and 'id="plot-types"' in page
    assert text.count("\n| ml.m5.xlarge |") == 3
    assert {"types.svg", "frontier.svg", "frontier.png"} <= files.keys()


def test_each_types_runs_link_to_their_own_logs(types_config, types_report):
    """The sweep's report links to the logs of the recommended type, here the second; each type's
    own report is a folder below."""
    report, by_type = types_report(types_config({"deadline_seconds": 1500}), all_runs(1))
    logs = [
        names.log_link(names.log_file(point.job_name, "algo-1"))
        for own in by_type.values()
        for point in own.points
    ]
    assert len(set(logs)) == 6
    below = [names.from_arm(link) for link in logs]
    assert log_links(report, logs) == [
        f"logs/n{nodes}b-r1-a1-abcd_algo-1.log" for nodes in (1, 2, 4)
    ]
    for name, code in ((CHEAP, "a"), (FAST, "b")):
        assert log_links(by_type[arm_of(name)], below) == [
            f"../logs/n{nodes}{code}-r1-a1-abcd_algo-1.log" for nodes in (1, 2, 4)
        ]


def log_links(report, logs):
    """Return the targets of links in the page's rows of runs, given the stored logs."""
    page = render_files(report, logs)["report.html"].decode()
    return re.findall(r'href="((?:\.\./)?logs/[^"]+)"', page)


@pytest.mark.usefixtures("pages_with_plots")
def test_no_choice_and_no_price_have_a_page(types_config, types_report):
    types = (UNPRICED, CHEAP)
    config = types_config({"deadline_seconds": 1}, types=types)
    report, _ = types_report(config, [run(UNPRICED, 1, types=types)])
    page = render_html(report)
    assert '<p class="chosen">No instance type</p>' in page
    assert 'id="plot-frontier"' not in page and 'id="plot-types"' in page
    failed, _ = types_report(types_config(), [run(FAST, 1, train_seconds=None)])
    assert 'id="plot-types"' not in render_html(failed)


def test_a_page_to_share_has_no_output_of_any_type(types_config, types_report):
    failed = run(CHEAP, 2, train_seconds=None, log_tail=("secret words",))
    report, _ = types_report(types_config(repeats=1), [failed, run(FAST, 1)])
    assert [point.log_tail for point in report.other_points] == [("secret words",)]
    shared = without_account_names(report)
    assert [point.log_tail for point in shared.other_points] == [()]
    assert "secret words" not in render_share(report)
    assert 'href="ml.m5.xlarge/report.html"' not in render_share(report)


def test_the_terminal_has_a_short_table_of_all(types_config, types_report, snapshot):
    report, _ = types_report(types_config({"deadline_seconds": 800}), all_runs())
    console = Console(file=io.StringIO(), width=120)
    console.print(render_terminal(report))
    text = console.file.getvalue()
    assert text == snapshot
    [row] = [line.split() for line in text.splitlines() if line.startswith(" ml.m5.4xlarge  2")]
    assert row == ["ml.m5.4xlarge", "2", "10", "min", "20", "s", "$0.3483", "●", "pass", "1.9x",
                   "97%", "3"]  # fmt: skip


def test_nothing_on_the_front_draws_no_front(types_config, types_report):
    report, _ = types_report(types_config(), all_runs(1))
    none = [arm.model_copy(update={"on_front": False}) for arm in report.instances.arms]
    comparison = report.instances.model_copy(update={"arms": tuple(none)})
    with drawing_style():
        drawn = to_svg(draw_frontier(report, comparison))
        assert b"time-cost front" in to_svg(draw_frontier(report, report.instances))
    assert b"time-cost front" not in drawn and b">ml.m5.4xlarge<" in drawn
