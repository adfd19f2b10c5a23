"""Helpers that the tables of node counts share, such as the choice of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import UNKNOWN, format_value
from nodesweep.scaling.outcome.outcome import TrainClock
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import evenly_spaced

MAX_NODE_COUNTS_SHOWN = 100
TIME_PER_SAMPLE = "time per sample"
"""Heading of train times that are computed from rates."""


def time_unit(clock: TrainClock | None) -> str:
    """Return the suffix for times on a train clock: " per sample", " projected" or ""."""
    return {"throughput": " per sample", "projected": " projected"}.get(clock or "", "")


def hidden_node_counts(report: ScalingReport) -> int:
    """Return the number of node counts that the tables leave out."""
    return max(0, len(report.summary) - MAX_NODE_COUNTS_SHOWN)


def shown_rows(report: ScalingReport) -> Sequence[SummaryRow]:
    """Return all rows of the summary, or MAX_NODE_COUNTS_SHOWN evenly spaced ones.

    The baseline, the last node count and the recommended ones are always included.
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
    kept = always.union(evenly_spaced(others, MAX_NODE_COUNTS_SHOWN - len(always)))
    return [row for row in rows if row.nodes in kept]


def hidden_note(report: ScalingReport) -> str:
    """Return a sentence about hidden rows, with a leading space; "" if no rows are hidden."""
    hidden = hidden_node_counts(report)
    return (
        f" Not listed: {hidden} of {len(report.summary)} node counts; see report.json."
        if hidden
        else ""
    )


def metric_column(
    metrics: Sequence[FinalMetric | None], taken: Collection[str]
) -> tuple[str, Callable[[FinalMetric | None], str]]:
    """Return (heading, format) for the column of the final metric.

    The heading is the name of the metric if all metrics share one name that no other column has.
    """
    found = {metric.name for metric in metrics if metric is not None}
    name = found.pop() if len(found) == 1 else None
    if name and name not in taken:
        return name, lambda metric: UNKNOWN if metric is None else format_value(metric.value)
    return "final metric", _named_metric


def _named_metric(metric: FinalMetric | None) -> str:
    if metric is None:
        return UNKNOWN
    return (
        f"{metric.name} {format_value(metric.value)}" if metric.name else format_value(metric.value)
    )
