"""Draw horizontal stacked bars, one for each node count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.report.plots.canvas import COLOURS, HEIGHT_INCHES, Drawing

MAX_BARS = 12


class Stack(NamedTuple):
    """A bar: its layers, and the text next to its right end."""

    nodes: int
    layers: Mapping[str, float]
    total: str


def bars_height_inches(bars: int) -> float:
    """Return the height of a plot with this many bars."""
    return max(HEIGHT_INCHES, 1.9 + 0.3 * bars)


def draw_stacks(
    drawing: Drawing, stacks: Sequence[Stack], styles: Mapping[str, tuple[str, str]]
) -> None:
    """Draw the bars.

    Args:
        drawing: The plot.
        stacks: The bars; their layers must not be negative.
        styles: (color, hatching) by layer, in the order of the layers; the hatching distinguishes
            them without color.
    """
    axes = drawing.axes
    ends = [0.0] * len(stacks)
    for layer, (colour, hatch) in styles.items():
        if not any(layer in stack.layers for stack in stacks):
            continue
        widths = [stack.layers.get(layer, 0.0) for stack in stacks]
        axes.barh(
            range(len(stacks)),
            widths,
            left=ends,
            height=0.66,
            color=COLOURS[colour],
            edgecolor=COLOURS["hollow"],
            linewidth=0.6,
            hatch=hatch,
            label=layer,
        )
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    where: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 0), "va": "center"}
    for index, (stack, end) in enumerate(zip(stacks, ends, strict=True)):
        axes.annotate(stack.total, (end, index), color=COLOURS["ink"], fontsize=10.5, **where)
    axes.set_yticks(range(len(stacks)), [nodes_text(stack.nodes) for stack in stacks])
    axes.set_ylim(len(stacks) - 0.45, -0.55)
    axes.set_xlim(0, max(ends) * 1.22 or 1)
    axes.grid(visible=False, axis="y")
