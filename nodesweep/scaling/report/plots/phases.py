"""Time of a job by platform phase: one stacked bar per node count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import format_seconds, nodes_text
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.canvas import (
    COLOURS,
    HEIGHT_INCHES,
    Drawing,
    begin,
    finish,
)
from nodesweep.scaling.report.table import evenly_spaced

MAX_BARS = 12
# In the order they happen. The hatching tells them apart without colour.
_STYLES: Mapping[str, tuple[str, str]] = {
    "Starting": ("starting", "////"),
    "Pending": ("pending", ".."),
    "Downloading": ("downloading", "\\\\\\\\"),
    "Training": ("accent", ""),
    "Uploading": ("uploading", "xxx"),
}
_OTHER = "other phases"
_OTHER_STYLE = ("muted", "--")


def draw_phases(report: ScalingReport) -> Drawing | None:
    """Draw the median seconds of each phase; None if no node count has any."""
    rows = evenly_spaced([row for row in report.summary if row.phases], MAX_BARS)
    if not rows:
        return None
    stacks = [_stack(row) for row in rows]
    drawing = begin(
        "phases",
        "Phases of a job",
        report,
        "median of the runs",
        max(HEIGHT_INCHES, 1.9 + 0.3 * len(rows)),
    )
    unit, name = _unit(max(sum(stack.values()) for stack in stacks))
    present = [phase for phase in (*_STYLES, _OTHER) if any(phase in stack for stack in stacks)]
    for phase in present:
        _draw_phase(drawing, phase, stacks, present, unit)
    for index, stack in enumerate(stacks):
        total = sum(stack.values())
        where: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 0), "va": "center"}
        drawing.axes.annotate(
            format_seconds(total),
            (total / unit, index),
            color=COLOURS["ink"],
            fontsize=10.5,
            **where,
        )
    _set_axes(drawing, rows, max(sum(stack.values()) for stack in stacks) / unit)
    finish(drawing, f"{name} in each phase", "", legend_columns=3)
    drawing.numbers = "; ".join(
        _describe(row, stack) for row, stack in zip(rows, stacks, strict=True)
    )
    left_out = sum(bool(row.phases) for row in report.summary) - len(rows)
    drawing.caption = "You wait for all phases of a job; the speedup is that of the training alone."
    if left_out:
        drawing.caption += f" {left_out} node counts are not shown."
    return drawing


def _stack(row: SummaryRow) -> dict[str, float]:
    """Return a row's phases in order, with all other phases summed."""
    stack = {phase: row.phases[phase] for phase in _STYLES if phase in row.phases}
    other = [seconds for phase, seconds in row.phases.items() if phase not in _STYLES]
    return stack | ({_OTHER: sum(other)} if other else {})


def _unit(longest: float) -> tuple[float, str]:
    if longest >= 2 * 3600:
        return 3600, "hours"
    return (60, "minutes") if longest >= 120 else (1, "seconds")


def _draw_phase(
    drawing: Drawing,
    phase: str,
    stacks: Sequence[Mapping[str, float]],
    present: Sequence[str],
    unit: float,
) -> None:
    colour, hatch = _STYLES.get(phase, _OTHER_STYLE)
    before = present[: present.index(phase)]
    starts = [sum(stack.get(earlier, 0.0) for earlier in before) / unit for stack in stacks]
    drawing.axes.barh(
        range(len(stacks)),
        [stack.get(phase, 0.0) / unit for stack in stacks],
        left=starts,
        height=0.66,
        color=COLOURS[colour],
        edgecolor=COLOURS["hollow"],
        linewidth=0.6,
        hatch=hatch,
        label=phase,
    )


def _describe(row: SummaryRow, stack: Mapping[str, float]) -> str:
    parts = ", ".join(f"{phase} {format_seconds(seconds)}" for phase, seconds in stack.items())
    return f"{nodes_text(row.nodes)}: {parts}"


def _set_axes(drawing: Drawing, rows: Sequence[SummaryRow], longest: float) -> None:
    axes = drawing.axes
    axes.set_yticks(range(len(rows)), [nodes_text(row.nodes) for row in rows])
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_xlim(0, longest * 1.22 or 1)
    axes.grid(visible=False, axis="y")
