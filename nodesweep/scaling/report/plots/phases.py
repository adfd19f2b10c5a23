"""Plot of the time of a job by platform phase, with a stacked bar for each node count."""

from __future__ import annotations

from collections.abc import Mapping

from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import format_seconds, nodes_text, pluralize
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.canvas import Drawing, begin, finish
from nodesweep.scaling.report.plots.stacks import (
    MAX_BARS,
    Stack,
    bars_height_inches,
    draw_stacks,
)
from nodesweep.scaling.report.table import evenly_spaced

_OTHER = "other phases"
_STYLES: Mapping[str, tuple[str, str]] = {
    "Starting": ("starting", "////"),
    "Pending": ("pending", ".."),
    "Downloading": ("downloading", "\\\\\\\\"),
    "Training": ("accent", ""),
    "Uploading": ("uploading", "xxx"),
    _OTHER: ("muted", "--"),
}
"""Color and hatching by phase, in the order of the phases."""


def draw_phases(report: ScalingReport) -> Drawing | None:
    """Draw the median seconds of each phase; None if no phases were reported."""
    rows = evenly_spaced([row for row in report.summary if row.phases], MAX_BARS)
    if not rows:
        return None
    phases = {row.nodes: _phases(row) for row in rows}
    drawing = begin(
        "phases", "Phases of a job", report, "median of the runs", bars_height_inches(len(rows))
    )
    unit, name = _unit(max(sum(each.values()) for each in phases.values()))
    draw_stacks(
        drawing,
        [
            Stack(
                nodes,
                {phase: seconds / unit for phase, seconds in each.items()},
                format_seconds(sum(each.values())),
            )
            for nodes, each in phases.items()
        ],
        _STYLES,
    )
    finish(drawing, f"{name} in each phase", "", legend_columns=3)
    drawing.numbers = "; ".join(_describe(nodes, each) for nodes, each in phases.items())
    left_out = sum(bool(row.phases) for row in report.summary) - len(rows)
    drawing.caption = "You wait for all phases of a job, but the speedup covers only the training."
    if left_out:
        drawing.caption += f" Not shown: {pluralize(left_out, 'node count')}."
    return drawing


def _phases(row: SummaryRow) -> dict[str, float]:
    """Return the phases of a row in the order of _STYLES, with all other phases summed."""
    found = {phase: row.phases[phase] for phase in _STYLES if phase in row.phases}
    other = [seconds for phase, seconds in row.phases.items() if phase not in _STYLES]
    return found | ({_OTHER: sum(other)} if other else {})


def _unit(longest: float) -> tuple[float, str]:
    if longest >= 2 * 3600:
        return 3600, "hours"
    return (60, "minutes") if longest >= 120 else (1, "seconds")


def _describe(nodes: int, phases: Mapping[str, float]) -> str:
    parts = ", ".join(f"{phase} {format_seconds(seconds)}" for phase, seconds in phases.items())
    return f"{nodes_text(nodes)}: {parts}"
