"""The model of a recommendation, and phrases for its reasons (docs/recommendation.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from nodesweep.scaling.analysis.intervals import MIN_REPEATS, Interval
from nodesweep.scaling.analysis.measured_count import (
    MeasuredCount,
    attempts_text,
    cost_change,
    faster_text,
)
from nodesweep.scaling.analysis.verdicts import JudgedCount, not_ruled_out
from nodesweep.scaling.formats import (
    format_percent,
    format_ratio,
    format_seconds,
    join_words,
    nodes_text,
)
from nodesweep.scaling.report_part import Part

Rule = Literal["efficiency", "deadline", "hour_value"]
Basis = Literal["interval", "point", "sequential"]
DeadlineClock = Literal["submit_to_end", "train"]
# What the time that is compared with a deadline includes.
DEADLINE_SCOPE: dict[DeadlineClock, str] = {
    "submit_to_end": "waiting included",
    "train": "start-up not included",
}


class Choice(Part):
    """A node count and the reason for or against it."""

    nodes: int = Field(description="N, nodes per job.")
    reason: str = Field(
        description="Time, cost and ratios of this node count compared with the baseline; for a "
        "rejected node count, why it was not chosen."
    )


class Recommendation(Part):
    """The node count to run on; `chosen` and `rejected` cover all measured node counts."""

    rule: Rule = Field(
        description=(
            "efficiency: the largest node count that meets the limits of efficiency and doubling "
            "ratio; deadline: the cheapest node count that meets the deadline; hour_value: the "
            "node count with the least cost plus waiting."
        )
    )
    deadline_clock: DeadlineClock | None = Field(
        default=None,
        description=(
            "The time compared with the deadline. submit_to_end: from submission to end, "
            "including waiting, if it is known for every used run; train: the train time, "
            "excluding start-up. Null for other rules."
        ),
    )
    basis: Basis = Field(
        description=(
            "interval: every node count was judged by its interval or, for a deadline, by the "
            "prediction bound of the next run; point: at least one node count was judged by its "
            "point estimate, since fewer than 3 runs give no interval; sequential: the one-sided "
            "bounds of the sequential design were used."
        )
    )
    chosen: Choice | None = Field(
        description="The recommended node count, which passes every limit; null if none is "
        "recommended."
    )
    runner_up: Choice | None = Field(
        description="The next best node count by the same rule, also listed in `rejected`; null if "
        "there is none."
    )
    rejected: tuple[Choice, ...] = Field(description="All other measured node counts, ascending.")
    judged: tuple[JudgedCount, ...] = Field(
        default=(),
        description=(
            "The verdicts on every measured node count, ascending; in a sequential sweep, only on "
            "the node counts that were evaluated."
        ),
    )
    not_ruled_out: tuple[int, ...] = Field(
        default=(),
        description=(
            "Undecided node counts that the rule would prefer to the chosen one if they passed."
        ),
    )
    between: tuple[int, ...] = Field(
        default=(),
        exclude_if=lambda nodes: not nodes,
        description=(
            "Node counts between which contended times cannot decide. The best node count is one "
            "of them, so none is chosen. Absent if contended times leave no doubt."
        ),
    )
    larger_may_pass: bool = Field(
        default=False,
        description="True if the largest measured node count is chosen, so a larger one may "
        "pass too.",
    )
    reason: str = Field(
        description="One sentence: why this node count was chosen, or why none was."
    )

    @property
    def undecided(self) -> list[JudgedCount]:
        """The verdicts on the node counts that are not ruled out."""
        return [each for each in self.judged if each.nodes in self.not_ruled_out]


def choice_of(count: MeasuredCount | None, base: MeasuredCount) -> Choice | None:
    """Return a node count as a Choice, compared with the baseline; None if `count` is None.

    It is not compared if contention makes the time of the baseline unknown.
    """
    if count is None:
        return None
    attempts = attempts_text(count.row)
    told = [] if attempts is None else [attempts]
    if count is base or base.is_unknown:  # there is no ratio
        name = "the baseline, " if count is base else ""
        parts = [f"{name}{format_seconds(count.seconds)}", *told]
        return Choice(nodes=count.nodes, reason=", ".join(parts))
    parts = [f"{faster_text(count.row.train.speedup)} {nodes_text(base.nodes)}"]
    if change := cost_change(count.row, base.row):
        parts.append(change)
    parts += told
    parts.append(f"efficiency {format_percent(count.efficiency)}")
    if count.doubling_ratio is not None:
        parts.append(f"doubling ratio {format_ratio(count.doubling_ratio)}")
    return Choice(nodes=count.nodes, reason=", ".join(parts))


def rejected_of(
    judged: Sequence[JudgedCount], chosen: MeasuredCount | None, outdone: Mapping[int, str]
) -> tuple[Choice, ...]:
    """Return all node counts except the chosen one, with the reason against each.

    The reason lists the limits that the node count misses or may miss. If it passes them all, the
    reason is the one in `outdone`: why the chosen node count is better.
    """
    return tuple(
        Choice(nodes=each.nodes, reason=" and ".join(each.problems) or outdone[each.nodes])
        for each in judged
        if chosen is None or each.nodes != chosen.nodes
    )


def basis_of(intervals: Sequence[Interval | float | None]) -> Basis:
    """Return "point" if any interval is missing, else "interval"."""
    return "point" if None in intervals else "interval"


def undecided_notes(undecided: Sequence[JudgedCount]) -> list[str]:
    """Return a note on undecided node counts and the runs that would decide, or [] if none."""
    return [not_ruled_out(undecided)] if undecided else []


def few_runs_notes(measured: Sequence[MeasuredCount]) -> list[str]:
    """Return a note on the node counts with too few runs for an interval, or [] if none."""
    few = [count for count in measured if count.row.n < MIN_REPEATS]
    if not few:
        return []
    repeats = join_words(sorted({count.row.n for count in few}))
    where = "" if len(few) == len(measured) else f" (at {join_words(count.nodes for count in few)})"
    return [f"point estimates were used, since n = {repeats}{where} gives no interval"]


def sentence(clause: str, *notes: str) -> str:
    """Return the clause and the notes as one sentence."""
    return "; ".join([clause, *notes]) + "."
