"""The five plots of a ScalingReport, and two more for several instance types or variants.

A plot with nothing to draw is left out.
"""

from __future__ import annotations

from nodesweep.scaling.instances.model import InstanceComparison
from nodesweep.scaling.names import PlotKind
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.canvas import (
    Drawing,
    drawing_style,
    to_png,
    to_svg,
)
from nodesweep.scaling.report.plots.cost import draw_cost
from nodesweep.scaling.report.plots.efficiency import draw_efficiency
from nodesweep.scaling.report.plots.parts import draw_parts
from nodesweep.scaling.report.plots.phases import draw_phases
from nodesweep.scaling.report.plots.speedup import draw_speedup
from nodesweep.scaling.report.plots.types import draw_frontier, draw_types
from nodesweep.scaling.report.sources import is_phase

__all__ = ["Drawing", "draw_plots", "drawing_style", "to_png", "to_svg"]


def draw_plots(report: ScalingReport) -> dict[PlotKind, Drawing]:
    """Return the plots in the order of the page; empty if nothing completed.

    Draw and save within drawing_style(). If the times are phases of the platform, only the plot of
    the phases is drawn, because it shows what the times include.
    """
    types = [] if report.instances is None else draw_type_plots(report, report.instances)
    if report.baseline is None:
        return {drawing.kind: drawing for drawing in types}
    phases = draw_phases(report)
    drawings = [phases]
    if not is_phase(report.train_clock):
        speedup = draw_speedup(report, report.baseline)
        efficiency = draw_efficiency(report, report.baseline)
        drawings = [speedup, efficiency, draw_cost(report), phases, draw_parts(report)]
    return {drawing.kind: drawing for drawing in (*types, *drawings) if drawing is not None}


def draw_type_plots(report: ScalingReport, comparison: InstanceComparison) -> list[Drawing]:
    """Return the two plots with a curve for each instance type or variant."""
    drawings = draw_frontier(report, comparison), draw_types(report, comparison)
    return [drawing for drawing in drawings if drawing is not None]
