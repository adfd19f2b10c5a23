"""If every node did all of the work, there is no recommendation, and the headline says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.analysis.repeated import REPEATED, find_repeated
from nodesweep.scaling.report import ScalingReport

TRAINING_SECONDS = 30.0


@pytest.fixture
def report(make_report: Callable[..., Any], make_outcome: Callable[..., Any]) -> Callable[..., Any]:
    """Return a report, as in report({nodes: T}, cpu={nodes: percent}, …), of jobs with an
    unconfirmed world size."""

    def make(
        times: Mapping[int, float],
        cpu: Mapping[int, float] | None = None,
        connected: float | None = 0.0,
        name: str = "quota_used_percent",
        confirmed: bool = False,
        kind: str = "emulated",
    ) -> ScalingReport:
        outcomes = []
        for nodes, seconds in times.items():
            utilisation = {name: 95.0} if cpu is None else {name: cpu[nodes]}
            if connected is not None and nodes > 1:
                utilisation["connected_percent"] = connected
            known = confirmed or nodes == 1
            outcomes.append(
                make_outcome(
                    nodes,
                    seconds,
                    platform_kind=kind,
                    train_clock="logged",
                    world_size=nodes if known else None,
                    planned={"world_size": nodes},
                    phases={"Training": TRAINING_SECONDS},
                    utilisation=utilisation,
                )
            )
        return make_report(outcomes)

    return make


def test_nodes_that_never_talked_get_no_recommendation(
    report: Callable[..., ScalingReport],
    snapshot: SnapshotAssertion,
) -> None:
    found = report({1: 10.0, 2: 10.3, 4: 10.1})
    assert found.recommendation is not None and found.recommendation.chosen is None
    assert [choice.nodes for choice in found.recommendation.rejected] == [1, 2, 4]
    assert found.headline == snapshot
    assert not any("gradients" in caveat for caveat in found.caveats)
    assert set(found.fits.left_out.values()) == {REPEATED}


@pytest.mark.parametrize(
    "changes",
    [
        {"confirmed": True, "connected": None},
        {"connected": 80.0},
        {"cpu": {1: 95.0, 2: 47.0}},  # each did half, and waited
        {"cpu": {1: 20.0, 2: 95.0}},  # busy waiting for each other
        {"name": "memory_percent"},  # of the CPU nothing is known
    ],
    ids=["confirmed", "connected", "divided", "busy waiting", "unknown"],
)
def test_other_jobs_that_do_not_scale_stay_what_they_were(
    report: Callable[..., ScalingReport], changes: dict[str, Any]
) -> None:
    found = report({1: 10.0, 2: 10.3}, **changes)
    assert found.recommendation is not None and found.recommendation.chosen is not None
    assert found.recommendation.chosen.nodes == 1
    assert "repeated" not in found.headline


def test_a_world_size_that_is_only_printed_divides_nothing(
    report: Callable[..., ScalingReport],
    snapshot: SnapshotAssertion,
) -> None:
    found = report({1: 10.0, 2: 10.3}, confirmed=True)
    assert found.recommendation is not None and found.recommendation.chosen is None
    assert found.headline == snapshot


def test_more_samples_on_more_nodes_are_no_repetition(
    report: Callable[..., ScalingReport],
) -> None:
    """Each node trains a model of its own on its own samples."""
    found = report({1: 10.0, 2: 10.3}, confirmed=True)
    grown = [row.model_copy(update={"samples_ratio": float(row.nodes)}) for row in found.summary]
    assert find_repeated(found.summary, found.points) and not find_repeated(grown, found.points)


def test_a_job_that_scales_is_no_repetition(report: Callable[..., ScalingReport]) -> None:
    found = report({1: 10.0, 2: 5.2})
    assert found.recommendation is not None and found.recommendation.chosen is not None
    assert found.recommendation.chosen.nodes == 2


def test_where_nobody_looked_at_connections_it_only_seems_so(
    report: Callable[..., ScalingReport],
    snapshot: SnapshotAssertion,
) -> None:
    """CloudWatch has the nodes' CPUUtilization, but no information on their connections."""
    found = report({1: 10.0, 2: 10.0}, connected=None, name="cpu_percent", kind="aws")
    assert found.recommendation is not None and found.recommendation.chosen is None
    assert found.headline == snapshot


def test_only_the_counts_that_repeated_are_named(report: Callable[..., ScalingReport]) -> None:
    found = report({1: 10.0, 2: 5.2, 4: 9.8})
    assert [each.nodes for each in find_repeated(found.summary, found.points)] == [4]


def test_cpu_seconds_are_those_of_the_training_phase(report: Callable[..., ScalingReport]) -> None:
    found = report({1: 10.0, 2: 11.0}, name="cpu_percent")
    [repeated] = find_repeated(found.summary, found.points)
    assert repeated.cpu_ratio == pytest.approx(2.0)
    assert repeated.time_share == pytest.approx(1.1)
