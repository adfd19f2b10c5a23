"""Render predictions for a terminal, and as table cells for a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
)
from nodesweep.scaling.report.predictions.checked import describe_checks
from nodesweep.scaling.report.predictions.model import CountPrediction, Predictions, cost_text
from nodesweep.scaling.report.table import TEXT_HEADINGS

HEADINGS: Mapping[str, str] = {
    "N": "nodes",
    "T": "train time of the next run",
    "S": "speedup",
    "E": "efficiency",
    "D": "doubling ratio S(N)/S(N/2)",
    "cost of a run": "assuming the start-up time of the largest measured count",
    "limits": "recommendation limits, checked against the intervals",
}


TERM_HEADINGS: Mapping[str, str] = {
    "N": "nodes",
    "part": "part of T",
    "seconds": "lowest and highest value that the measured means allow",
    "source": "measurements that the value is based on",
}


def render_prediction_terminal(prediction: Predictions) -> Group:
    """Return the prediction for rich's Console.print."""
    lines = (*describe_checks(prediction.checked), *prediction.assumes)
    terms = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in TERM_HEADINGS:
        is_text = heading in TEXT_HEADINGS
        terms.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in term_rows(prediction):
        terms.add_row(*row)
    return Group(
        prediction_table(prediction),
        Text(prediction.headline, style="bold"),
        terms,
        *(Text(f"- {line}", style="dim") for line in lines),
    )


def term_rows(prediction: Predictions) -> list[tuple[str, ...]]:
    """Return the cells under TERM_HEADINGS, with a row for each term of each node count."""
    return [
        (f"{count.nodes}", term.name, _term_seconds(term.low, term.high), term.source)
        for count in prediction.counts
        for term in count.terms
    ]


def _title(prediction: Predictions) -> str:
    known = join_words(prediction.measured_nodes)
    return f"Predicted from {prediction.sweep_id} (runs on {known} nodes), 90% intervals"


def prediction_table(prediction: Predictions) -> Table:
    """Return the predicted node counts as a table for a terminal."""
    table = Table(title=_title(prediction), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, justify="right", overflow="fold")
    for row in prediction_rows(prediction):
        table.add_row(*row)
    return table


def prediction_rows(prediction: Predictions) -> list[tuple[str, ...]]:
    """Return the cells under HEADINGS, with a row for each predicted node count."""
    answers = {each.nodes: each.answer.replace("_", " ") for each in prediction.judged}
    return [(*_cells(count), answers.get(count.nodes, UNKNOWN)) for count in prediction.counts]


def _cells(count: CountPrediction) -> tuple[str, ...]:
    return (
        f"{count.nodes}\npredicted",
        _with_interval(count.seconds, count.interval, format_seconds),
        format_speedup(count.speedup),
        _with_interval(count.efficiency, count.efficiency_interval, format_percent),
        _with_interval(count.doubling_ratio, count.doubling_ratio_interval, format_ratio),
        cost_text(None, count.node_hours)
        or _with_interval(count.usd, count.usd_interval, format_usd),
    )


def _with_interval(
    value: float | None, interval: Interval | None, write: Callable[[float], str]
) -> str:
    if value is None:
        return UNKNOWN
    if interval is None:
        return write(value)
    return f"{write(value)}\n{write(interval.low)}–{write(interval.high)}"


def _term_seconds(low: float, high: float) -> str:
    ends = [format_seconds(low), format_seconds(high)]
    return ends[0] if ends[0] == ends[1] else "–".join(ends)
