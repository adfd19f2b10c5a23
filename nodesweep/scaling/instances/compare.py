"""Find the time-cost front of the cells of a sweep, and choose a cell (docs/instance-types.md).

Speedups are relative to the smallest node count of the same arm, so only time and cost can be
compared across arms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
from nodesweep.scaling.analysis.advice import sentence
from nodesweep.scaling.analysis.deadline import Deadline, deadline_clock, is_in_time
from nodesweep.scaling.analysis.growing_batch import SAME
from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.measured_count import MeasuredCount, measured_counts, rounded
from nodesweep.scaling.analysis.parity import FinalMetric, judge_parity
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.repeated import REPEATED
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.verdicts import (
    Answer,
    JudgedCount,
    Verdict,
    completes,
    is_comparable,
    is_within_budget,
    judged_count,
)
from nodesweep.scaling.arms import Arm, Cell
from nodesweep.scaling.formats import format_seconds, format_usd, join_words
from nodesweep.scaling.instances.model import ArmChoice, Question

RowsByArm = Mapping[Arm, Sequence[SummaryRow]]
"""The summary rows of each arm, in the config's order; arms without an outcome are absent."""
Key = Literal["cost", "time"]
_WHAT: Mapping[Question, str] = {
    "cheapest_within_deadline": "within the deadline",
    "fastest_within_budget": "within the budget",
    "cheapest_efficient": "of the combinations recommended for each {arm}",
}

_NONE: Mapping[Question, str] = {
    "cheapest_within_deadline": "No {arm} and node count is shown to meet the deadline",
    "fastest_within_budget": "No {arm} and node count is shown to stay within the budget",
    "cheapest_efficient": "No {arm} has a node count that is shown to pass its limits",
}


@dataclass(frozen=True)
class JudgedCell:
    """A cell with a time, and the verdicts on the limits that decide between the arms."""

    cell: Cell
    count: MeasuredCount
    judged: JudgedCount
    is_predicted: bool = False

    @property
    def text(self) -> str:
        """The cell in words, such as "4 x ml.g5.xlarge" or "8 x ml.g5.xlarge (predicted)"."""
        return f"{self.cell.text} (predicted)" if self.is_predicted else self.cell.text

    @property
    def answer(self) -> Answer:
        """The verdict on the cell."""
        return self.judged.answer

    @property
    def usd(self) -> float | None:
        """The expected cost of a completed run, including failed attempts; None if unknown."""
        return self.count.usd

    @property
    def seconds(self) -> float:
        """The expected train time of a completed run in seconds, including failed attempts."""
        return self.count.seconds_per_result

    @property
    def numbers(self) -> str:
        """Time and cost in words, such as "12.0 min, $3.20" or "12.0 min, cost unknown"."""
        cost = "cost unknown" if self.usd is None else format_usd(self.usd)
        per = self.count.row.per_result
        per_result = "" if per is None else f", expected per result, since {per.text}"
        predicted = ", predicted" if self.is_predicted else ""
        return f"{format_seconds(self.seconds)}, {cost}{per_result}{predicted}"


def judge_cells(
    config: BenchmarkConfig,
    rows_by_arm: RowsByArm,
    repeated: Collection[Cell] = (),
    samples: Collection[float] = (),
    predicted: Collection[Cell] = (),
) -> list[JudgedCell]:
    """Evaluate every cell with a time against the deadline and the budget.

    Without a deadline or budget, the limits of the recommendation for its own arm apply.

    Args:
        config: The benchmark.
        rows_by_arm: The summary rows of each arm.
        repeated: Cells on which every node did all of the work.
        samples: Number of samples that a run processed, for each cell that counted them.
        predicted: Cells whose rows are predictions.
    """
    goals = config.report.recommendation
    measured = {arm: measured_counts(rows) for arm, rows in rows_by_arm.items()}
    everything = [count for counts in measured.values() for count in counts]
    deadline = None
    if goals.deadline_seconds is not None and everything:
        deadline = Deadline(goals.deadline_seconds, deadline_clock(everything))
    judged = []
    unknown = _convergence_unknown(everything, samples)
    for arm, counts in measured.items():
        unlike = _unlike_main(config, rows_by_arm, arm)
        own = _own_judgements(rows_by_arm[arm], counts, goals)
        for count in counts:
            verdicts = own.get(count.nodes) or (
                is_comparable(count),
                completes(count),
                None if deadline is None else is_in_time(count, deadline),
                is_within_budget(count, goals),
            )
            cell = Cell(arm, count.nodes)
            same = _repeated() if cell in repeated else None
            all_verdicts = (unlike, same, *verdicts) if unknown is None else (unknown, same)
            answer = judged_count(count.nodes, all_verdicts)
            judged.append(JudgedCell(cell, count, answer, cell in predicted))
    return judged


