"""What the caveats of a report rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from scaling.report.model import Point, SampleCounts, ScalingReport


@dataclass(frozen=True)
class Evidence:
    """All that a caveat may rest on: the report, still without its caveats,
    and what it was judged by.

    `planned` holds the (nodes, repeat) of every planned point.
    """

    report: ScalingReport
    planned: Sequence[tuple[int, int]]
    parity_tolerance: float

    @cached_property
    def used(self) -> list[Point]:
        return [point for point in self.report.points if point.used]

    @cached_property
    def sampled(self) -> list[tuple[int, SampleCounts]]:
        """(nodes, samples) of the used runs that counted theirs."""
        return [
            (point.nodes, point.samples)
            for point in self.used
            if point.samples and point.samples.processed
        ]
