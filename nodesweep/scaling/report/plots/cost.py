"""Plot of run cost, or node-hours if costs are unknown, against train time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nodesweep.scaling.analysis.measured_count import usd_per_result
from nodesweep.scaling.analysis.per_result import expected
from nodesweep.scaling.analysis.price import SECONDS_PER_HOUR
from nodesweep.scaling.analysis.recommend import pareto_front
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import (
    agree,
    format_seconds,
    format_usd,
    format_value,
    join_words,
    nodes_text,
)
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.plots.canvas import (
    COLOURS,
    HOLLOW,
    MAX_MARKERS,
    Drawing,
    begin,
    finish,
    hollow_kind,
    mark,
    spaced,
)
from nodesweep.scaling.report.table import evenly_spaced
from nodesweep.scaling.report.tables.costs import cost_origin

_NICE_SECONDS = [
    *(factor * 10.0**power for power in range(-9, 1) for factor in (1, 2, 5)),
    *(10.0, 15, 20, 30),
    *(60.0 * minutes for minutes in (1, 2, 3, 5, 10, 15, 20, 30)),
    *(3600.0 * hours for hours in (1, 2, 4, 8, 12, 24, 48, 96, 240)),
    *(3600.0 * 10**power for power in range(3, 9)),
]
_MAX_TIME_TICKS = 5
_MAX_NAMED = 8


@dataclass(frozen=True)
class _Spend:
    """A node count with the time of a result and its cost `y`, in USD or as node-time."""

    row: SummaryRow
    seconds: float
    y: float
    on_front: bool


def draw_cost(report: ScalingReport) -> Drawing:
    """Draw the cost of each node count, or its node-time if no cost is known, against its time."""
    in_usd = any(
        row.costs.total_usd is not None and row.train.seconds is not None for row in report.summary
    )
    per_sample = report.train_clock == "throughput"
    spends = _in_usd(report) if in_usd else _in_node_time(report, per_sample)
    unit = (
        "run cost" if in_usd else "node-seconds per sample" if per_sample else "node-hours (N x T)"
    )
    time = "time per sample" if per_sample else "train time"
    drawing = begin(
        "cost", f"{unit[0].upper()}{unit[1:]} against {time}", report, report.policy_label
    )
    shown = evenly_spaced(spends, MAX_MARKERS)
    write = format_usd if in_usd else _plain
    _draw_front(drawing, shown)
    _draw_points(drawing, shown)
    times, spent = [spend.seconds for spend in shown], [spend.y for spend in shown]
    set_time_cost_axes(drawing, times, spent, write)
    finish(drawing, f"{time} (log scale)", f"{unit}, USD" if in_usd else unit)
    drawing.numbers = "; ".join(_describe(spend, unit, write) for spend in evenly_spaced(shown, 20))
    drawing.caption = _caption(report, in_usd)
    return drawing


def _in_usd(report: ScalingReport) -> list[_Spend]:
    return [
        _Spend(row, seconds, usd, row.nodes in report.pareto)
        for row in report.summary
        if (seconds := _seconds(row)) is not None and (usd := usd_per_result(row)) is not None
    ]


def _seconds(row: SummaryRow) -> float | None:
    return expected(row.train.seconds, row.per_result, "train_seconds")


def _in_node_time(report: ScalingReport, per_sample: bool) -> list[_Spend]:
    """Return the node counts with N x T in place of the cost, which also determines the front."""
    unit = 1 if per_sample else SECONDS_PER_HOUR
    measured = [(row, each) for row in report.summary if (each := _seconds(row)) is not None]
    spends = [
        (row, seconds, row.nodes * seconds / unit)
        for row, seconds in evenly_spaced(measured, MAX_MARKERS)
    ]
    front = pareto_front(
        [row for row, _, _ in spends], lambda count: count.nodes * count.seconds_per_result
    )
    return [_Spend(row, seconds, y, row.nodes in front) for row, seconds, y in spends]


def _describe(spend: _Spend, unit: str, write: Any) -> str:
    parts = [format_seconds(spend.seconds), f"{unit} {write(spend.y)}"]
    parts += ["Pareto front"] if spend.on_front else []
    parts += filter(None, [hollow_kind(spend.row)])
    return f"{nodes_text(spend.row.nodes)}: {', '.join(parts)}"


def _plain(value: float) -> str:
    return format_value(value, 3)


def _caption(report: ScalingReport, in_usd: bool) -> str:
    front = "Pareto front: no other node count is both faster and cheaper."
    if in_usd:
        missing = [
            row.nodes
            for row in report.summary
            if row.train.seconds is not None and row.costs.total_usd is None
        ]
        if missing:
            front = f"{front.replace('count', 'count with a known cost')} {_not_drawn(missing)}"
        pools = " Warm pools are included." if report.costs.warm_pool_usd else ""
        is_expected = any(row.per_result is not None for row in report.summary)
        failed = " Both are expected values for a result, failed attempts included." * is_expected
        return f"{front} The cost of a run is {cost_origin(report)}.{pools}{failed}"
    if report.price.unit != "USD":
        return front
    reason = report.price.reason or "no billable time was reported"
    return f"{front} Costs are unknown ({reason}), so node-time is shown instead."


def _not_drawn(missing: Sequence[int]) -> str:
    if len(missing) > _MAX_NAMED:
        return f"{len(missing)} node counts are not shown: cost unknown."
    verb = agree(len(missing), "is", "are")
    return f"{join_words([*missing[:-1], nodes_text(missing[-1])])} {verb} not shown: cost unknown."


def _draw_front(drawing: Drawing, spends: Sequence[_Spend]) -> None:
    front = sorted((spend.seconds, spend.y) for spend in spends if spend.on_front)
    if front:
        times, spent = [x for x, _ in front], [y for _, y in front]
        drawing.axes.plot(
            times, spent, color=COLOURS["accent"], linewidth=2, marker="o", label="Pareto front"
        )


def _draw_points(drawing: Drawing, spends: Sequence[_Spend]) -> None:
    labelled = set(spaced([spend.row.nodes for spend in spends]))
    seen: set[str | None] = set()
    for spend in spends:
        style: dict[str, Any] = {}
        kind = hollow_kind(spend.row)
        if kind is not None:
            style = HOLLOW
        elif not spend.on_front:
            kind, style = "not on the front", {"marker": "D", "color": COLOURS["muted"]}
        label = None if kind in seen else kind
        seen.add(kind)
        mark(drawing, spend.seconds, spend.y, label=label, **style)
        if spend.row.nodes in labelled:
            options: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 7)}
            text = f"N = {spend.row.nodes}"
            drawing.axes.annotate(
                text, (spend.seconds, spend.y), color=COLOURS["ink"], fontsize=10.5, **options
            )


def set_time_cost_axes(
    drawing: Drawing, times: Sequence[float], spent: Sequence[float], write: Any
) -> None:
    """Set up a logarithmic time axis, and a cost axis from 0 whose ticks `write` formats."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    axes = drawing.axes
    shortest, longest = min(times), max(times)
    axes.set_xscale("log", base=2)
    room = max(1.25, (longest / shortest) ** 0.1)
    axes.set_xlim(shortest / room, longest * room**2)
    axes.set_ylim(0, max(spent) * 1.2 or 1)
    axes.xaxis.set_major_locator(FixedLocator(time_ticks(shortest, longest)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "0" if value == 0 else write(value).removesuffix(".00"))
    )


def time_ticks(shortest: float, longest: float) -> list[float]:
    """Return round times within the range, or its bounds if there are fewer than two."""
    inside = [seconds for seconds in _NICE_SECONDS if shortest * 0.95 <= seconds <= longest * 1.05]
    if len(inside) < 2:
        return [shortest, longest] if longest / shortest > 1.2 else [longest]
    kept: list[float] = []
    ratio = max((longest / shortest) ** (1 / _MAX_TIME_TICKS), 1.3)
    for seconds in inside:
        if not kept or seconds / kept[-1] >= ratio * (1 - 1e-9):
            kept.append(seconds)
    return kept


def tick_text(seconds: float) -> str:
    """Return a round time in its largest unit only: 20 s, 5 min, 2 h."""
    size, unit = next(
        ((size, unit) for size, unit in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= size),
        (0, ""),
    )
    if size and math.isclose(seconds / size, round(seconds / size)):
        return f"{seconds / size:,.0f} {unit}"
    return format_seconds(seconds)
