"""Evaluate a contended node count by the bounds of its time (docs/method.md, "Attainment").

On an otherwise idle machine, T would have been between `least_time_share` x T and T. Each limit on
N compares T(N) with the times of smaller node counts. In the worst case for N, T(N) is as measured
and the times of smaller node counts are as short as possible; the best case is the reverse. A limit
is certainly met if N meets it in the worst case, and certainly missed if N misses it in the best
case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nodesweep.scaling.analysis.clocks import ClockStatistics, RowClocks
from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.measured_count import MeasuredCount, is_bounded, measured_counts
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.verdicts import JudgedCount, Verdict, more_runs
from nodesweep.scaling.formats import (
    counts_text,
    format_percent,
    format_ratio,
    format_seconds,
    format_usd,
)

JudgeOne = Callable[[MeasuredCount], JudgedCount]
Judge = Callable[[Sequence[MeasuredCount]], JudgeOne]
"""Function that takes all measured node counts and returns the function that checks one of them."""


_FINEST = 0.005
"""Width below which the range of the baseline's time is not divided, relative to that time."""
_MOST_NARROWED = 16
"""Maximum number of measured node counts for which the range of the baseline's time is divided.

The time that this takes grows with the square of the number of node counts.
"""


class JudgedCounts(NamedTuple):
    """The verdicts on each measured node count.

    `contended` holds the node counts whose answer differs between the worst and the best case.
    """

    judged: list[JudgedCount]
    contended: frozenset[int]


def judge_counts(
    measured: Sequence[MeasuredCount], judge: Judge, base_ends: tuple[float, float] | None = None
) -> JudgedCounts:
    """Check each node count by its time, or by the bounds of the times if some are contended.

    Args:
        measured: All measured node counts, the baseline first.
        judge: Function that takes all node counts, treats their times as exact, and returns the
            function that checks one of them.
        base_ends: Bounds to assume for the baseline's time, as shares of the measured time. None
            for least_time_share and 1, as for the other node counts.
    """
    base = measured[0].nodes
    shares = {
        count.nodes: count.row.least_time_share or 1.0 for count in measured if count.is_bounded
    }
    at_most: dict[int, float] = {}
    if base_ends is not None:
        shares[base], at_most[base] = base_ends
    judge_as_measured = judge(measured)
    judged, contended = [], []
    for count in measured:
        smaller = {nodes: share for nodes, share in shares.items() if nodes < count.nodes}
        if not smaller and count.nodes not in shares:
            judged.append(judge_as_measured(count))
            continue
        own = {**at_most, count.nodes: shares.get(count.nodes, 1.0)}
        worst = _judge_with(smaller, count, measured, judge)
        best = _judge_with(own, count, measured, judge)
        if worst.answer != best.answer:
            contended.append(count.nodes)
            judged.append(_undecided(count, worst, best, measured))
        else:
            judged.append(worst if worst.answer == "pass" else _at_best(best, worst))
    return JudgedCounts(judged, frozenset(contended))


def largest_that_may_pass(
    measured: Sequence[MeasuredCount], judge: Judge, base_ends: tuple[float, float] | None = None
) -> set[int]:
    """Return the node counts that could be the largest to pass, given the range of possible times.

    Every efficiency depends on the baseline's time, so the assumptions under which one node count
    passes may let a larger one pass, too. If more than two node counts remain, each half of the
    range of the baseline's time is therefore examined separately, unless more than _MOST_NARROWED
    node counts were measured.
    """
    share = (measured[0].row.least_time_share or 1.0) if measured[0].is_bounded else 1.0
    low, high = base_ends or (share, 1.0)
    judged, contended = judge_counts(measured, judge, (low, high))
    passing = max((each.nodes for each in judged if each.answer == "pass"), default=0)
    found = {passing, *(nodes for nodes in contended if nodes > passing)}
    narrows = len(measured) <= _MOST_NARROWED and high - low > _FINEST
    if len(found) > 2 and narrows:
        middle = (low + high) / 2
        found = largest_that_may_pass(measured, judge, (low, middle))
        found |= largest_that_may_pass(measured, judge, (middle, high))
    return found - {0}


def speedup_ends(row: SummaryRow, base: SummaryRow) -> tuple[float, float] | None:
    """Return the minimum and maximum S(N) that contended times allow.

    Return None for the baseline, if neither T(N0) nor T(N) is contended, or if S is unknown.
    """
    speedup = row.train.speedup
    shares = [each.least_time_share or 1.0 for each in (base, row)]
    if speedup is None or row is base or shares == [1.0, 1.0]:
        return None
    return speedup * shares[0], speedup / shares[1]


def _judge_with(
    factors: Mapping[int, float],
    count: MeasuredCount,
    measured: Sequence[MeasuredCount],
    judge: Judge,
) -> JudgedCount:
    """Check a node count with the times multiplied by `factors`, by node count.

    The times of contended node counts without a factor are taken as valid.
    """
    base = measured[0].nodes
    there = measured_counts([scaled_row(each.row, factors, base) for each in measured])
    return judge(there)(next(each for each in there if each.nodes == count.nodes))


