"""ScalingReport -> its four plots. One is left out where the report has nothing to draw in it."""

from __future__ import annotations

from scaling.names import PlotKind
from scaling.report.model import ScalingReport
from scaling.report.plots.canvas import Drawing, drawing_style, to_page_svg, to_png, to_svg
from scaling.report.plots.cost import draw_cost
from scaling.report.plots.efficiency import draw_efficiency
from scaling.report.plots.phases import draw_phases
from scaling.report.plots.speedup import draw_speedup
from scaling.report.sources import is_phase

__all__ = ["Drawing", "draw_plots", "drawing_style", "to_page_svg", "to_png", "to_svg"]


def draw_plots(report: ScalingReport) -> dict[PlotKind, Drawing]:
    """In the order of the page; empty where nothing completed.
    Draw and save within drawing_style().

    Of times that are no program's own the phases alone, which show what the times hold.
    """
    if report.baseline is None:
        return {}
    phases = draw_phases(report)
    drawings = [phases]
    if not is_phase(report.train_clock):
        speedup = draw_speedup(report, report.baseline)
        efficiency = draw_efficiency(report, report.baseline)
        drawings = [speedup, efficiency, draw_cost(report), phases]
    return {drawing.kind: drawing for drawing in drawings if drawing is not None}
