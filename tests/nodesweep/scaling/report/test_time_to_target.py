"""Time to a quality target in the table, the caveats, the pages and report.json."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.render import render_html, render_json, render_markdown
from nodesweep.scaling.report.tables.summary import brief_table, compact_table, main_table
from nodesweep.scaling.report.tables.target import target_caveats
from tests.nodesweep.scaling.analysis.test_quality_target import noise

TIMES = {1: 100.0, 2: 51.0, 4: 26.0, 8: 13.5}


@pytest.fixture
def report_of(make_outcome, make_report):
    """Return the report of batches of 32 samples per node, with noise measured from 2 nodes on, as
    in report_of(critical)."""

    def make(critical, times=TIMES, policy="fixed_per_replica", config=None, **noisy):
        return make_report(
            [
                make_outcome(
                    nodes,
                    seconds,
                    batch_policy=policy,
                    global_batch_size=32 * (nodes if policy == "fixed_per_replica" else 8),
                    metrics=noise(32 * nodes, critical, **noisy) if nodes > 1 else None,
                )
                for nodes, seconds in times.items()
            ],
            config=config,
        )

    return make


@pytest.mark.parametrize(
    ("critical", "noisy"),
    [
        pytest.param(90, {}, id="passed"),
        pytest.param(4000, {}, id="far below it"),
        pytest.param(4000, {"spread": 20.0}, id="too large to measure"),
        pytest.param(0, {}, id="no noise"),
    ],
)
def test_the_caveats(critical, noisy, report_of, snapshot):
    report = report_of(critical, **noisy)
    assert [*target_caveats(report)] == snapshot
    assert set(target_caveats(report)) < set(report.caveats)
    assert not [each for each in report.caveats if "depending on the task" in each]


@pytest.mark.parametrize("training", [{"baseline_seconds": 60.0}, {"steps": 500}, {}])
def test_runs_whose_length_the_config_sets_give_no_upper_bound(training, report_of, make_config):
    target = report_of(90, config=make_config(training=training)).quality_target
    assert target.partial == bool(training)
    assert (target.critical_batch_range[1] is None) == bool(training)


def test_an_unchanged_rate_is_named(report_of, snapshot):
    report = report_of(4000)
    unchanged = report.conditions.model_copy(update={"learning_rate_rule": "none"})
    assert [*target_caveats(report.model_copy(update={"conditions": unchanged}))] == snapshot


def test_a_probe_says_that_it_saw_the_beginning_only(probes, make_report, snapshot):
    ended = [
        replace(probe, global_batch_size=32 * probe.nodes, metrics=noise(64, 128))
        for probe in probes([(1, 1), (2, 1)])
    ]
    assert [*target_caveats(make_report(ended))] == snapshot


def test_the_column_stands_next_to_the_speedup(report_of, snapshot):
    report = report_of(90)
    cells = main_table(report).cells
    assert list(cells["S to target"]) == snapshot
    headings = list(compact_table(report).cells)
    assert headings.index("S to target") > headings.index("S")
    assert "S to target" not in brief_table(report).cells
    assert "S to target" in render_html(report) and "S to target" in render_markdown(report)


@pytest.mark.parametrize("critical", [90, 0])
def test_report_json_keeps_it(critical, report_of):
    report = report_of(critical)
    assert ScalingReport.model_validate_json(render_json(report)) == report


def test_a_fixed_global_batch_says_nothing(report_of):
    report = report_of(90, policy="fixed_global")
    assert report.quality_target is None
    assert [*target_caveats(report)] == []
    assert "S to target" not in main_table(report).cells
    assert "quality_target" not in render_json(report)
