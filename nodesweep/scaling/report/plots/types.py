"""The two plots that compare several instance types or variants, with a curve for each.

They show train time over nodes, and cost against train time with the time-cost front.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.scaling.formats import format_seconds, format_usd
from nodesweep.scaling.instances.model import ArmRow, InstanceComparison
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.canvas import (
    COLOURS,
    DASHED,
    Drawing,
    begin,
    finish,
    set_node_ticks,
)
from nodesweep.scaling.report.plots.cost import set_time_cost_axes, tick_text, time_ticks
from nodesweep.scaling.report.tables.instances import of_all_types

# Marker shapes distinguish the types without color.
_STYLES = tuple(
    zip(
        ("accent", "starting", "downloading", "uploading", "bad", "pending", "ink", "muted"),
        ("o", "s", "^", "D", "v", "P", "X", "*"),
        strict=True,
    )
)


def draw_types(report: ScalingReport, comparison: InstanceComparison) -> Drawing | None:
    """Draw train time over nodes on logarithmic axes; None if no arm has a time."""
    timed = [arm for arm in comparison.arms if arm.train_seconds is not None]
    if not timed:
        return None
    drawing = begin("types", "Train time by nodes", of_all_types(report), report.policy_label)
    for name, (colour, shape) in zip(comparison.names, _STYLES, strict=False):
        own = [arm for arm in timed if arm.name == name]
        _draw_curve(
            drawing,
            [(arm.nodes, arm.train_seconds or 0.0, arm) for arm in own],
            name,
            colour,
            shape,
        )
        for arm in own:
            if arm.predicted:
                _draw_interval(drawing, (arm.nodes,) * 2, _span(arm), colour)
    _set_time_axis(drawing, [end for arm in timed for end in _span(arm)])
    set_node_ticks(drawing, sorted({arm.nodes for arm in timed}))
    finish(drawing, "nodes", "train time (log scale)", legend_columns=2)
    drawing.numbers = "; ".join(_describe(arm, arm.train_seconds) for arm in timed)
    drawing.caption = (
        f"One curve per {comparison.kind}; speedup is within a {comparison.word}. Lower is faster."
        + _hollow(timed)
    )
    return drawing


def draw_frontier(report: ScalingReport, comparison: InstanceComparison) -> Drawing | None:
    """Draw cost against train time; None if no arm has both values."""
    known = [arm for arm in comparison.arms if arm.seconds is not None and arm.usd is not None]
    if not known:
        return None
    drawing = begin(
        "frontier", "Run cost against train time", of_all_types(report), report.policy_label
    )
    front = [(arm.seconds or 0.0, arm.usd or 0.0) for arm in comparison.front]
    if front:
        drawing.axes.plot(
            [seconds for seconds, _ in front],
            [usd for _, usd in front],
            color=COLOURS["muted"],
            linewidth=5,
            alpha=0.35,
            solid_capstyle="round",
            label="time-cost front",
        )
    for name, (colour, shape) in zip(comparison.names, _STYLES, strict=False):
        own = [arm for arm in known if arm.name == name]
        points = [(arm.seconds or 0.0, arm.usd or 0.0, arm) for arm in own]
        _draw_curve(drawing, points, name, colour, shape)
        for seconds, usd, arm in points:
            if arm.predicted:
                _draw_interval(drawing, _span(arm), (usd, usd), colour)
                _draw_interval(drawing, (seconds, seconds), _usd_span(arm), colour)
            drawing.axes.annotate(
                f"{arm.nodes}",
                (seconds, usd),
                color=COLOURS["ink"],
                fontsize=10,
                textcoords="offset points",
                xytext=(6, 6),
            )
    set_time_cost_axes(
        drawing,
        [end for arm in known for end in _span(arm, arm.seconds)],
        [end for arm in known for end in _usd_span(arm)],
        format_usd,
    )
    finish(drawing, "train time (log scale)", "run cost, USD", legend_columns=2)
    drawing.numbers = "; ".join(_describe(arm, arm.seconds) for arm in known)
    drawing.caption = (
        "Time-cost front: nothing else is both faster and cheaper. Numbers are node counts."
        + _hollow(known)
        + _not_drawn(comparison)
    )
    return drawing


def _draw_curve(
    drawing: Drawing,
    points: Sequence[tuple[float, float, ArmRow]],
    name: str,
    colour: str,
    shape: str,
) -> None:
    if not points:
        return
    drawing.axes.plot(
        [x for x, _, _ in points],
        [y for _, y, _ in points],
        color=COLOURS[colour],
        linewidth=1.6,
        linestyle=DASHED if all(arm.kind for _, _, arm in points) else "-",
        marker=shape,
        label=name,
    )
    if predicted := [(x, y) for x, y, arm in points if arm.predicted]:
        drawing.axes.plot(
            *zip(*predicted, strict=True),
            linestyle="none",
            marker=shape,
            markeredgecolor=COLOURS[colour],
            markerfacecolor=COLOURS["hollow"],
        )


def _draw_interval(
    drawing: Drawing, across: tuple[float, ...], up: tuple[float, ...], colour: str
) -> None:
    drawing.axes.plot(across, up, color=COLOURS[colour], linewidth=0.9, alpha=0.7)


def _span(arm: ArmRow, seconds: float | None = None) -> tuple[float, ...]:
    """Return the ends of a predicted time's interval, or a measured time alone."""
    within = arm.train_interval if arm.predicted else None
    return (seconds or arm.train_seconds or 0.0,) if within is None else within.bounds


def _usd_span(arm: ArmRow) -> tuple[float, ...]:
    """Return the ends of a predicted cost's interval, or a measured cost alone."""
    within = arm.total_usd_interval if arm.predicted else None
    return (arm.usd or 0.0,) if within is None else within.bounds


def _hollow(arms: Sequence[ArmRow]) -> str:
    return " Hollow: predicted, with 90% intervals." if any(arm.predicted for arm in arms) else ""


def _describe(arm: ArmRow, seconds: float | None) -> str:
    """Return text such as "4 x ml.g5.xlarge: 3 min, $2.00, on the front"."""
    parts = [format_seconds(seconds)]
    parts += [format_usd(arm.usd)] if arm.usd is not None else []
    parts += [arm.kind] if arm.kind else []
    parts += ["on the front"] if arm.on_front else []
    return f"{arm.text}: {', '.join(parts)}"


def _not_drawn(comparison: InstanceComparison) -> str:
    unpriced = [name for name, price in comparison.prices.items() if price.usd_per_hour is None]
    return f" Not shown, because the price is unknown: {', '.join(unpriced)}." if unpriced else ""


def _set_time_axis(drawing: Drawing, seconds: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis = drawing.axes.yaxis
    drawing.axes.set_yscale("log", base=2)
    least, most = min(seconds), max(seconds)
    drawing.axes.set_ylim(least / 1.3, most * 1.3)
    axis.set_major_locator(FixedLocator(time_ticks(least, most)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axis.set_minor_locator(NullLocator())
