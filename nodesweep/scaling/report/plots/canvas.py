"""Helpers that the plots of a report share: colors, axes, markers and file formats.

The plots use matplotlib's object-oriented API instead of pyplot. matplotlib takes about a second to
import, so it is imported only to draw a plot.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.names import PlotKind
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import evenly_spaced, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colors of the page's light style.
COLOURS = {
    "ink": "#1b2127",
    "muted": "#5f6b76",
    "grid": "#e1e5e9",
    "accent": "#0a66c2",
    "bad": "#b3261e",
    "hollow": "#fefefe",
    "starting": "#8a5a00",
    "pending": "#737b84",
    "downloading": "#00796b",
    "uploading": "#8e24aa",
}
# Evenly spaced markers show the shape of a curve as well as thousands of them would.
MAX_MARKERS = 100
# A phone shows 4.7 inches at about actual size, which keeps the text readable.
WIDTH_INCHES, HEIGHT_INCHES = 4.7, 4.0
HOLLOW: dict[str, Any] = {
    "markerfacecolor": COLOURS["hollow"],
    "markeredgecolor": COLOURS["accent"],
    "markersize": 8,
}
DASHED = (0, (5, 4))
DOTTED = (0, (1, 2))
_HASH_SALT = "nodesweep"
_MIN_TICK_RATIO = 1.3
_MAX_TICKS = 9
_TITLE_CHARACTERS = 38


@dataclass
class Drawing:
    """A plot: its figure, a text for screen readers, and a caption that explains it."""

    kind: PlotKind
    title: str
    figure: Figure
    axes: Axes
    numbers: str = ""
    caption: str = ""


@contextmanager
def drawing_style() -> Iterator[None]:
    """Render text literally, including dollar signs, and make the output reproducible."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": _HASH_SALT, "text.parse_math": False}):
        yield


def begin(
    kind: PlotKind,
    heading: str,
    report: ScalingReport,
    subtitle: str,
    height_inches: float = HEIGHT_INCHES,
) -> Drawing:
    """Return an empty plot with its titles, which include the kind of platform."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout=layout)
    axes = figure.add_subplot()
    title = titled(heading, report)
    axes.set_title(
        _wrapped(title, heading), color=COLOURS["ink"], fontsize=12.5, loc="left", pad=24
    )
    options: dict[str, Any] = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "xytext": (0, 8),
    }
    axes.annotate(
        subtitle, (0, 1), color=COLOURS["muted"], fontsize=10.5, annotation_clip=False, **options
    )
    axes.tick_params(colors=COLOURS["muted"], labelsize=11, length=0)
    axes.grid(color=COLOURS["grid"], linewidth=0.9)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    return Drawing(kind, title, figure, axes)


def _wrapped(title: str, heading: str) -> str:
    """Return a title on one line, or with a line break after the `heading` that it begins with."""
    if len(title) <= _TITLE_CHARACTERS:
        return title
    parts = (heading, title.removeprefix(heading).strip())
    return "\n".join(line for part in parts for line in textwrap.wrap(part, _TITLE_CHARACTERS))


def finish(drawing: Drawing, x_label: str, y_label: str, legend_columns: int = 2) -> None:
    """Add the axis labels, and the legend below the axes."""
    drawing.axes.set_xlabel(x_label, color=COLOURS["muted"], fontsize=11)
    drawing.axes.set_ylabel(y_label, color=COLOURS["muted"], fontsize=11)
    drawing.figure.legend(
        *drawing.axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=legend_columns,
        frameon=False,
        labelcolor=COLOURS["ink"],
        fontsize=10.5,
        columnspacing=1.4,
    )


def mark(drawing: Drawing, x: float, y: float, **style: Any) -> None:
    """Draw a marker."""
    drawing.axes.plot(
        [x], [y], **{"marker": "o", "color": COLOURS["accent"], "linestyle": "none", **style}
    )


def hollow_kind(row: SummaryRow) -> str | None:
    """Return why a point is drawn hollow: contended or throughput only; None if it is filled."""
    if "starved" in row.flags:
        return "contended"
    return "throughput only" if "throughput_only" in row.flags else None


def mark_curve(drawing: Drawing, points: Sequence[tuple[SummaryRow, float]], label: str) -> None:
    """Draw measured points (row, y) over node counts, and a line through them.

    Points are drawn hollow if hollow_kind() returns a reason.
    """
    drawing.axes.plot(
        [row.nodes for row, _ in points],
        [y for _, y in points],
        color=COLOURS["accent"],
        linewidth=2,
        marker="o",
        label=label,
    )
    labelled: set[str] = set()
    for row, y in points:
        if kind := hollow_kind(row):
            mark(drawing, row.nodes, y, label=None if kind in labelled else kind, **HOLLOW)
            labelled.add(kind)


def draw_intervals(drawing: Drawing, bars: Sequence[tuple[int, Interval]]) -> None:
    """Draw a vertical bar with caps for each interval; the legend gives the confidence level."""
    if not bars:
        return
    levels = sorted({interval.level for _, interval in bars})
    ends = dict.fromkeys(f"{level * 100:.0f}" for level in (levels[0], levels[-1]))
    label = f"{' to '.join(ends)}%"
    middles = [(interval.low + interval.high) / 2 for _, interval in bars]
    reach = [(interval.high - interval.low) / 2 for _, interval in bars]
    drawing.axes.errorbar(
        [nodes for nodes, _ in bars],
        middles,
        yerr=reach,
        fmt="none",
        ecolor=COLOURS["ink"],
        elinewidth=1.3,
        capsize=4,
        label=f"{label} interval",
    )


def draw_missing(drawing: Drawing, rows: Sequence[SummaryRow]) -> None:
    """Draw a cross on the axis for each node count without a completed run."""
    missing = evenly_spaced([row for row in rows if row.train.seconds is None], MAX_MARKERS)
    for index, row in enumerate(missing):
        mark(
            drawing,
            row.nodes,
            0.03,
            marker="x",
            color=COLOURS["bad"],
            markersize=8,
            markeredgewidth=2,
            transform=drawing.axes.get_xaxis_transform(),
            label="not completed" if index == 0 else None,
        )


def set_node_axis(drawing: Drawing, rows: Sequence[SummaryRow], last: float | None = None) -> None:
    """Make the x axis logarithmic, from the first node count to the last one or `last`."""
    set_node_ticks(drawing, [row.nodes for row in rows], last)


def set_node_ticks(drawing: Drawing, nodes: Sequence[int], last: float | None = None) -> None:
    """Make the x axis logarithmic; `nodes` are ascending, and `last` can extend the axis."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis = drawing.axes.xaxis
    drawing.axes.set_xscale("log", base=2)
    furthest = max(nodes[-1], last or 0)
    # Leave half the width of a label to the left of the first point, to keep its label clear of the
    # labels of the y axis.
    drawing.axes.set_xlim(nodes[0] / max(1.2, (furthest / nodes[0]) ** 0.08), furthest * 1.35)
    axis.set_major_locator(FixedLocator(spaced(nodes if last is None else [*nodes, int(last)])))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


