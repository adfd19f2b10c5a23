"""Compare a node count with a limit: pass, fail, or undecided if there are too few runs.

A node count passes if the whole interval meets the limit, and fails if no part of the interval
does. If the interval contains the limit, it is undecided, and the number of runs that would decide
is estimated from the spread so far. Without an interval, the value itself passes or fails
(docs/recommendation.md, "Three answers").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pydantic import Field

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.intervals import MIN_REPEATS, Interval, prediction_factor
from nodesweep.scaling.analysis.measured_count import MeasuredCount, attempts_text, rounded
from nodesweep.scaling.analysis.per_result import (
    LEAST_COMPLETED,
    PerResult,
    Quantity,
    expected,
    next_result_bound,
    share_interval,
)
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.formats import (
    counts_text,
    format_percent,
    format_ratio,
    format_usd,
    join_words,
    nodes_text,
    pluralize,
)
from nodesweep.scaling.report_part import Part

Answer = Literal["pass", "fail", "on_the_limit", "undecided"]
Criterion = Literal[
    "comparable",
    "completes",
    "efficiency",
    "doubling_ratio",
    "faster",
    "deadline",
    "budget",
    "hour_value",
]
# A node count that needs more runs than this is practically on the limit, so further runs are not
# worth their cost.
MOST_MORE_RUNS = 50
_WORST_FIRST: tuple[Answer, ...] = ("fail", "undecided", "on_the_limit")


class MoreRuns(Part):
    """Further runs at one node count."""

    nodes: int = Field(description="N, nodes per job.")
    runs: int = Field(description="Approximate number of further runs.")
    usd: float | None = Field(
        description="Cost of these runs, at the expected cost per result; null if unknown."
    )


class Verdict(Part):
    """The verdict on one node count for one limit."""

    criterion: Criterion = Field(
        description=(
            "efficiency, doubling_ratio: at least the limit; faster: faster than all smaller node "
            "counts; deadline, budget: at most the limit; hour_value: at most the lowest cost plus "
            "waiting of all node counts; completes: at least half of the attempts complete, only "
            "present if an attempt failed; comparable: only present if the time is not a valid "
            "measurement, or not a time-to-train of the same model as the baseline's."
        )
    )
    answer: Answer = Field(
        description=(
            "undecided: the limit is inside the interval, so there are too few runs to decide, or "
            "the time is not a valid measurement; on_the_limit, only in sequential sweeps: the "
            "value is shown to be within 2% of the limit."
        )
    )
    value: float | None = Field(description="The value compared with the limit; null if unknown.")
    limit: float | None = Field(description="The limit; null if it is not a number.")
    interval: Interval | None = Field(
        description="The interval compared with the limit; null if no interval was used."
    )
    next_run: float | None = Field(
        default=None,
        description=(
            "For deadline and budget, the upper 95% prediction bound compared with the limit, for "
            "the next run or, if attempts failed, the next result; null if unknown."
        ),
    )
    reason: str | None = Field(description="Why the limit is not passed; null if it is passed.")
    more_runs: tuple[MoreRuns, ...] = Field(
        default=(),
        description=(
            "Approximate number of further runs that would decide, estimated from the spread so "
            f"far; empty if the verdict is decided, or if even {MOST_MORE_RUNS} more runs at a "
            "node count would not decide it."
        ),
    )


class JudgedCount(Part):
    """The verdicts on one measured node count for all limits."""

    nodes: int = Field(description="N, nodes per job.")
    answer: Answer = Field(
        description=(
            "fail if any verdict is fail, else undecided if any is undecided, else on_the_limit if "
            "any is on_the_limit, else pass."
        )
    )
    verdicts: tuple[Verdict, ...] = Field(
        description="One verdict per limit that applies; the efficiency limit does not apply to "
        "the baseline."
    )

    @property
    def problems(self) -> list[str]:
        """The reasons why the node count does not pass, from the verdicts behind its answer.

        Failed attempts that may rule out the node count are always included.
        """
        return [
            verdict.reason or ""
            for verdict in self.verdicts
            if verdict.answer != "pass"
            and (verdict.answer == self.answer or verdict.criterion == "completes")
        ]

    @property
    def more_runs(self) -> tuple[MoreRuns, ...]:
        """The runs that would decide all undecided limits, or () if one of them stays undecided."""
        open_ = [verdict.more_runs for verdict in self.verdicts if verdict.answer == "undecided"]
        return merge_runs(open_) if all(open_) else ()


def judged_count(nodes: int, verdicts: Iterable[Verdict | None]) -> JudgedCount:
    """Combine all verdicts on a node count.

    A verdict of None means that the limit does not apply. If the nodes were contended, there is no
    valid time to compare with the other limits.
    """
    known = tuple(verdict for verdict in verdicts if verdict is not None)
    known = tuple(verdict for verdict in known if verdict.reason == CONTENDED) or known
    answers = {verdict.answer for verdict in known}
    worst: Answer = next((each for each in _WORST_FIRST if each in answers), "pass")
    return JudgedCount(nodes=nodes, answer=worst, verdicts=known)


def merge_runs(needed: Iterable[Sequence[MoreRuns]]) -> tuple[MoreRuns, ...]:
    """Return the largest number of needed runs by node count, since a run counts for all limits."""
    most: dict[int, MoreRuns] = {}
    for each in (run for runs in needed for run in runs):
        if each.nodes not in most or each.runs > most[each.nodes].runs:
            most[each.nodes] = each
    return tuple(most[nodes] for nodes in sorted(most))


def total_usd(needed: Sequence[MoreRuns]) -> float | None:
    """Return the cost of all needed runs in USD; None if a cost is unknown or there are no runs."""
    costs = [each.usd for each in needed if each.usd is not None]
    return sum(costs) if costs and len(costs) == len(needed) else None


def not_ruled_out(undecided: Sequence[JudgedCount]) -> str:
    """Return a clause on undecided node counts.

    For example, "8 nodes are not ruled out: about 6 more runs each at 1 and 8 nodes would decide
    it, for about $120.00".
    """
    is_one = [each.nodes for each in undecided] == [1]
    text = (
        f"{counts_text(each.nodes for each in undecided)} {'is' if is_one else 'are'} not ruled out"
    )
    needed = merge_runs(each.more_runs for each in undecided)
    parts = []
    if needed:
        usd = total_usd(needed)
        cost = "" if usd is None else f", for about {format_usd(usd)}"
        parts.append(f"about {_runs_text(needed)} would decide it{cost}")
    if hopeless := [each.nodes for each in undecided if not each.more_runs]:
        parts.append(
            f"even {MOST_MORE_RUNS} more runs would not decide it at {counts_text(hopeless)}"
        )
    return f"{text}: {', and '.join(parts)}"


def _runs_text(needed: Sequence[MoreRuns]) -> str:
    """Return "6 more runs each at 1 and 8 nodes" or "2 more runs at 1 node and 6 at 8 nodes"."""
    by_runs: dict[int, list[int]] = {}
    for each in needed:
        by_runs.setdefault(each.runs, []).append(each.nodes)
    texts = []
    for index, (runs, nodes) in enumerate(by_runs.items()):
        what = str(runs) if index else pluralize(runs, "more run")
        texts.append(f"{what}{' each' if len(nodes) > 1 else ''} at {counts_text(nodes)}")
    return join_words(texts)


def is_comparable(count: MeasuredCount) -> Verdict | None:
    """Return None if the time of a node count is comparable, else a verdict.

    The verdict is "fail" if the runs are not shown to have trained the same model as the baseline.
    It is "undecided" if the nodes were CPU-throttled or contended, in which case the same number of
    uncontended runs would decide.
    """
    if count.is_same_model and not count.is_contended:
        return None
    return Verdict(
        criterion="comparable",
        answer="undecided" if count.is_same_model else "fail",
        value=None,
        limit=None,
        interval=None,
        reason=CONTENDED if count.is_same_model else unlike_text(count.row),
        more_runs=(more_runs(count, count.row.n),) if count.is_same_model else (),
    )


def completes(count: MeasuredCount) -> Verdict | None:
    """Check that at least half of the attempts complete; return None if no attempt failed."""
    per = count.row.per_result
    if per is None:
        return None
    interval = per.completed_share
    answer: Answer = "undecided"
    reason = attempts_text(count.row, ", possibly under half in the long run")
    needed: tuple[MoreRuns, ...] = ()
    if interval.low >= LEAST_COMPLETED:
        answer, reason = "pass", None
    elif interval.high < LEAST_COMPLETED:
        answer, reason = "fail", attempts_text(count.row, ", under half")
    else:
        needed = _needed_to_complete(count, per)
    return Verdict(
        criterion="completes",
        answer=answer,
        value=per.completed / (per.completed + per.failed),
        limit=LEAST_COMPLETED,
        interval=interval,
        reason=reason,
        more_runs=needed,
    )


def _needed_to_complete(count: MeasuredCount, per: PerResult) -> tuple[MoreRuns, ...]:
    """Return the number of further completed runs until the interval of the share excludes 50%.

    The failure rate is assumed to be constant. Return () if MOST_MORE_RUNS runs are not enough.
    """
    for runs in range(1, MOST_MORE_RUNS + 1):
        completed = per.completed + runs
        failed = per.failed * completed / per.completed
        if not share_interval(completed, failed).contains(LEAST_COMPLETED):
            return (more_runs(count, runs),)
    return ()


def is_efficient(
    count: MeasuredCount, base: MeasuredCount, goals: RecommendationConfig
) -> Verdict | None:
    """Compare E with its limit; return None at the baseline, where E is 1 by definition."""
    if count is base:
        return None
    interval = count.row.train.efficiency_interval
    return _at_least(
        "efficiency",
        count.efficiency,
        interval,
        goals.min_efficiency,
        format_percent,
        (base, count),
    )


def pays_for_doubling(
    count: MeasuredCount, half: MeasuredCount | None, goals: RecommendationConfig
) -> Verdict | None:
    """Compare D with its limit; return None if half the node count has no comparable time."""
    ratio = count.doubling_ratio
    if ratio is None or half is None:
        return None
    interval = count.row.train.doubling_ratio_interval
    return _at_least(
        "doubling_ratio", ratio, interval, goals.min_doubling_ratio, format_ratio, (half, count)
    )


def is_faster(count: MeasuredCount, as_fast: Sequence[MeasuredCount]) -> Verdict:
    """Compare the time per result with the times of all smaller node counts.

    `as_fast` holds the smaller node counts whose time is not longer. If the intervals of the times
    overlap with all of them, the verdict is "undecided" instead of "fail".
    """
    behind = [other for other in as_fast if _is_behind(count, other)]
    other = next(iter([*behind, *as_fast]), None)
    reason = needed = None
    has_failed = any(each.row.per_result is not None for each in (count, *as_fast))
    per = " per result" if has_failed else ""
    if behind and other is not None:
        reason = f"not faster{per} than {nodes_text(other.nodes)}"
    elif other is not None:
        reason = f"not shown to be faster or slower{per} than {nodes_text(other.nodes)}"
        spread = [
            (each, math.log(interval.high / interval.low) / 2)
            for each in (other, count)
            if (interval := each.seconds_interval) is not None and interval.high > interval.low
        ]
        distance = math.log(count.seconds_per_result / other.seconds_per_result)
        needed = _needed(sum(reach for _, reach in spread), distance, [each for each, _ in spread])
    return Verdict(
        criterion="faster",
        answer="fail" if behind else "undecided" if as_fast else "pass",
        value=count.seconds_per_result,
        limit=None if other is None else other.seconds_per_result,
        interval=count.seconds_interval,
        reason=reason,
        more_runs=needed or (),
    )


def _is_behind(count: MeasuredCount, other: MeasuredCount) -> bool:
    mine, its = count.seconds_interval, other.seconds_interval
    return mine is None or its is None or mine.low >= its.high


def is_within_budget(count: MeasuredCount, goals: RecommendationConfig) -> Verdict | None:
    """Compare the cost of the next result with the budget; return None if there is no budget.

    An unknown cost does not pass.
    """
    budget, usd = goals.budget_usd_per_run, count.usd
    if budget is None:
        return None
    shown, limit = format_usd(usd), format_usd(budget)
    if usd is None:
        return Verdict(
            criterion="budget",
            answer="fail",
            value=None,
            limit=budget,
            interval=None,
            reason=f"run cost is unknown, so it cannot be compared with the budget of {limit}",
        )
    run, next_run = count.row.costs.total_usd or 0.0, count.row.cost_spread.next_run_usd
    most = next_result_bound(count.next_run(run, next_run), count.row.per_result, "usd")
    return at_most(
        "budget",
        count,
        (run, next_run, "usd"),
        budget,
        above=f"{count.cost_name} {shown} is {just(shown, limit)}above the budget of {limit}",
        unsure=(
            f"{count.cost_name} {shown} is within the budget of {limit}, but the "
            f"{count.next_name} {next_night(count)} may cost up to {format_usd(most)}"
        ),
    )


def next_night(count: MeasuredCount) -> str:
    """Return when the next run takes place: in this session or, with a history, on another day."""
    sigma = count.row.night_sigma
    if sigma is None:
        return "in this session"
    return f"on another day (days differ by {format_percent(math.expm1(sigma))})"


def at_most(
    criterion: Literal["deadline", "budget"],
    count: MeasuredCount,
    of_run: tuple[float, float | None, Quantity],
    limit: float,
    above: str,
    unsure: str,
    assumed: float | None = None,
) -> Verdict:
    """Compare the next result with an upper limit.

    The verdict is "pass" if 19 of the next 20 results are expected to meet the limit. They are
    results of the same session, unless a history shows how much nights differ. The verdict is
    "fail" if the expected result (the mean run if no attempt failed) exceeds the limit, and
    otherwise "undecided". If just 19 of 20 runs met the limit, the mean of three or more runs would
    exceed it in less than 1% of cases, so more runs would not change a "fail".

    Args:
        criterion: The name of the limit.
        count: The node count.
        of_run: The mean of a completed run, the upper 95% prediction bound of the next run (None if
            there are too few runs), and the name of both amounts.
        limit: The limit.
        above: The reason for "fail".
        unsure: The reason for "undecided".
        assumed: Upper bound of the next run if no bound is known; None to compare the mean.
    """
    run, in_session, quantity = of_run
    per = count.row.per_result
    value = expected(run, per, quantity) or 0.0
    most = next_result_bound(count.next_run(run, in_session), per, quantity)
    judged_by = next_result_bound(assumed, per, quantity) if most is None else most
    if rounded(value) > limit:
        answer: Answer = "fail"
    else:
        answer = "pass" if judged_by is None or rounded(judged_by) <= limit else "undecided"
    return Verdict(
        criterion=criterion,
        answer=answer,
        value=value,
        limit=limit,
        interval=None,
        next_run=most,
        reason={"pass": None, "fail": above, "undecided": unsure}[answer],
        more_runs=(
            _needed_for_next(count, run, in_session, quantity, limit)
            if answer == "undecided"
            else ()
        ),
    )


def _needed_for_next(
    count: MeasuredCount, run: float, in_session: float | None, quantity: Quantity, limit: float
) -> tuple[MoreRuns, ...]:
    """Return the further runs until the prediction bound of the next result meets the limit.

    The spread of the runs on the log scale and the failure rate are assumed to be constant. Return
    () if MOST_MORE_RUNS runs are not enough. If there are too few runs to show a spread, return the
    missing runs, or () if a history already shows a spread.
    """
    n, per = count.row.n, count.row.per_result
    if in_session is None:
        is_unknown = count.nights_reach is None
        return (more_runs(count, MIN_REPEATS - n),) if is_unknown else ()
    spread = math.log(in_session / run) / prediction_factor(n)
    for runs in range(1, MOST_MORE_RUNS + 1):
        of_run = count.next_run(run, run * math.exp(prediction_factor(n + runs) * spread))
        if (next_result_bound(of_run, per, quantity, runs) or 0.0) <= limit:
            return (more_runs(count, runs),)
    return ()


def _at_least(
    criterion: Literal["efficiency", "doubling_ratio"],
    value: float,
    interval: Interval | None,
    limit: float,
    write: Callable[[float], str],
    sides: tuple[MeasuredCount, MeasuredCount],
) -> Verdict:
    """Compare a ratio with its lower limit; `sides` are the two node counts that it relates."""
    low, high = (value, value) if interval is None else interval.bounds
    what = criterion.replace("_", " ")
    shown, least = write(value), write(limit)
    answer: Answer = "undecided"
    reason: str | None = None
    needed: tuple[MoreRuns, ...] = ()
    if rounded(low) >= limit:
        answer = "pass"
    elif rounded(high) < limit or interval is None:
        answer = "fail"
        reason = f"{what} {shown} is {just(shown, least)}below {least}"
    else:
        level = "one-sided 95%" if interval.one_sided else format_percent(interval.level)
        reason = (
            f"{what} {shown} ({level}: {write(low)}–{write(high)}) may or may not reach {least}"
        )
        needed = runs_needed(value, low, high, limit, sides)
    return Verdict(
        criterion=criterion,
        answer=answer,
        value=value,
        limit=limit,
        interval=interval,
        reason=reason,
        more_runs=needed,
    )


def runs_needed(
    value: float, low: float, high: float, limit: float, sides: tuple[MeasuredCount, MeasuredCount]
) -> tuple[MoreRuns, ...]:
    """Return the further runs at both node counts of a ratio until its interval excludes the limit.

    Return () if that takes more than MOST_MORE_RUNS at either node count.
    """
    reach = math.log(value / low) if value >= limit else math.log(high / value)
    return _needed(reach, math.log(value / limit), sides)


def _needed(reach: float, distance: float, sides: Sequence[MeasuredCount]) -> tuple[MoreRuns, ...]:
    """Return the further runs at the node counts in `sides` until an interval excludes the limit.

    On the log scale, the interval extends by `reach` from its value towards the limit, which is
    `distance` away. Its width decreases with the square root of the number of runs. Return () if
    the value equals the limit, or if more than MOST_MORE_RUNS runs are needed at a node count.
    """
    if rounded(math.exp(abs(distance))) == 1:
        return ()
    times = (reach / distance) ** 2
    more = [(side, max(1, math.ceil(side.row.n * (times - 1)))) for side in sides]
    if any(runs > MOST_MORE_RUNS for _, runs in more):
        return ()
    return tuple(more_runs(side, runs) for side, runs in more)


def more_runs(count: MeasuredCount, runs: int) -> MoreRuns:
    """Return `runs` further runs at a node count, with the expected cost per result for each."""
    return MoreRuns(
        nodes=count.nodes, runs=runs, usd=None if count.usd is None else runs * count.usd
    )


def unlike_text(row: SummaryRow) -> str:
    """Return why the time of a throughput-only row is not a time-to-train."""
    if row.convergence_unknown:
        return f"its convergence is unknown: {row.parity.reason}"
    return _UNLIKE_BASELINE


_UNLIKE_BASELINE = (
    "the final metric is not shown to be within the tolerance of the baseline's metric, so the time"
    " is not a time-to-train"
)
BASELINE_METRIC = "the baseline's final metric"
CONTENDED = "its nodes were contended, so its time is not a valid measurement"


def just(shown: str, limit: str) -> str:
    """Return "just " if a value that misses the limit is displayed as equal to it, else ""."""
    return "just " if shown == limit else ""