def _repeated() -> Verdict:
    return Verdict(
        criterion="comparable",
        answer="fail",
        value=None,
        limit=None,
        interval=None,
        reason=REPEATED,
    )


def has_no_goal(goals: RecommendationConfig) -> bool:
    """Return True if the config sets neither a deadline nor a budget."""
    return goals.deadline_seconds is None and goals.budget_usd_per_run is None


def _own_judgements(
    rows: Sequence[SummaryRow], counts: Sequence[MeasuredCount], goals: RecommendationConfig
) -> dict[int, tuple[Verdict, ...]]:
    """Return the verdicts of the arm's recommendation by node count; empty if there is a goal."""
    own = recommend(rows, goals) if len(counts) > 1 and has_no_goal(goals) else None
    contended = {count.nodes for count in counts if count.is_contended}
    if own is None:
        return {}
    return {each.nodes: each.verdicts for each in own.judged if each.nodes not in contended}


def _unlike_main(config: BenchmarkConfig, rows_by_arm: RowsByArm, arm: Arm) -> Verdict | None:
    """Return a failing verdict if the arm trains a different model than the first arm, else None.

    The final metrics at the smallest node counts that have one are compared. Return None if either
    is unknown.
    """
    first = next(iter(rows_by_arm))
    base, own = _first_metric(rows_by_arm[first]), _first_metric(rows_by_arm[arm])
    if arm == first or base is None or own is None:
        return None
    parity = judge_parity(own, [own.value], base, [base.value], config.report.parity)
    if parity.verdict != "different":
        return None
    return Verdict(
        criterion="comparable",
        answer="fail",
        value=own.value,
        limit=None,
        interval=None,
        reason=f"its trained model is not comparable to the model of {first.name}: {parity.reason}",
    )


def _convergence_unknown(
    counts: Sequence[MeasuredCount], samples: Collection[float]
) -> Verdict | None:
    """Return a failing verdict for all cells if their convergence is unknown, else None.

    Convergence is unknown if no run has a final metric and batches or samples differ. A larger
    batch may need more epochs for the same model (docs/method.md), and fewer samples may give a
    worse model.
    """
    rows = [count.row for count in counts]
    sizes = [row.global_batch_size for row in rows if row.global_batch_size is not None]
    differs = any(each and max(each) > min(each) * (1 + SAME) for each in (sizes, samples))
    is_unknown = differs or any(row.convergence_unknown for row in rows)
    if not is_unknown or any(row.final_metric is not None for row in rows):
        return None
    return Verdict(
        criterion="comparable",
        answer="fail",
        value=None,
        limit=None,
        interval=None,
        reason=(
            "its convergence is unknown: the global batch or the number of samples differs between "
            "the combinations and no run reported a final metric"
        ),
    )


def _first_metric(rows: Sequence[SummaryRow]) -> FinalMetric | None:
    return next((row.final_metric for row in rows if row.final_metric is not None), None)


def front_by_cell(judged: Sequence[JudgedCell]) -> dict[Cell, bool]:
    """Return True for each cell on the time-cost front, and False for others with a known cost.

    A cell is on the front if no other cell is at least as good in both time and cost, and better in
    one of them. Cells whose time is not a valid measurement of training the same model are ignored
    and not on the front.
    """
    points = {
        each.cell: (rounded(each.seconds), rounded(each.usd))
        for each in judged
        if each.usd is not None
    }
    sound = {each.cell for each in judged if _is_sound(each)}
    return {
        cell: cell in sound
        and not any(
            other[0] <= point[0] and other[1] <= point[1] and other != point
            for name, other in points.items()
            if name in sound
        )
        for cell, point in points.items()
    }


def _is_sound(each: JudgedCell) -> bool:
    return not any(
        verdict.criterion == "comparable" and verdict.answer != "pass"
        for verdict in each.judged.verdicts
    )


def surely_dominated(judged: Sequence[JudgedCell]) -> set[Cell]:
    """Return the cells whose intervals of time and cost are above those of a comparable cell.

    A predicted cell does not surely dominate any other.
    """
    return {
        each.cell
        for each in judged
        if any(
            _is_below(other.count.seconds_interval, each.count.seconds_interval)
            and _is_below(other.count.usd_interval, each.count.usd_interval)
            for other in judged
            if _is_sound(other) and not other.is_predicted
        )
    }


def _is_below(one: Interval | None, other: Interval | None) -> bool:
    return one is not None and other is not None and one.high < other.low


