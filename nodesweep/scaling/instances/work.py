"""The number of samples that the runs of each cell processed."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from nodesweep.scaling.arms import Arm, Cell
from nodesweep.scaling.report.model import ScalingReport


def samples_by_cell(reports: Mapping[Arm, ScalingReport]) -> dict[Cell, float | None]:
    """Return the median number of samples per run by cell; None if the samples were not counted."""
    counts: dict[Cell, list[int | None]] = {}
    for arm, report in reports.items():
        for point in report.points:
            if point.used:
                processed = None if point.samples is None else point.samples.processed
                counts.setdefault(Cell(arm, point.nodes), []).append(processed)
    known = {cell: [count for count in own if count] for cell, own in counts.items()}
    return {cell: median(own) if own else None for cell, own in known.items()}
