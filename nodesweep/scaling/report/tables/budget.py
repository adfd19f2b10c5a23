"""Where the train time goes: a table by node count, and sentences about losses of efficiency."""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.step_budget import (
    CAUSES,
    Cause,
    EfficiencyLoss,
    LossCause,
    MissingParts,
    StepBudget,
)
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_percent,
    format_seconds,
    join_words,
    nodes_text,
    pluralize,
)
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import Table, evenly_spaced, titled, with_note

MAX_COUNTS = 16
LEAST_LOSS = 0.02
"""Smallest loss of efficiency that gets a sentence."""
_HEADINGS: dict[str, tuple[str, str]] = {
    "forward": ("forward", "from the batch to the backward pass"),
    "backward": ("backward", "until the gradients are computed"),
    "optimizer": ("optimizer", "optimizer steps"),
    "communication": ("communication", "not hidden by the backward pass"),
    "waiting": ("waiting", "for the slowest process"),
    "data": ("data wait", "for the loader"),
    "evaluation": ("evaluation", "with a loader that feeds no training step"),
    "checkpoint": ("checkpoint", "torch.save, or a framework's call around it"),
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
_GAINS: dict[Cause, str] = {
    "compute": "faster compute",
    "communication": "less exposed communication",
    "waiting": "less waiting",
    "data": "less data wait",
    "evaluation": "less evaluation",
    "checkpoint": "less checkpointing",
    "start": "the first step",
    "other": "other",
}


def budget_table(report: ScalingReport) -> Table | None:
    """Return a table of the mean share of each part of T by node count; None if unknown."""
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
    """Return a sentence about each loss of efficiency from one node count to the next.

    Sentences about runs with unknown parts of T come last.
    """
    losses = report.step_budget.losses if report.step_budget is not None else ()
    return [
        *(_loss_text(loss) for loss in losses if loss.efficiency >= LEAST_LOSS),
        *_missing_lines(report.missing_parts),
    ]


def find_slower(rows: Sequence[SummaryRow], budget: StepBudget | None) -> list[EfficiencyLoss]:
    """Return the losses of efficiency to node counts that are slower than the preceding one.

    Args:
        rows: The rows of the summary.
        budget: Where the time goes; None: unknown.
    """
    by_nodes = {row.nodes: row for row in rows}
    return [
        loss
        for loss in (budget.losses if budget is not None else ())
        if "retrograde" in by_nodes[loss.to_nodes].flags
        if (by_nodes[loss.to_nodes].train.speedup or 0)
        < (by_nodes[loss.from_nodes].train.speedup or 0)
    ]


def slower_text(loss: EfficiencyLoss) -> str:
    """Return text such as "2 nodes are slower than 1: 64 points waiting for node algo-2"."""
    named = [
        f"{_points(cause.efficiency)} points {_cause_text(cause, loss)}" for cause in loss.named
    ]
    why = f": {join_words(named)}" if named else ", and no cause exceeds the noise"
    return f"{nodes_text(loss.to_nodes)} are slower than {loss.from_nodes}{why}"


def main_loss_text(budget: StepBudget | None, nodes: int) -> str | None:
    """Return text such as "from 4 to 8 nodes efficiency loses 15 points to data wait".

    Args:
        budget: Where the time goes; None: unknown.
        nodes: The recommended node count.

    Returns:
        The text; None if no cause explains the loss from `nodes` to the next node count.
    """
    losses = () if budget is None else budget.losses
    for loss in losses:
        if loss.from_nodes == nodes and loss.named:
            cause = loss.named[0]
            return (
                f"from {nodes} to {nodes_text(loss.to_nodes)} efficiency loses"
                f" {_points(cause.efficiency)} points to {_cause_text(cause, loss)}"
            )
    return None


def _loss_text(loss: EfficiencyLoss) -> str:
    """Return a sentence about a loss; apart from rounding, its numbers add up."""
    falls = (
        f"From {loss.from_nodes} to {nodes_text(loss.to_nodes)} efficiency falls by"
        f" {_points(loss.efficiency)} points"
    )
    named = loss.named
    if not named:
        return f"{falls}; no cause exceeds the noise."
    gains = [cause for cause in reversed(loss.causes) if cause.is_gain]
    rest = loss.efficiency - sum(cause.efficiency for cause in (*named, *gains))
    costs = [f"{_with_interval(cause)} {_cause_text(cause, loss)}" for cause in named]
    less = [f"{_with_interval(cause)} gained by {_GAINS[cause.cause]}" for cause in gains]
    if _points(rest) != "0":
        (costs if rest > 0 else less).append(f"{_points(rest)} within the noise")
    return f"{falls}: {join_words(costs)}{f', less {join_words(less)}' if less else ''}."


def _cause_text(cause: LossCause, loss: EfficiencyLoss) -> str:
    if cause.cause == "waiting" and loss.slowest_node is not None:
        return f"waiting for node {loss.slowest_node}"
    return CAUSE_TEXTS[cause.cause]


def _with_interval(cause: LossCause) -> str:
    if cause.interval is None:
        return _points(cause.efficiency)
    ends = sorted(abs(round(100 * end)) for end in (cause.interval.low, cause.interval.high))
    return f"{_points(cause.efficiency)} [{ends[0]}, {ends[1]}]"


def _points(efficiency: float) -> str:
    return f"{abs(round(100 * efficiency))}"


def _missing_lines(missing: Sequence[MissingParts]) -> list[str]:
    """Return a line for each reason, with the number of runs and the node counts."""
    by_reason: dict[str, list[MissingParts]] = {}
    for each in missing:
        by_reason.setdefault(each.reason, []).append(each)
    return [
        f"Where the time goes is unknown in {pluralize(sum(each.n for each in group), 'run')} at "
        f"{join_words([*(each.nodes for each in group[:-1]), nodes_text(group[-1].nodes)])}: "
        f"{reason}."
        for reason, group in by_reason.items()
    ]
