"""Plot of where the time goes: a stacked bar with the shares of T for each node count."""

from __future__ import annotations

from collections.abc import Mapping

from nodesweep.scaling.analysis.step_budget import CAUSES, Cause, CountBudget
from nodesweep.scaling.formats import format_percent, format_seconds, join_words, nodes_text
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.canvas import Drawing, begin, finish
from nodesweep.scaling.report.plots.stacks import (
    MAX_BARS,
    Stack,
    bars_height_inches,
    draw_stacks,
)
from nodesweep.scaling.report.table import evenly_spaced

LEAST_SHARE = 0.005
"""Smallest share of T that gets its own layer in the plot."""
_LAYERS: Mapping[Cause, str] = {
    "compute": "compute",
    "communication": "communication",
    "waiting": "waiting",
    "data": "data wait",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "start": "first step",
    "other": "other",
}
_STYLES: Mapping[str, tuple[str, str]] = {
    "compute": ("accent", ""),
    "communication": ("uploading", "xxx"),
    "waiting": ("bad", "////"),
    "data wait": ("starting", ".."),
    "evaluation": ("downloading", "\\\\\\\\"),
    "checkpoints": ("pending", "--"),
    "first step": ("muted", "++"),
    "other": ("grid", ""),
}


def draw_parts(report: ScalingReport) -> Drawing | None:
    """Draw the shares of T at each node count; None if the report has no step budget."""
    if report.step_budget is None:
        return None
    counts = evenly_spaced(report.step_budget.counts, MAX_BARS)
    shares = {count.nodes: _shares(count) for count in counts}
    drawing = begin(
        "parts",
        "Where the time goes",
        report,
        "shares of T, mean of processes and runs",
        bars_height_inches(len(counts)),
    )
    draw_stacks(
        drawing,
        [
            Stack(
                count.nodes,
                {layer: 100 * share for layer, share in shares[count.nodes].items()},
                format_seconds(sum(part.seconds for part in count.parts)),
            )
            for count in counts
        ],
        _STYLES,
    )
    drawing.axes.set_xticks(range(0, 101, 20))
    finish(drawing, "share of T in %", "", legend_columns=3)
    drawing.numbers = "; ".join(
        f"{nodes_text(count.nodes)}: "
        + ", ".join(
            f"{layer} {format_percent(share)}" for layer, share in shares[count.nodes].items()
        )
        for count in counts
    )
    slowest = join_words(
        f"{count.slowest_node} at {nodes_text(count.nodes)}"
        for count in counts
        if count.slowest_node is not None
    )
    drawing.caption = "Without losses, all of T is compute. The time next to a bar is its T." + (
        f" The other nodes wait for {slowest}." if slowest else ""
    )
    return drawing


def _shares(count: CountBudget) -> dict[str, float]:
    """Return the shares of T by layer; "other" includes the layers below LEAST_SHARE."""
    of_parts = {part.name: part.share for part in count.parts}
    shares = {
        _LAYERS[cause]: sum(of_parts.get(name, 0.0) for name in names)
        for cause, names in CAUSES.items()
    }
    small = [layer for layer, share in shares.items() if share < LEAST_SHARE and layer != "other"]
    shares["other"] += sum(shares.pop(layer) for layer in small)
    return {layer: share for layer, share in shares.items() if share >= LEAST_SHARE}
