"""A report on a Slurm cluster."""

from __future__ import annotations

import json

from nodesweep.scaling.report.table import kind_label


def test_a_report_names_the_cluster_and_what_is_shared(make_outcomes, make_report, snapshot):
    facts = {"platform_kind": "slurm", "region": "alps", "cluster": "alps", "instance_type": "fat-node"}
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
