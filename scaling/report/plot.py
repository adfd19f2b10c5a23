"""The speedup plot, as SVG for a page and as PNG for a README.

matplotlib's object-oriented API, no pyplot. It takes about a second to import, so it is imported when a plot is made.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scaling.formats import format_speedup, nodes_text
from scaling.report.model import ScalingReport
from scaling.report.table import titled
from scaling.speedup import Baseline, SummaryRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In an SVG each of these becomes var(--NAME, colour): the page's light and dark styles set it, alone the colour holds.
COLOURS = {
    "ink": "#1b2127",
    "muted": "#5f6b76",
    "grid": "#e1e5e9",
    "accent": "#0a66c2",
    "bad": "#b3261e",
    "paper": "#fefefe",
}
# A page of 100,000 runs would draw as many dots; evenly spaced ones show the spread as well.
MAX_DOTS_PER_NODE_COUNT = 100
_HASH_SALT = "nodesweep"
_MIN_TICK_RATIO = 1.3
_MAX_TICKS = 9


def speedup_svg(report: ScalingReport) -> str | None:
    """An <svg> element whose colours follow the page's CSS variables, or None where nothing completed."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": _HASH_SALT}):
        figure = _draw(report)
        if figure is None:
            return None
        buffer = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    # Width and height would fix the size; the viewBox alone lets the page scale it.
    return re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2).strip() + "\n"


def speedup_png(report: ScalingReport, dots_per_inch: int = 160) -> bytes | None:
    """The same plot as a PNG on white, or None where nothing completed."""
    figure = _draw(report)
    if figure is None:
        return None
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def _draw(report: ScalingReport) -> Figure | None:
    from matplotlib.figure import Figure

    baseline = report.baseline
    if baseline is None:
        return None
    curve = [(row, row.speedup) for row in report.summary if row.speedup is not None]
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    _draw_ideal(axes, baseline.nodes, report.summary[-1].nodes)
    _draw_runs(axes, _run_dots(report, baseline))
    _draw_medians(axes, curve)
    _draw_missing(axes, [row.nodes for row in report.summary if row.speedup is None])
    _set_scales(axes, report.summary, baseline, [speedup for _, speedup in curve])
    _dress(axes, report, baseline)
    return figure


def _draw_ideal(axes: Axes, first: int, last: int) -> None:
    style = (0, (5, 4))
    axes.plot([first, last], [1, last / first], color=COLOURS["muted"], linestyle=style, linewidth=1.3, label="ideal")


def _run_dots(report: ScalingReport, baseline: Baseline) -> list[tuple[int, float]]:
    """(nodes, speedup) of every run, where a node count has several."""
    times: dict[int, list[float]] = {}
    for point in report.points:
        if (seconds := report.train_seconds(point)) is not None:
            times.setdefault(point.nodes, []).append(seconds)
    return [
        (nodes, baseline.train_seconds / each)
        for nodes, seconds in times.items()
        if len(seconds) > 1
        for each in seconds[:: math.ceil(len(seconds) / MAX_DOTS_PER_NODE_COUNT)]
    ]


def _draw_runs(axes: Axes, dots: Sequence[tuple[int, float]]) -> None:
    if dots:
        nodes, speedups = [dot[0] for dot in dots], [dot[1] for dot in dots]
        axes.plot(nodes, speedups, "o", color=COLOURS["accent"], alpha=0.35, ms=5, markeredgewidth=0, label="runs")


def _draw_medians(axes: Axes, curve: Sequence[tuple[SummaryRow, float]]) -> None:
    """The curve; hollow markers where the time is not a time-to-train (METHODOLOGY 5)."""
    label = "median of the runs" if any(row.n > 1 for row, _ in curve) else "measured, n = 1"
    nodes, speedups = [row.nodes for row, _ in curve], [speedup for _, speedup in curve]
    axes.plot(nodes, speedups, color=COLOURS["accent"], linewidth=2, label=label, marker="o")
    hollow = [(row.nodes, speedup) for row, speedup in curve if "throughput_only" in row.flags]
    if hollow:
        nodes, speedups = [nodes for nodes, _ in hollow], [speedup for _, speedup in hollow]
        colours: dict[str, Any] = {"markerfacecolor": COLOURS["paper"], "markeredgecolor": COLOURS["accent"]}
        axes.plot(nodes, speedups, "o", ms=8, label="throughput only", **colours)
    labelled = set(_spaced([row.nodes for row, _ in curve]))
    for row, speedup in curve:
        if row.nodes in labelled:
            place: dict[str, Any] = {"textcoords": "offset points", "xytext": (7, -14)}
            axes.annotate(format_speedup(speedup), (row.nodes, speedup), color=COLOURS["ink"], fontsize=11, **place)


def _draw_missing(axes: Axes, nodes: Sequence[int]) -> None:
    """A cross on the axis for a node count without a completed run."""
    if nodes:
        axes.plot(
            nodes,
            [0.03] * len(nodes),
            "x",
            color=COLOURS["bad"],
            markersize=8,
            markeredgewidth=2,
            transform=axes.get_xaxis_transform(),
            label="not completed",
        )


def _set_scales(axes: Axes, rows: Sequence[SummaryRow], baseline: Baseline, speedups: Sequence[float]) -> None:
    """Ticks at the node counts and at powers of two; room for a label right of the last point."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    first, last = rows[0].nodes, rows[-1].nodes
    bottom, top = min(speedups), max(*speedups, last / baseline.nodes)
    axes.set_xlim(first / 1.2, last * 1.35)
    axes.set_ylim(bottom / 1.35, top * 1.35)
    powers = range(math.floor(math.log2(bottom)), math.ceil(math.log2(top)) + 1)
    axes.xaxis.set_major_locator(FixedLocator(_spaced([row.nodes for row in rows])))
    axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in powers]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _dress(axes: Axes, report: ScalingReport, baseline: Baseline) -> None:
    """Titles, labels, grid and legend."""
    over = f"speedup over {nodes_text(baseline.nodes)}{' (relative)' if baseline.relative else ''}"
    axes.set_xlabel("nodes", color=COLOURS["muted"], fontsize=11)
    axes.set_ylabel(over, color=COLOURS["muted"], fontsize=11)
    axes.set_title(titled("Speedup", report), color=COLOURS["ink"], fontsize=12.5, loc="left", pad=24)
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "xytext": (0, 8)}
    axes.annotate(report.policy_label, (0, 1), color=COLOURS["muted"], fontsize=10.5, **place)
    axes.tick_params(colors=COLOURS["muted"], labelsize=11, length=0)
    axes.grid(color=COLOURS["grid"], linewidth=0.9)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.legend(frameon=False, labelcolor=COLOURS["ink"], fontsize=10.5, loc="upper left")


def _spaced(nodes: Sequence[int]) -> list[int]:
    """The ascending counts that are far enough apart on the log axis for a label each; the last one always."""
    ratio = max(_MIN_TICK_RATIO, (nodes[-1] / nodes[0]) ** (1 / _MAX_TICKS))
    kept: list[int] = []
    for count in reversed(nodes):
        if not kept or kept[-1] / count >= ratio:
            kept.append(count)
    return kept[::-1]
