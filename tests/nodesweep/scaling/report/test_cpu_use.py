"""The CPU time that the nodes used, as a first hint at the limit of a job."""

from __future__ import annotations

import pytest


def test_low_use_of_the_quota_is_the_first_hint(make_outcome, make_report, added, snapshot):
    emulated = {"platform_kind": "emulated", "instance_type": "ml.local.small"}
    report = make_report(
        [
            make_outcome(1, 15.0, utilisation={"quota_used_percent": 15.0}, **emulated),
            make_outcome(2, 14.0, utilisation={"quota_used_percent": 62.0}, **emulated),
        ]
    )
    assert report.caveats[1] == added(report)[0] == snapshot


@pytest.mark.parametrize(
    ("instance_type", "cpu_percent", "is_low"),
    [
        ("ml.m5.xlarge", 120.0, True),  # 4 vCPUs, 100 each
        ("ml.m5.xlarge", 300.0, False),
        ("ml.g5.xlarge", 40.0, False),  # a GPU works there
        ("ml.local.small", 20.0, True),  # of the node
        ("ml.local.small", 80.0, False),
        ("ml.unheard.of", 1.0, False),
    ],
)
def test_use_is_that_of_all_processors_of_a_node(
    make_outcome, make_report, added, instance_type: str, cpu_percent: float, is_low: bool
):
    given = {"instance_type": instance_type, "utilisation": {"cpu_percent": cpu_percent}}
    assert bool(added(make_report([make_outcome(1, 9.0, **given)]))) is is_low


def test_means_of_cloudwatch_cover_the_whole_job(make_outcome, make_report, added, snapshot):
    used = {"instance_type": "ml.m5.xlarge", "utilisation": {"cpu_percent": 120.0}}
    assert added(make_report([make_outcome(1, 9.0, **used)])) == snapshot


def test_low_use_of_the_allocated_cpu_is_that_of_whole_jobs(make_outcome, make_report, added):
    given = {"platform_kind": "slurm", "isolation": "whole nodes (--exclusive)"}
    used = {"cpu_percent": 900.0, "allocated_cpu_percent": 15.0}
    report = make_report([make_outcome(1, 15.0, utilisation=used, **given)])
    [hint] = added(report)
    assert "while their jobs ran: 15% at 1 node." in hint
    used["allocated_cpu_percent"] = 90.0
    assert added(make_report([make_outcome(1, 15.0, utilisation=used, **given)])) == []


def test_where_nothing_is_known_nothing_is_said(make_outcomes, make_report, added):
    assert added(make_report(make_outcomes({1: 40, 2: 20}))) == []
