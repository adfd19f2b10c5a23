"""Render a Prediction for a terminal, as a table with lines below it."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_percent,
    format_ratio,
    format_seconds,
    format_speedup,
    format_usd,
    join_words,
    nodes_text,
)
from nodesweep.scaling.predict.checked import describe_checks
from nodesweep.scaling.predict.model import PredictedCount, Prediction


def render_prediction_terminal(prediction: Prediction) -> Group:
    """Return the prediction for rich's Console.print."""
    lines = [
        f"{nodes_text(count.nodes)}, {term.name}: {_term_seconds(term.low, term.high)},"
        f" {term.source}"
        for count in prediction.counts
        for term in count.terms
    ]
    checks = describe_checks(prediction.checked)
    return Group(
        _table(prediction),
        Text(prediction.headline, style="bold"),
        *(Text(f"- {line}", style="dim") for line in (*lines, *checks, *prediction.assumes)),
    )


def _table(prediction: Prediction) -> Table:
    known = join_words(prediction.measured_nodes)
    table = Table(
        title=f"Prediction from {prediction.sweep_id} ({known} nodes measured), 90% intervals",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("N", "T", "S", "E", "D", "cost of a run"):
        table.add_column(heading, justify="right", overflow="fold")
    for count in prediction.counts:
        table.add_row(*_cells(count))
    return table


def _cells(count: PredictedCount) -> tuple[str, ...]:
    return (
        str(count.nodes),
        _with_interval(count.seconds, count.interval, format_seconds),
        format_speedup(count.speedup),
        _with_interval(count.efficiency, count.efficiency_interval, format_percent),
        _with_interval(count.doubling_ratio, count.doubling_ratio_interval, format_ratio),
        _with_interval(count.usd, count.usd_interval, format_usd),
    )


def _with_interval(
    value: float | None, interval: Interval | None, write: Callable[[float], str]
) -> str:
    if value is None:
        return UNKNOWN
    if interval is None:
        return write(value)
    return f"{write(value)} ({write(interval.low)}–{write(interval.high)})"


def _term_seconds(low: float, high: float) -> str:
    ends = [format_seconds(low), format_seconds(high)]
    return ends[0] if ends[0] == ends[1] else "–".join(ends)
