"""What the tables of a report share: which node counts have a row,
and how a time with its interval is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import UNKNOWN, format_interval, format_value
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import Cell, thinned

MAX_NODE_COUNTS_SHOWN = 100


def time_unit(report: ScalingReport) -> str:
    """What follows a train time: " per sample" where the train clock is a rate, " projected" where
    it is that.
    """
    clock = report.train_clock or ""
    return {"throughput": " per sample", "projected": " projected"}.get(clock, "")


def hidden_node_counts(report: ScalingReport) -> int:
    """How many node counts have no row in the tables."""
    return max(0, len(report.summary) - MAX_NODE_COUNTS_SHOWN)


def shown_rows(report: ScalingReport) -> Sequence[SummaryRow]:
    """All rows, or evenly spaced ones with the baseline,
    the recommended and the last count among them, or those that the answer is between.
    """
    rows = report.summary
    if not hidden_node_counts(report):
        return rows
    always = {rows[-1].nodes}
    if report.baseline is not None:
        always.add(report.baseline.nodes)
    if report.recommendation is not None:
        always.update(report.recommendation.between)
        if report.recommendation.chosen is not None:
            always.add(report.recommendation.chosen.nodes)
    others = [row.nodes for row in rows if row.nodes not in always]
    kept = always.union(thinned(others, MAX_NODE_COUNTS_SHOWN - len(always)))
    return [row for row in rows if row.nodes in kept]


def hidden_note(report: ScalingReport) -> str:
    hidden = hidden_node_counts(report)
    return (
        f" {hidden} of {len(report.summary)} node counts have no row here; report.json has all."
        if hidden
        else ""
    )


def metric_column(
    metrics: Sequence[FinalMetric | None],
) -> tuple[str, Callable[[FinalMetric | None], str]]:
    """(heading, cell): the metric's name stands in the heading where there is one name only."""
    found = {metric.name for metric in metrics if metric is not None}
    if len(found) == 1 and (name := found.pop()):
        return name, lambda metric: UNKNOWN if metric is None else format_value(metric.value)
    return "final metric", _named_metric


def _named_metric(metric: FinalMetric | None) -> str:
    if metric is None:
        return UNKNOWN
    return (
        f"{metric.name} {format_value(metric.value)}" if metric.name else format_value(metric.value)
    )


def ranged(
    value: float | None, interval: Interval | None, write: Callable[[float | None], str]
) -> Cell:
    return Cell(write(value), format_interval(interval, write))
