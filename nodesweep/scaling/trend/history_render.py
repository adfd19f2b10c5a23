"""Trends of a benchmark -> the terminal's tables and one plot: S, E and cost over the sweeps,
a row per trend.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_percent,
    format_seconds,
    format_speedup,
    format_usd,
    nodes_text,
)
from nodesweep.scaling.report.plots import drawing_style
from nodesweep.scaling.report.table import kind_label
from nodesweep.scaling.trend.history import Trend, TrendPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DIGEST_SHOWN = 12
_ROW_INCHES = 3.4
_DOTS_PER_INCH = 160


def render_history_terminal(benchmark: str, trends: Sequence[Trend]) -> Group:
    """One table per trend, for rich's Console.print;
    sweeps of different conditions never share one.
    """
    parts: list[Any] = [_table(trend_title(benchmark, trend), trend) for trend in trends]
    return Group(
        *(
            part
            for table, trend in zip(parts, trends, strict=True)
            for part in (table, *_below(trend))
        )
    )


def trend_title(benchmark: str, trend: Trend) -> str:
    clock = trend.conditions.get("train_clock")
    return (
        f"History of {benchmark} ({kind_label(trend.platform, clock)}), conditions"
        f" {_short(trend.conditions_digest)}"
    )


def history_plot(benchmark: str, trends: Sequence[Trend], extension: str) -> bytes | None:
    """The plot as `svg` or `png`; None where no trend has two sweeps."""
    plotted = [trend for trend in trends if len(trend.sweeps) > 1]
    if not plotted:
        return None
    buffer = io.BytesIO()
    dated = ("Date", "Creator", "Format", "Type") if extension == "svg" else ("Software",)
    with drawing_style():
        figure = _draw(benchmark, plotted)
        figure.savefig(
            buffer,
            format=extension,
            dpi=_DOTS_PER_INCH,
            facecolor="white",
            metadata=dict.fromkeys(dated),
        )
    return buffer.getvalue()


def _table(title: str, trend: Trend) -> Any:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for heading in ("N", "sweep", "n", "T", "S", "E", _cost_heading(trend)):
        table.add_column(heading, justify="left" if heading == "sweep" else "right", no_wrap=True)
    before = None
    for point in trend.points:
        if before not in (None, point.nodes):
            table.add_section()
        before = point.nodes
        table.add_row(*(Text(cell) for cell in _cells(point)))
    return table


def _cost_heading(trend: Trend) -> str:
    """The history keeps what a job was billed, and a probe is billed for a part of a run."""
    return "cost of a probe" if trend.conditions.get("train_clock") == "projected" else "cost"


def _cells(point: TrendPoint) -> tuple[str, ...]:
    return (
        format_count(point.nodes),
        point.sweep_id,
        format_count(point.n),
        format_seconds(point.train_seconds),
        format_speedup(point.speedup) + ("*" if point.throughput_only else ""),
        format_percent(point.efficiency),
        format_usd(point.total_usd),
    )


def _below(trend: Trend) -> list[Any]:
    """What the sweeps of the table share, where their image changed and what its marks mean."""
    shared = ", ".join(
        f"{name} {_short(value)}" for name, value in trend.conditions.items() if value is not None
    )
    lines = [f"N0 = {trend.baseline_nodes}, {shared}", *_image_changes(trend)]
    if any(point.throughput_only for point in trend.points):
        lines.append("* throughput only: not the baseline's final metric, so T is no time-to-train")
    return [Text(f"- {line}", style="dim") for line in lines]


def _image_changes(trend: Trend) -> list[str]:
    images = {point.sweep_id: point.image_uri for point in trend.points}
    pairs = zip(trend.sweeps, trend.sweeps[1:], strict=False)
    return [
        f"Image changed with {after}: {_short(images[before])} to {_short(images[after])}"
        for before, after in pairs
        if images[before] != images[after]
    ]


def _short(value: str | None) -> str:
    """A digest cut to what tells it apart, anything else as it is."""
    if value is None:
        return UNKNOWN
    digest = value.rpartition("sha256:")[2]
    return digest[:_DIGEST_SHOWN] if len(digest) == 64 else value


def _draw(benchmark: str, trends: Sequence[Trend]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, _ROW_INCHES * len(trends)), layout="constrained")
    rows = figure.subfigures(len(trends), 1, squeeze=False)[:, 0]
    for part, trend in zip(rows, trends, strict=True):
        part.suptitle(trend_title(benchmark, trend), fontsize=12.5, x=0.01, ha="left")
        panels = part.subplots(1, 3)
        _draw_panel(
            panels[0], trend, "speedup S(N)", lambda p: p.speedup, lambda p: p.speedup_interval
        )
        _draw_panel(
            panels[1],
            trend,
            "efficiency E(N)",
            lambda p: p.efficiency,
            lambda p: p.efficiency_interval,
        )
        job = "probe" if trend.conditions.get("train_clock") == "projected" else "run"
        _draw_panel(
            panels[2], trend, f"cost of a {job}, USD", lambda p: p.total_usd, lambda p: None
        )
        part.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside right upper",
            frameon=False,
            fontsize=9,
        )
    return figure


def _draw_panel(
    axes: Axes,
    trend: Trend,
    name: str,
    value: Callable[[TrendPoint], float | None],
    interval: Callable[[TrendPoint], Interval | None],
) -> None:
    """A line per node count over the dates, with the intervals where there are any."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    for index, nodes in enumerate(sorted({point.nodes for point in trend.points})):
        known = [
            (p, number)
            for p in trend.points
            if p.nodes == nodes and (number := value(p)) is not None
        ]
        dates = [float(date2num(point.at)) for point, _ in known]
        colour = f"C{index}"
        axes.plot(
            dates, [number for _, number in known], "o-", color=colour, label=nodes_text(nodes)
        )
        for date, (point, _) in zip(dates, known, strict=True):
            if bounds := interval(point):
                axes.plot([date, date], [bounds.low, bounds.high], color=colour, alpha=0.5)
    axes.set_title(name, fontsize=11)
    if all(value(point) is None for point in trend.points):
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.grid(alpha=0.3)
