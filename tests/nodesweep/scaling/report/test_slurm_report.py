"""A report on a Slurm cluster."""

from __future__ import annotations

import json

import pytest

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.formats import UNKNOWN
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report.facts import costs_text
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.cost import draw_cost
from nodesweep.scaling.report.table import kind_label
from nodesweep.scaling.report.tables.costs import costs_table
from nodesweep.scaling.report.tables.summary import brief_table


def test_a_report_names_the_cluster_and_what_is_shared(make_outcomes, make_report, snapshot):
    facts = {
        "platform_kind": "slurm",
        "region": "alps",
        "cluster": "alps",
        "instance_type": "fat-node",
    }
    report = make_report(
        make_outcomes({1: 40, 2: 21}, isolation="whole nodes (--exclusive)", **facts)
    )
    assert kind_label(report.platform) == "Slurm cluster alps, fat-node"
    assert report.caveats[0] == snapshot
    assert report.conditions.region == "alps"
    unknown = make_report(make_outcomes({1: 40, 2: 21}, isolation=None, **facts))
    assert unknown.caveats[0] == snapshot


def test_other_reports_have_no_cluster(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}))
    assert "cluster" not in json.loads(report.model_dump_json())["platform"]


HOURS = Price(
    instance_type="fat-node", usd_per_hour=None, unit="node-hours", reason="no price is set"
)


@pytest.fixture
def in_node_hours(make_outcome, make_report):
    """Return a factory of reports without a price: in_node_hours({nodes: billed seconds})."""

    def make(billed, **changes):
        outcomes = [
            make_outcome(
                nodes,
                3500 / nodes,
                clocks=Clocks(train_seconds=3500 / nodes, billable_seconds=seconds),
                platform_kind="slurm",
                billing=nodes * 64.0,
            )
            for nodes, seconds in billed.items()
        ]
        return make_report(outcomes, price=HOURS, **changes)

    return make


def test_node_hours_are_the_cost_of_nodes_without_a_price(in_node_hours, snapshot):
    report = in_node_hours({1: 3600, 2: 1980})
    assert [row.costs.node_hours for row in report.summary] == pytest.approx([1, 1.1])
    assert [row.costs.billing_hours for row in report.summary] == pytest.approx([64, 70.4])
    brief, costs = brief_table(report), costs_table(report)
    assert list(brief.cells["node-hours"]) == list(costs.cells["node-hours"]) == ["1", "1.1"]
    assert list(costs.cells["billing-hours"]) == ["64", "70.4"]
    assert "run" not in costs.cells
    assert [
        report.headline,
        costs_text(report),
        costs.caption,
        draw_cost(report).caption,
    ] == snapshot
    assert not any("Cost unknown" in caveat for caveat in report.caveats)
    again = ScalingReport.model_validate_json(report.model_dump_json())
    assert again.summary == report.summary and again.price.unit == "node-hours"


def test_node_hours_that_are_the_same_or_unknown(in_node_hours, snapshot):
    assert "same node-hours" in in_node_hours({1: 3600, 2: 1800}).headline
    part = in_node_hours({1: 3600, 2: None})
    assert list(costs_table(part).cells["node-hours"]) == ["1", UNKNOWN]
    assert costs_text(part) == snapshot
    none = in_node_hours({1: None, 2: None})
    assert (costs_table(none), costs_text(none)) == (None, None)


def test_the_fewest_node_hours_are_the_cheapest(in_node_hours, snapshot, make_config):
    config = make_config(report={"recommendation": {"deadline_seconds": 8000}})
    # 1 against 1.1 node-hours, though the node-time is the same and 2 nodes are faster
    answer = in_node_hours({1: 3600, 2: 1980}, config=config).recommendation
    assert (answer.chosen.nodes, answer.reason) == (1, snapshot)
    [other] = answer.rejected
    assert other.reason.startswith("node-hours 1.1 is above the 1 of 1 node")
