"""Render a benchmark's trends as terminal tables and a plot of S, E and cost over the sweeps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_percent,
    format_seconds,
    format_speedup,
    format_usd,
    join_words,
    nodes_text,
)
from nodesweep.scaling.report.plots import drawing_style
from nodesweep.scaling.report.table import Table, format_columns, kind_label, known
from nodesweep.scaling.report.terminal import console_table
from nodesweep.scaling.trend.history import Trend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DIGEST_SHOWN = 12
_ROW_INCHES = 3.4
_DOTS_PER_INCH = 160


def render_history_terminal(benchmark: str, trends: Sequence[Trend]) -> Group:
    """Return a table per trend for rich's Console.print, each followed by its notes."""
    parts: list[Any] = []
    for trend in trends:
        parts += [_table(trend_title(benchmark, trend), trend), *_below(trend)]
    return Group(*parts)


def trend_title(benchmark: str, trend: Trend) -> str:
    """Return a title with the benchmark, the platform and the conditions of a trend."""
    clock = trend.conditions.get("train_clock")
    return (
        f"History of {benchmark} ({kind_label(trend.platform, clock)}), conditions"
        f" {_short(trend.conditions_digest)}"
    )


def history_plot(benchmark: str, trends: Sequence[Trend], extension: str) -> bytes | None:
    """Return the plot as `svg` or `png`; None if no trend has two sweeps."""
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
    points = trend.points
    cells = format_columns(
        points,
        {
            "N": ("nodes", format_count),
            "sweep": ("sweep_id", str),
            "n": ("n", format_count),
            "T": ("train_seconds", format_seconds),
            "S": ("speedup", format_speedup),
            "E": ("efficiency", format_percent),
            _cost_heading(trend): ("total_usd", format_usd),
        },
    )
    cells["S"] += points["throughput_only"].map({True: "*", False: ""})
    table = console_table(Table(title, cells, {}), title_style="bold")
    for row, changes in enumerate(points["nodes"].diff().shift(-1).fillna(0).ne(0)):
        table.rows[row].end_section = changes
    return table


def _cost_heading(trend: Trend) -> str:
    # the history has the billed costs of jobs, and a probe is billed for only part of a run
    return "cost of a probe" if trend.conditions.get("train_clock") == "projected" else "cost"


def _below(trend: Trend) -> list[Any]:
    """Return the notes below a table.

    They name the conditions that the sweeps share, changes of the image, sweeps with a different
    N0, contended node counts and the meaning of marks.
    """
    shared = ", ".join(
        f"{name} {_short(value)}" for name, value in trend.conditions.items() if value is not None
    )
    other = trend.points[trend.points["baseline_nodes"] != trend.baseline_nodes]
    lines = [
        f"N0 = {trend.baseline_nodes}, {shared}",
        *_image_changes(trend),
        *(
            f"{sweep}: no S and E, since its N0 is {nodes}"
            for sweep, nodes in other.groupby("sweep_id")["baseline_nodes"].first().items()
        ),
        *(
            f"Contended, so not charted: {sweep} at {join_words(map(nodes_text, nodes))}"
            for sweep, nodes in trend.points[trend.points["contended"]].groupby("sweep_id")["nodes"]
        ),
    ]
    if trend.points["throughput_only"].any():
        lines.append(
            "* throughput only: not shown to reach the baseline's final metric, so T is not a "
            "time-to-train"
        )
    return [Text(f"- {line}", style="dim") for line in lines]


def _image_changes(trend: Trend) -> list[str]:
    images = dict(zip(trend.points["sweep_id"], known(trend.points["image_uri"]), strict=True))
    pairs = zip(trend.sweeps, trend.sweeps[1:], strict=False)
    return [
        f"Image changed with {after}: {_short(images[before])} to {_short(images[after])}"
        for before, after in pairs
        if images[before] != images[after]
    ]


def _short(value: str | None) -> str:
    """Return a digest shortened to its first digits, and anything else unchanged."""
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
        job = "probe" if trend.conditions.get("train_clock") == "projected" else "run"
        _draw_panel(panels[0], trend, "speedup S(N)", "speedup")
        _draw_panel(panels[1], trend, "efficiency E(N)", "efficiency")
        _draw_panel(panels[2], trend, f"cost of a {job}, USD", "total_usd")
        part.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside right upper",
            frameon=False,
            fontsize=9,
        )
    return figure


def _draw_panel(axes: Axes, trend: Trend, title: str, column: str) -> None:
    """Draw a line per node count over the dates, and the intervals that the trend has."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    for index, (nodes, points) in enumerate(trend.points.groupby("nodes")):
        drawn = points.dropna(subset=column)
        dates, values = drawn["at"].dt.to_pydatetime(), drawn[column].astype(float)
        axes.plot(dates, values, "o-", color=f"C{index}", label=nodes_text(nodes))
        if f"{column}_low" in drawn:
            low, high = (drawn[f"{column}_{end}"].astype(float) for end in ("low", "high"))
            axes.vlines(dates, low, high, color=f"C{index}", alpha=0.5)
    axes.set_title(title, fontsize=11)
    if trend.points[column].isna().all():
        axes.text(0.5, 0.5, "unknown", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.grid(alpha=0.3)
