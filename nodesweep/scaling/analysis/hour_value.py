"""Find the best node count for a given value of an hour of waiting (docs/recommendation.md).

The total of a run is its cost plus its hours times the value of an hour, a weighted sum of two
objectives (Zadeh, IEEE Transactions on Automatic Control 8(1), 1963, pp. 59-60). As a function of
that value, the total of a node count is a straight line, and the lower envelope of the lines gives
the range of values for which each node count is the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import (
    DEADLINE_SCOPE,
    Recommendation,
    basis_of,
    choice_of,
    few_runs_notes,
    rejected_of,
    sentence,
    undecided_notes,
)
from nodesweep.scaling.analysis.bounds import judge_counts
from nodesweep.scaling.analysis.deadline import Deadline, deadline_clock, recommend_none
from nodesweep.scaling.analysis.interval import MIN_REPEATS, Interval
from nodesweep.scaling.analysis.measured_count import MeasuredCount, measured_counts, rounded
from nodesweep.scaling.analysis.price import SECONDS_PER_HOUR
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.verdicts import (
    BASELINE_METRIC,
    Answer,
    JudgedCount,
    MoreRuns,
    Verdict,
    completes,
    is_comparable,
    is_within_budget,
    judged_count,
    runs_needed,
)
from nodesweep.scaling.formats import counts_text, format_usd, nodes_text
from nodesweep.scaling.report_part import Part

_MOST_SHOWN = 8


class HourValueRange(Part):
    """The values of an hour of waiting for which one node count is the best."""

    nodes: int = Field(description="N, nodes per job.")
    from_usd: float = Field(description="Lower bound of the range, in USD per hour.")
    to_usd: float | None = Field(
        description="Upper bound of the range, in USD per hour; null if unbounded."
    )

    @property
    def text(self) -> str:
        """The range in words, such as "if an hour is worth more than $31.00"."""
        if self.to_usd is None and self.from_usd == 0:
            return "whatever an hour is worth"
        return f"if an hour is worth {self.amount}"

    @property
    def amount(self) -> str:
        """The values in words, such as "more than $31.00"."""
        if self.to_usd is None:
            return f"more than {format_usd(self.from_usd)}"
        if self.from_usd == 0:
            return f"less than {format_usd(self.to_usd)}"
        return f"{format_usd(self.from_usd)} to {format_usd(self.to_usd)}"


@dataclass(frozen=True)
class _Total:
    """The cost plus the value of waiting at a node count, in USD."""

    count: MeasuredCount
    hours: float
    usd: float
    interval: Interval | None

    @property
    def low(self) -> float:
        """The lower bound of the total; if nodes were contended, for the shortest possible time."""
        low = self.usd if self.interval is None else self.interval.low
        return low * self.count.least_share

    @property
    def high(self) -> float:
        """The upper bound of the total."""
        return self.usd if self.interval is None else self.interval.high


def hour_value_ranges(rows: Sequence[SummaryRow]) -> tuple[HourValueRange, ...]:
    """Return the values of an hour for which each node count is the best, from 0 USD up.

    Mean costs (including the warm pool) and mean times are compared. Times are from submission to
    end if every used run has such a time, else train times. Node counts at which too few attempts
    complete are left out. The result is empty if fewer than two node counts remain, or if a cost is
    unknown, since that node count could be the best.
    """
    measured = measured_counts(rows)
    usable = [
        count
        for count in measured
        if count.is_usable and ((share := completes(count)) is None or share.answer != "fail")
    ]
    if len(usable) < 2 or any(count.usd is None for count in usable):
        return ()
    return _envelope(usable, Deadline(math.inf, deadline_clock(measured)))


def hour_value_text(ranges: Sequence[HourValueRange]) -> str | None:
    """Return the ranges in words, such as "4 nodes if less than $31.00", or None if empty."""
    if not ranges:
        return None
    least = "the least mean cost plus waiting"
    if len(ranges) == 1:
        return f"{least} is at {nodes_text(ranges[0].nodes)}, {ranges[0].text}"
    texts = [f"{nodes_text(each.nodes)} if {each.amount}" for each in ranges]
    if (hidden := len(texts) - _MOST_SHOWN) > 0:
        half = _MOST_SHOWN // 2
        texts = [*texts[:half], f"… ({hidden} more in report.json)", *texts[-half:]]
    return f"{least} depends on what an hour is worth: {', '.join(texts)}"


def recommend_by_hour_value(
    measured: Sequence[MeasuredCount], goals: RecommendationConfig, usd_per_hour: float
) -> Recommendation:
    """Recommend the node count with the least cost plus waiting, within the budget if there is one.

    A different node count is rejected if it misses a limit, or if the lower bound of its total is
    not below the upper bound of the chosen total. Otherwise, it is not ruled out. `measured` starts
    with the baseline.
    """
    wait = Deadline(math.inf, deadline_clock(measured))
    able = [count for count in measured if count.is_same_model]
    if unknown := [count.nodes for count in able if count.usd is None]:
        at = counts_text(unknown)
        why = f"the run cost is unknown at {at}, so totals cannot be compared"
        return recommend_none(measured, goals, lambda _: why, f"No recommendation: {why}.")
    totals = {count.nodes: _total(count, wait, usd_per_hour) for count in able}

    def judge_limits(count: MeasuredCount) -> tuple[Verdict | None, ...]:
        return completes(count), is_within_budget(count, goals)

    ranked = sorted(
        (
            each
            for each in totals.values()
            if not each.count.is_unknown
            and all(limit is None or limit.answer == "pass" for limit in judge_limits(each.count))
        ),
        key=lambda each: (rounded(each.usd), rounded(each.hours), each.count.nodes),
    )
    best = ranked[0] if ranked else None

    def judge(count: MeasuredCount) -> JudgedCount:
        total = _total(count, wait, usd_per_hour) if count.is_same_model else None
        least = _has_least(total, best)
        # a node count with an unknown time is still rejected if its minimum total is too high
        is_too_much = least is not None and least.answer == "fail"
        comparable = None if is_too_much else is_comparable(count)
        return judged_count(count.nodes, (comparable, *judge_limits(count), least))

    # in both cases for a contended node count, the time of the best one is as measured
    judged, contended = judge_counts(measured, lambda _: judge)
    open_ = [each for each in judged if each.answer == "undecided"]
    may_be_best = [
        each.nodes
        for each in open_
        if each.nodes in contended
        or totals[each.nodes].count.is_unknown
        or _is_best_in_best_case(each, totals[each.nodes], best)
    ]
    chosen = None if best is None else best.count
    preferred = [] if chosen is None else [chosen.nodes]
    return Recommendation(
        rule="hour_value",
        basis=basis_of(
            [each.interval if each.count.row.n >= MIN_REPEATS else None for each in totals.values()]
        ),
        chosen=choice_of(chosen, measured[0]),
        runner_up=choice_of(ranked[1].count if len(ranked) > 1 else None, measured[0]),
        rejected=rejected_of(judged, chosen, {}),
        judged=tuple(judged),
        not_ruled_out=tuple(each.nodes for each in open_),
        between=tuple(sorted([*may_be_best, *preferred])) if may_be_best else (),
        reason=sentence(
            _reason(best, measured, wait, usd_per_hour, goals),
            *undecided_notes(open_),
            *few_runs_notes(measured),
        ),
    )


def _total(count: MeasuredCount, wait: Deadline, usd_per_hour: float) -> _Total:
    """Return the cost plus waiting of a node count with a known cost.

    The cost of a run rises with its time, so the lower bounds and the upper bounds are added.
    """
    usd_per_second = usd_per_hour / SECONDS_PER_HOUR
    seconds, times = wait.seconds(count), wait.interval(count)
    costs = count.usd_interval
    return _Total(
        count,
        hours=seconds / SECONDS_PER_HOUR,
        usd=(count.usd or 0.0) + usd_per_second * seconds,
        interval=(
            None
            if times is None or costs is None
            else Interval(
                low=costs.low + usd_per_second * times.low,
                high=costs.high + usd_per_second * times.high,
                level=min(costs.level, times.level),
            )
        ),
    )


def _has_least(total: _Total | None, best: _Total | None) -> Verdict | None:
    """Compare the total of a node count with the best total; None if one of them is unknown."""
    if total is None or best is None:
        return None
    shown, least = format_usd(total.usd), format_usd(best.usd)
    of = f"the {least} of {nodes_text(best.count.nodes)}"
    answer: Answer = "undecided"
    reason: str | None = f"cost plus waiting {shown} is not shown to be above or below {of}"
    needed: tuple[MoreRuns, ...] = ()
    if total.count.nodes == best.count.nodes:
        answer, reason = "pass", None
    elif rounded(total.low) >= rounded(best.high):
        answer, reason = "fail", f"cost plus waiting {shown} is not below {of}"
    elif rounded(total.high) <= rounded(best.low):  # it is not the best only due to its limits
        answer, reason = "pass", None
    elif total.low > 0:
        reach = math.log(total.high / total.low * best.high / best.low) / 2
        ratio = total.usd / best.usd
        ends = ratio * math.exp(-reach), ratio * math.exp(reach)
        needed = runs_needed(ratio, *ends, 1.0, (best.count, total.count))
    return Verdict(
        criterion="hour_value",
        answer=answer,
        value=total.usd,
        limit=best.usd,
        interval=total.interval,
        reason=reason,
        more_runs=needed,
    )


def _is_best_in_best_case(judged: JudgedCount, total: _Total, best: _Total | None) -> bool:
    """Return True if a node count, undecided in both cases, would be chosen in the best case.

    Its verdicts are those of the best case (bounds.py).
    """
    least = total.usd * total.count.least_share
    passes = all(
        each.answer == "pass" or each.criterion == "hour_value" for each in judged.verdicts
    )
    return passes and best is not None and rounded(least) < rounded(best.usd)


def _reason(
    best: _Total | None,
    measured: Sequence[MeasuredCount],
    wait: Deadline,
    usd_per_hour: float,
    goals: RecommendationConfig,
) -> str:
    if best is None:
        limits = []
        if not all(count.is_same_model for count in measured):
            limits.append(f"reach {BASELINE_METRIC}")
        if goals.budget_usd_per_run is not None:
            limits.append(f"cost at most the budget of {format_usd(goals.budget_usd_per_run)}")
        if any(count.row.per_result is not None for count in measured):
            limits.append("complete at least half of its attempts")
        return f"No measured node count is shown to {' and to '.join(limits)}"
    return (
        f"{nodes_text(best.count.nodes)} is the node count with the least cost plus waiting, "
        f"{format_usd(best.usd)}, if an hour ({DEADLINE_SCOPE[wait.clock]}) is worth "
        f"{format_usd(usd_per_hour)}"
    )


def _envelope(counts: Sequence[MeasuredCount], wait: Deadline) -> tuple[HourValueRange, ...]:
    """Return the range in which each node count has the lowest total; every cost must be known."""
    lines = [
        (
            rounded(count.usd or 0.0),
            rounded(wait.seconds(count) / SECONDS_PER_HOUR),
            count.nodes,
        )
        for count in counts
    ]
    usd, hours, nodes = min(lines)
    ranges: list[HourValueRange] = []
    start = 0.0
    while faster := [
        (rounded((other[0] - usd) / (hours - other[1])), *other[1:], other[0])
        for other in lines
        if other[1] < hours
    ]:
        end, next_hours, next_nodes, next_usd = min(faster)
        ranges.append(HourValueRange(nodes=nodes, from_usd=start, to_usd=end))
        start, usd, hours, nodes = end, next_usd, next_hours, next_nodes
    return (*ranges, HourValueRange(nodes=nodes, from_usd=start, to_usd=None))