def scaled_row(row: SummaryRow, factors: Mapping[int, float], base: int) -> SummaryRow:
    """Return the row as if the times of each node count were multiplied by its factor."""
    own = factors.get(row.nodes, 1.0)
    to_base = factors.get(base, 1.0) / own
    to_half = factors.get(row.nodes // 2, 1.0) / own
    clocks = {
        name: _scaled_clock(getattr(row.clocks, name), own, to_base, to_half)
        for name in RowClocks.model_fields
    }
    costs = {name: _times(usd, own) for name, usd in row.costs.model_dump().items()}
    spread = row.cost_spread
    flags = tuple(flag for flag in row.flags if flag != "starved" or not is_bounded(row))
    return row.model_copy(
        update={
            "clocks": RowClocks(**clocks),
            "costs": row.costs.model_copy(update=costs),
            "cost_spread": spread.model_copy(
                update={
                    "interval": _scaled_interval(spread.interval, own),
                    "next_run_usd": _times(spread.next_run_usd, own),
                }
            ),
            "flags": flags,
        }
    )


def _scaled_clock(
    on: ClockStatistics, own: float, to_base: float, to_half: float
) -> ClockStatistics:
    changes = {
        "seconds": _times(on.seconds, own),
        "seconds_interval": _scaled_interval(on.seconds_interval, own),
        "next_run_seconds": _times(on.next_run_seconds, own),
        "speedup": _times(on.speedup, to_base),
        "speedup_interval": _scaled_interval(on.speedup_interval, to_base),
        "efficiency": _times(on.efficiency, to_base),
        "efficiency_interval": _scaled_interval(on.efficiency_interval, to_base),
        "doubling_ratio": _times(on.doubling_ratio, to_half),
        "doubling_ratio_interval": _scaled_interval(on.doubling_ratio_interval, to_half),
    }
    return on.model_copy(update=changes)


def _times(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _scaled_interval(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else interval.scaled(factor)


def _at_best(best: JudgedCount, worst: JudgedCount) -> JudgedCount:
    """Return the best case, with "at best" before each reason whose value depends on the case.

    Verdicts that are the same in both cases are taken from `worst`, whose reasons give the measured
    cost.
    """
    measured = {each.criterion: each for each in worst.verdicts}

    def with_reason(each: Verdict) -> Verdict:
        other = measured.get(each.criterion, each)
        if other.value != each.value and each.reason is not None:
            return each.model_copy(update={"reason": f"at best, {each.reason}"})
        return other if (other.value, other.answer) == (each.value, each.answer) else each

    return best.model_copy(update={"verdicts": tuple(map(with_reason, best.verdicts))})


def _undecided(
    count: MeasuredCount,
    worst: JudgedCount,
    best: JudgedCount,
    measured: Sequence[MeasuredCount],
) -> JudgedCount:
    """Mark the limits whose verdict differs between the two cases as undecided."""
    at_best = {each.criterion: each for each in best.verdicts}
    needed = tuple(
        more_runs(each, each.row.n)
        for each in measured
        if each.is_bounded and each.nodes in (measured[0].nodes, count.nodes // 2, count.nodes)
    )
    verdicts = []
    for low in worst.verdicts:
        high = at_best.get(low.criterion, low)
        if low.answer == high.answer:
            verdicts.append(low)
            continue
        reason = _between(low, high, count)
        verdicts.append(
            low.model_copy(update={"answer": "undecided", "reason": reason, "more_runs": needed})
        )
    return JudgedCount(nodes=count.nodes, answer="undecided", verdicts=tuple(verdicts))


def _between(worst: Verdict, best: Verdict, count: MeasuredCount) -> str:
    write = {
        "efficiency": format_percent,
        "doubling_ratio": format_ratio,
        "deadline": format_seconds,
        "budget": format_usd,
    }.get(worst.criterion)
    # a value that meets its upper limit in both cases is undecided due to the next run
    by_next_run = worst.answer == "undecided" and worst.criterion in ("deadline", "budget")
    if write is None or by_next_run:
        return f"{worst.reason}, as far as contended times can show"
    low = worst.value if worst.interval is None else worst.interval.bounds[0]
    high = best.value if best.interval is None else best.interval.bounds[1]
    ends = "–".join(map(write, sorted((low or 0.0, high or 0.0))))
    verb = "meet" if worst.criterion in ("deadline", "budget") else "reach"
    per = count.row.per_result is not None
    name = {
        "deadline": "time per result" if per else "time",
        "budget": "cost per result" if per else "run cost",
    }.get(worst.criterion, worst.criterion)
    return f"{name.replace('_', ' ')} {ends} may or may not {verb} {write(worst.limit)}"


def contended_text(measured: Sequence[MeasuredCount]) -> str:
    """Return a clause such as "nodes were contended at 1 and 4 nodes"."""
    at = [count.nodes for count in measured if count.is_contended]
    return f"nodes were contended at {counts_text(at)}"
