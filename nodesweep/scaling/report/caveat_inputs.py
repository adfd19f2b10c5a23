"""The facts that the caveats of a report are based on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from nodesweep.scaling.outcome.attainment import is_contended
from nodesweep.scaling.report.model import Point, SampleCounts, ScalingReport


@dataclass(frozen=True)
class CaveatInputs:
    """A report without caveats, with the plan and the tolerance to check it against.

    `planned` lists the (nodes, repeat) of every planned point.
    """

    report: ScalingReport
    planned: Sequence[tuple[int, int]]
    parity_tolerance: float

    @cached_property
    def used(self) -> list[Point]:
        """The runs that the summary uses."""
        return [point for point in self.report.points if point.used]

    @cached_property
    def untimed(self) -> list[int]:
        """Node counts of completed runs that should have a train time but have none."""
        report = self.report
        checks = [check.job_name for check in (report.check, *report.other_checks) if check]
        return [
            point.nodes
            for point in self.report.points
            if point.status == "Completed"
            and not point.used
            and not point.spot
            and not point.launch_path_only
            and not is_contended(point)
            and point.job_name not in checks
        ]

    @cached_property
    def started(self) -> list[int]:
        """Node counts of the used runs, sorted by creation time; empty if a time is unknown."""
        at = [
            (datetime.fromisoformat(point.created_at), point.nodes)
            for point in self.used
            if point.created_at is not None
        ]
        return [nodes for _, nodes in sorted(at)] if len(at) == len(self.used) else []

    @cached_property
    def sampled(self) -> list[tuple[int, SampleCounts]]:
        """(nodes, samples) of the used runs that report their samples."""
        return [
            (point.nodes, point.samples)
            for point in self.used
            if point.samples and point.samples.processed
        ]
