"""Where the train time goes: a table by node count, and a sentence on each doubling."""

from __future__ import annotations

from nodesweep.scaling.analysis.step_budget import CAUSES, Cause, EfficiencyLoss
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_percent,
    format_seconds,
    join_words,
    nodes_text,
)
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import Table, evenly_spaced, titled, with_note

MAX_COUNTS = 16
LEAST_LOSS = 0.02
"""Smallest loss of efficiency with a sentence of its own."""
_HEADINGS: dict[str, tuple[str, str]] = {
    "forward": ("forward", "from the batch to the backward pass"),
    "backward": ("backward", "until the gradients are computed"),
    "optimizer": ("optimizer", "optimizer steps"),
    "communication": ("communication", "not hidden by the backward pass"),
    "waiting": ("waiting", "for the slowest process"),
    "data": ("data wait", "for the loader"),
    "evaluation": ("evaluation", "with a loader that feeds no step"),
    "checkpoint": ("checkpoint", "torch.save"),
    "start": ("first step", "up to its end"),
    "other": ("other", "the rest of T"),
}
CAUSE_TEXTS: dict[Cause, str] = {
    "compute": "slower compute",
    "communication": "exposed communication",
    "waiting": "waiting for the slowest process",
    "data": "data wait",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "start": "the first step",
    "other": "other",
}


def budget_table(report: ScalingReport) -> Table | None:
    """Return the mean share of each part of T by node count; None if unknown."""
    from pandas import DataFrame

    if report.step_budget is None:
        return None
    counts = evenly_spaced(report.step_budget.counts, MAX_COUNTS)
    shares = [{part.name: part for part in count.parts} for count in counts]
    columns = {"N": [format_count(count.nodes) for count in counts]}
    meanings = {"N": "nodes"}
    for names in CAUSES.values():
        for name in names:
            of_counts = [each.get(name) for each in shares]
            if all(part is None or part.share < 0.0005 for part in of_counts):
                continue
            heading, meanings[heading] = _HEADINGS[name]
            columns[heading] = [
                UNKNOWN
                if part is None
                else with_note(format_percent(part.share), format_seconds(part.seconds))
                for part in of_counts
            ]
    if "waiting" not in shares[0]:
        meanings["communication"] += ", waiting for the slowest process included"
    return Table(
        titled("Where the time goes", report),
        DataFrame(columns, dtype=object),
        {heading: meanings[heading] for heading in columns},
        "Shares of T, the mean over processes and runs.",
    )


def loss_lines(report: ScalingReport) -> list[str]:
    """Return a sentence on each doubling that loses efficiency, with the causes above the noise."""
    if report.step_budget is None:
        return []
    return [_loss_text(loss) for loss in report.step_budget.losses if loss.efficiency >= LEAST_LOSS]


def _loss_text(loss: EfficiencyLoss) -> str:
    named = []
    for cause in loss.causes:
        if cause.named:
            text = CAUSE_TEXTS[cause.cause]
            if cause.cause == "waiting" and loss.slowest_node is not None:
                text = f"waiting for node {loss.slowest_node}"
            between = ""
            if cause.interval is not None:
                low, high = (round(100 * end) for end in (cause.interval.low, cause.interval.high))
                between = f" [{low}, {high}]"
            named.append(f"{_points(cause.efficiency)}{between} {text}")
    falls = (
        f"From {loss.from_nodes} to {nodes_text(loss.to_nodes)} efficiency falls by"
        f" {_points(loss.efficiency)} points"
    )
    return f"{falls}: {join_words(named)}." if named else f"{falls}; no cause exceeds the noise."


def _points(efficiency: float) -> str:
    return f"{100 * efficiency:.0f}"
