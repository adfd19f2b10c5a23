"""Plot of the speedup on log2-log2 axes, with the ideal, intervals, single runs and best law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nodesweep.scaling.analysis.speedup import Baseline, SummaryRow
from nodesweep.scaling.fits.models import LawFit
from nodesweep.scaling.formats import (
    format_interval,
    format_seconds,
    format_speedup,
    join_words,
    nodes_text,
)
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.canvas import (
    COLOURS,
    DASHED,
    DOTTED,
    MAX_MARKERS,
    Drawing,
    Label,
    begin,
    draw_intervals,
    draw_labels,
    draw_missing,
    finish,
    hollow_kind,
    mark_curve,
    powers_of_two,
    set_node_axis,
)
from nodesweep.scaling.report.table import evenly_spaced
from nodesweep.scaling.report.tables.cells import time_unit

MAX_DOTS_PER_NODE_COUNT = 100


def draw_speedup(report: ScalingReport, baseline: Baseline) -> Drawing:
    """Draw the speedup over node counts; `baseline` is report.baseline."""
    rows = report.summary
    curve = evenly_spaced(
        [(row, row.train.speedup) for row in rows if row.train.speedup is not None], MAX_MARKERS
    )
    drawing = begin("speedup", "Speedup", report, report.policy_label)
    furthest = _draw_law(drawing, report, baseline)
    last = max(rows[-1].nodes, furthest or 0)
    ideal = [1, last / baseline.nodes]
    drawing.axes.plot(
        [baseline.nodes, last],
        ideal,
        color=COLOURS["muted"],
        linestyle=DASHED,
        linewidth=1.3,
        label="ideal",
    )
    _draw_runs(drawing, _run_dots(report, baseline))
    label = "mean of the runs" if any(row.n > 1 for row, _ in curve) else "measured, n = 1"
    mark_curve(drawing, curve, label)
    bars = [(row.nodes, row.train.speedup_interval) for row, _ in curve]
    draw_intervals(drawing, [(nodes, bar) for nodes, bar in bars if bar is not None])
    draw_labels(drawing, [_label(row, speedup, baseline) for row, speedup in curve])
    draw_missing(drawing, rows)
    set_node_axis(drawing, rows, furthest)
    shown = [*(speedup for _, speedup in curve), *_predicted_interval(report, baseline)]
    _set_speedup_axis(drawing, shown, last / baseline.nodes)
    over = f"speedup over {nodes_text(baseline.nodes)}{' (relative)' if baseline.relative else ''}"
    finish(drawing, "nodes", over)
    drawing.numbers = "; ".join(_describe(row) for row, _ in evenly_spaced(curve, 20))
    drawing.caption = _caption(report, baseline)
    return drawing


def _label(row: SummaryRow, speedup: float, baseline: Baseline) -> Label:
    # below the point, or above it if the point is above the ideal line
    above = speedup > row.nodes / baseline.nodes
    offset, align = ((-7, 7), "right") if above else ((7, -14), "left")
    return Label(row.nodes, speedup, format_speedup(speedup), offset, align)


def _describe(row: SummaryRow) -> str:
    parts = [
        format_speedup(row.train.speedup),
        format_interval(row.train.speedup_interval, format_speedup),
    ]
    notes = filter(None, [f"n = {row.n}", hollow_kind(row)])
    return (
        f"{nodes_text(row.nodes)}: {' '.join(part for part in parts if part)} ({', '.join(notes)})"
    )


def _caption(report: ScalingReport, baseline: Baseline) -> str:
    seconds = f"{format_seconds(baseline.train_seconds)}{time_unit(report.train_clock)}"
    text = f"T({baseline.nodes}) = {seconds} on {nodes_text(baseline.nodes)}."
    law, extrapolation = _drawn_law(report), report.fits.extrapolation
    if law is not None:
        left = " that the runs do not reject" if extrapolation.supported.value else ""
        text += f" Thin line: {law.law}, the best identifiable law{left}."
    if extrapolation.supported.value:
        text += (
            f" Dotted: extrapolation to {nodes_text(extrapolation.nodes or 0)} with a 95% "
            "interval that assumes that one of the laws holds; nothing was measured there."
        )
    single = [row.nodes for row in report.summary if row.n == 1]
    if single and len(single) <= 8:
        text += f" No interval from repeats at n = 1 ({join_words(single)})."
    return text


def _run_dots(report: ScalingReport, baseline: Baseline) -> list[tuple[int, float]]:
    """Return (nodes, speedup) for the runs at node counts with several runs."""
    work = {row.nodes: row.samples_ratio or 1.0 for row in report.summary}
    return [
        (nodes, baseline.train_seconds / each * work[nodes])
        for nodes, seconds in evenly_spaced(
            list(report.train_seconds_by_nodes().items()), MAX_MARKERS
        )
        if len(seconds) > 1
        for each in evenly_spaced(seconds, MAX_DOTS_PER_NODE_COUNT)
    ]


def _draw_runs(drawing: Drawing, dots: Sequence[tuple[int, float]]) -> None:
    if dots:
        nodes, speedups = [dot[0] for dot in dots], [dot[1] for dot in dots]
        style: dict[str, Any] = {
            "color": COLOURS["accent"],
            "alpha": 0.35,
            "markersize": 5,
            "markeredgewidth": 0,
        }
        drawing.axes.plot(nodes, speedups, "o", label="single runs", **style)


def _drawn_law(report: ScalingReport) -> LawFit | None:
    """Return the law of the extrapolation or, without one, the best-ranked identifiable law."""
    identifiable = [fit for fit in report.fits.laws if fit.identifiable.value]
    predicting = [fit for fit in identifiable if fit.law == report.fits.extrapolation.law]
    return next(iter(predicting or identifiable), None)


def _draw_law(drawing: Drawing, report: ScalingReport, baseline: Baseline) -> int | None:
    """Draw the law, dotted beyond the measurements; return the extrapolated node count or None."""
    law = _drawn_law(report)
    if law is None:
        return None
    fitted = [
        row.nodes
        for row in report.summary
        if row.train.seconds is not None and hollow_kind(row) is None
    ]
    counts = [float(nodes) for nodes in np.geomspace(fitted[0], fitted[-1], 33)]
    # Only the ring law needs the ratio of steps, and it is fitted only with a fixed per-replica
    # batch, for which fitted[0] / nodes is that ratio.
    known = [(nodes, law.predict(nodes, fitted[0] / nodes)) for nodes in counts]
    style: dict[str, Any] = {"color": COLOURS["uploading"], "linewidth": 1.1, "zorder": 2.5}
    nodes, seconds = zip(*known, strict=True)
    drawing.axes.plot(
        nodes, [baseline.train_seconds / each for each in seconds], label=f"{law.law} law", **style
    )
    beyond = report.fits.extrapolation
    if beyond.nodes is None or beyond.train_seconds is None:
        return None
    path = [known[-1], (float(beyond.nodes), beyond.train_seconds)]
    drawing.axes.plot(
        [each[0] for each in path],
        [baseline.train_seconds / each[1] for each in path],
        linestyle=DOTTED,
        label="extrapolated if a law holds",
        **style,
    )
    ends = _predicted_interval(report, baseline)
    drawing.axes.plot([beyond.nodes] * len(ends), ends, "_-", gid="extrapolated-interval", **style)
    return beyond.nodes


def _predicted_interval(report: ScalingReport, baseline: Baseline) -> list[float]:
    """Return the bounds of the extrapolated speedup; empty if it has no interval."""
    interval = report.fits.extrapolation.interval
    if interval is None:
        return []
    return [baseline.train_seconds / end for end in (interval.high, interval.low)]


def _set_speedup_axis(drawing: Drawing, speedups: Sequence[float], ideal: float) -> None:
    """Set the ticks to powers of two, and leave room for a label below the lowest point."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes = drawing.axes
    bottom, top = min(speedups), max(*speedups, ideal)
    axes.set_yscale("log", base=2)
    room = max(1.35, (top / bottom) ** 0.13)
    axes.set_ylim(bottom / room, top * 1.35)
    axes.yaxis.set_major_locator(FixedLocator(powers_of_two(bottom, top)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.yaxis.set_minor_locator(NullLocator())
