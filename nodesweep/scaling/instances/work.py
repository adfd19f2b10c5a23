"""The work of a sweep's cells: the samples that their runs processed."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from nodesweep.scaling.arms import Arm, Cell
from nodesweep.scaling.report.model import ScalingReport


def samples_by_cell(reports: Mapping[Arm, ScalingReport]) -> dict[Cell, float | None]:
    """Map each cell with a used run to the median samples per run; None if not counted."""
    counts: dict[Cell, list[int | None]] = {}
    for arm, report in reports.items():
        for point in report.points:
            if point.used:
                processed = None if point.samples is None else point.samples.processed
                counts.setdefault(Cell(arm, point.nodes), []).append(processed)
    known = {cell: [count for count in own if count] for cell, own in counts.items()}
    return {cell: median(own) if own else None for cell, own in known.items()}