@dataclass(frozen=True)
class Label:
    """A text `offset` points away from (nodes, y); `align` is left, center or right."""

    nodes: int
    y: float
    text: str
    offset: tuple[float, float]
    align: str


def draw_labels(drawing: Drawing, labels: Sequence[Label]) -> None:
    """Draw the labels that there is room for; `labels` are sorted by node count."""
    labelled = set(spaced([label.nodes for label in labels]))
    for label in labels:
        if label.nodes in labelled:
            options: dict[str, Any] = {
                "textcoords": "offset points",
                "xytext": label.offset,
                "ha": label.align,
            }
            drawing.axes.annotate(
                label.text, (label.nodes, label.y), color=COLOURS["ink"], fontsize=11, **options
            )


def spaced(nodes: Sequence[int]) -> list[int]:
    """Return the node counts that have room for a label on the log axis, always including the last.

    `nodes` are ascending.
    """
    ratio = max(_MIN_TICK_RATIO, (nodes[-1] / nodes[0]) ** (1 / _MAX_TICKS))
    kept: list[int] = []
    for count in reversed(nodes):
        if not kept or kept[-1] / count >= ratio:
            kept.append(count)
    return kept[::-1]


def to_svg(drawing: Drawing) -> bytes:
    """Return the plot as an SVG file with a white background."""
    buffer = io.BytesIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    drawing.figure.savefig(buffer, format="svg", facecolor="white", metadata=no_metadata)
    # keep this layout for the PNG instead of computing it again
    drawing.figure.set_layout_engine("none")
    return buffer.getvalue()


def to_png(drawing: Drawing, dots_per_inch: int = 160) -> bytes:
    """Return the plot as a PNG file with a white background."""
    buffer = io.BytesIO()
    drawing.figure.savefig(
        buffer, format="png", dpi=dots_per_inch, facecolor="white", metadata={"Software": None}
    )
    return buffer.getvalue()


def powers_of_two(bottom: float, top: float) -> list[float]:
    """Return powers of two as the ticks of a log2 axis, at most about ten."""
    first, last = math.floor(math.log2(bottom)), math.ceil(math.log2(top))
    step = math.ceil((last - first + 1) / (_MAX_TICKS + 1))
    return [2.0**power for power in range(first, last + 1, step)]