def choose_cells(config: BenchmarkConfig, judged: Sequence[JudgedCell]) -> tuple[ArmChoice, ...]:
    """Return the choice for each goal in the config; the first choice is the recommendation."""
    goals = config.report.recommendation
    choices: list[ArmChoice] = []
    if goals.deadline_seconds is not None:
        choices.append(_choose(config, "cheapest_within_deadline", judged, judged, "cost"))
    if goals.budget_usd_per_run is not None:
        choices.append(_choose(config, "fastest_within_budget", judged, judged, "time"))
    if has_no_goal(goals):
        largest: dict[Arm, JudgedCell] = {}
        for each in judged:
            if each.answer == "pass":
                largest[each.cell.arm] = each
        choices.append(
            _choose(config, "cheapest_efficient", list(largest.values()), judged, "cost")
        )
    return tuple(choices)


def _choose(
    config: BenchmarkConfig,
    question: Question,
    candidates: Sequence[JudgedCell],
    judged: Sequence[JudgedCell],
    by: Key,
) -> ArmChoice:
    """Choose the best passing candidate by cost or time; `judged` lists all cells of the sweep."""
    arm = config.sweep.arm_kind.split()[-1]
    passing = [each for each in candidates if each.answer == "pass"]
    notes = []
    if by == "cost":
        priced = [each for each in passing if each.usd is not None]
        unpriced = [each.text for each in passing if each.usd is None]
        if priced and unpriced:
            they = "it is" if len(unpriced) == 1 else "they are"
            notes.append(f"the cost of {join_words(unpriced)} is unknown, so {they} not ranked")
        if passing and not priced:
            by = "time"
            notes.append("all costs are unknown, so the fastest is chosen")
        passing = priced or passing
    ranked = sorted(passing, key=lambda each: _rank(each, by))
    chosen = ranked[0] if ranked else None
    open_ = [
        each
        for each in judged
        if each.answer == "undecided" and (chosen is None or _rank(each, by) < _rank(chosen, by))
    ]
    notes += _not_ruled_out(open_, chosen is None)
    if chosen is None:
        why = _nearest(judged)
        return ArmChoice(
            question=question,
            instance_type=None,
            nodes=None,
            by=by,
            reason=sentence(_NONE[question].format(arm=arm), *why, *notes),
        )
    alike = [each.text for each in ranked[1:] if not _is_distinguishable(chosen, each, by)]
    if alike:
        verb = "is" if len(alike) == 1 else "are"
        notes.append(f"by their intervals, {join_words(alike)} {verb} not distinguishable from it")
    what = _WHAT[question].format(arm=arm)
    text = f"{chosen.cell.text} ({chosen.numbers}) is the {_word(by)} {what}"
    return ArmChoice(
        question=question,
        instance_type=config.of_arm(chosen.cell.arm.name).training.instance_type,
        variant=chosen.cell.arm.name if chosen.cell.arm.is_variant else None,
        nodes=chosen.cell.nodes,
        by=by,
        reason=sentence(text, *notes),
    )


def _word(by: Key) -> str:
    return "cheapest" if by == "cost" else "fastest"


def _rank(each: JudgedCell, by: Key) -> tuple[float, float, int]:
    """Return the sort key, best cell first; by cost, cells with an unknown cost come last."""
    usd = float("inf") if each.usd is None else rounded(each.usd)
    seconds = rounded(each.seconds)
    first, second = (usd, seconds) if by == "cost" else (seconds, usd)
    return first, second, each.cell.nodes


def _not_ruled_out(open_: Sequence[JudgedCell], is_only_news: bool) -> list[str]:
    """Return notes on the undecided cells that would rank first.

    Reasons are left to the table if a cell is recommended and several would rank before it.
    """
    if len(open_) > 2 and not is_only_news:
        return [f"{join_words(each.text for each in open_)} are not ruled out"]
    return [f"{each.text} is not ruled out: {' and '.join(each.judged.problems)}" for each in open_]


def _nearest(judged: Collection[JudgedCell]) -> list[str]:
    """Return a note on why the fastest failing cell fails, or [] if no cell fails."""
    failed = [each for each in judged if each.answer == "fail"]
    if not failed:
        return []
    fastest = min(failed, key=lambda each: _rank(each, "time"))
    return [f"the fastest, {fastest.text}, fails: {' and '.join(fastest.judged.problems)}"]


def _is_distinguishable(one: JudgedCell, other: JudgedCell, by: Key) -> bool:
    """Return True if the intervals do not overlap or, without intervals, the values differ."""
    if by == "cost":
        first, second = one.count.usd_interval, other.count.usd_interval
        values = (one.usd, other.usd)
    else:
        first, second = one.count.seconds_interval, other.count.seconds_interval
        values = (one.seconds, other.seconds)
    if first is None or second is None:
        return values[0] != values[1]
    return first.high < second.low or second.high < first.low
