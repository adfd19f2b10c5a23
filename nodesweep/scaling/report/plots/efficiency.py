"""Plot of efficiency by node count, with a line at the lowest acceptable efficiency."""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.analysis.speedup import Baseline, SummaryRow
from nodesweep.scaling.formats import format_interval, format_percent, nodes_text
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.canvas import (
    COLOURS,
    DASHED,
    MAX_MARKERS,
    Drawing,
    Label,
    begin,
    draw_intervals,
    draw_labels,
    draw_missing,
    finish,
    mark_curve,
    set_node_axis,
)
from nodesweep.scaling.report.table import evenly_spaced

# Possible label positions, best first, each with the offset from the point to the baseline of the
# label (below or above the point) and the least space to a line, in points (1/72 inch). With an
# offset of 7, the middle of the label is about 8 percentage points away.
_LABEL_POSITIONS = ((-23, 7), (11, 7), (-17, 4), (7, 4), (-34, 4), (22, 4))
_LABEL_POINTS = 9


def draw_efficiency(report: ScalingReport, baseline: Baseline) -> Drawing:
    """Draw the efficiency E = S x N0/N; `baseline` is report.baseline."""
    rows = report.summary
    curve = evenly_spaced(
        [(row, row.train.efficiency) for row in rows if row.train.efficiency is not None],
        MAX_MARKERS,
    )
    drawing = begin("efficiency", "Efficiency", report, report.policy_label)
    axes = drawing.axes
    least = float(report.limits.get("min_efficiency", RecommendationConfig().min_efficiency))
    ends = [baseline.nodes, rows[-1].nodes * 1.35]
    axes.plot(ends, [1, 1], color=COLOURS["muted"], linestyle=DASHED, linewidth=1.3, label="ideal")
    threshold = f"{format_percent(least)} threshold"
    axes.axhline(
        least,
        color=COLOURS["starting"],
        linestyle=(0, (7, 2, 1, 2)),
        linewidth=1.3,
        label=threshold,
    )
    label = "mean of the runs" if any(row.n > 1 for row, _ in curve) else "measured, n = 1"
    mark_curve(drawing, curve, label)
    bars = [(row.nodes, row.train.efficiency_interval) for row, _ in curve]
    draw_intervals(drawing, [(nodes, bar) for nodes, bar in bars if bar is not None])
    draw_missing(drawing, rows)
    set_node_axis(drawing, rows)
    tops = [interval.high for _, interval in bars if interval is not None]
    _set_efficiency_axis(drawing, max(1.0, *(efficiency for _, efficiency in curve), *tops))
    finish(drawing, "nodes", f"efficiency against {nodes_text(baseline.nodes)}")
    reaches = [(row.nodes, efficiency, row.train.efficiency_interval) for row, efficiency in curve]
    draw_labels(drawing, _labels(reaches, (0.0, least, 1.0), _points_per_unit(drawing)))
    drawing.numbers = "; ".join(_describe(row) for row, _ in evenly_spaced(curve, 20))
    drawing.caption = (
        f"Share of the ideal speedup that was reached; at {format_percent(0.5)}, the node-time "
        "is doubled."
    )
    return drawing


def _describe(row: SummaryRow) -> str:
    parts = [
        format_percent(row.train.efficiency),
        format_interval(row.train.efficiency_interval, format_percent),
    ]
    return f"{nodes_text(row.nodes)}: {' '.join(part for part in parts if part)}"


def _points_per_unit(drawing: Drawing) -> float:
    """Return the distance from 0 to 100% on the page, in points (1/72 inch)."""
    # the height of the axes depends on the titles and the legend
    drawing.figure.draw_without_rendering()
    bottom, top = drawing.axes.get_ylim()
    return float(drawing.axes.get_window_extent().height * 72 / drawing.figure.dpi / (top - bottom))


def _labels(
    curve: Sequence[tuple[int, float, Interval | None]], lines: Sequence[float], scale: float
) -> list[Label]:
    """Return a label for each (nodes, efficiency, interval) that keeps clear of `lines`."""
    labels: list[Label] = []
    for nodes, efficiency, interval in curve:
        low, high = (
            (interval.low, interval.high) if interval is not None else (efficiency, efficiency)
        )
        positions = [(low if offset < 0 else high, offset) for offset, _ in _LABEL_POSITIONS]
        free = [
            _free_points(y * scale + offset, [line * scale for line in lines])
            for y, offset in positions
        ]
        roomy = [index for index, (_, least) in enumerate(_LABEL_POSITIONS) if free[index] >= least]
        y, offset = positions[roomy[0] if roomy else free.index(max(free))]
        labels.append(Label(nodes, y, format_percent(efficiency), (0, offset), "center"))
    return labels


def _free_points(bottom: float, lines: Sequence[float]) -> float:
    """Return the space in points between a label and the nearest line; negative if they overlap.

    `bottom` is the lower edge of the label, and the lowest line is the axis.
    """
    if bottom < lines[0]:
        return bottom - lines[0]
    return min(max(bottom - line, line - bottom - _LABEL_POINTS) for line in lines)


def _set_efficiency_axis(drawing: Drawing, top: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    drawing.axes.set_ylim(0, top * 1.12)
    drawing.axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    drawing.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g}%"))
