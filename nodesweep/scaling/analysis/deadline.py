"""Recommend the cheapest measured node count that meets a deadline (docs/recommendation.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import (
    DEADLINE_SCOPE,
    Choice,
    DeadlineClock,
    Recommendation,
    basis_of,
    choice_of,
    few_runs_notes,
    rejected_of,
    sentence,
    undecided_notes,
)
from nodesweep.scaling.analysis.bounds import judge_counts
from nodesweep.scaling.analysis.clocks import ClockStatistics
from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.measured_count import MeasuredCount, rounded
from nodesweep.scaling.analysis.per_result import Quantity, expected, next_result_bound
from nodesweep.scaling.analysis.verdicts import (
    BASELINE_METRIC,
    JudgedCount,
    Verdict,
    at_most,
    completes,
    is_comparable,
    is_within_budget,
    judged_count,
    just,
    next_night,
)
from nodesweep.scaling.formats import (
    format_percent,
    format_seconds,
    format_usd,
    format_value,
    nodes_text,
)

ASSUMED_FACTOR = 2.0
"""Assumed upper bound of the next run's time, relative to the mean time, if the spread is unknown.

With all noise models of benchmarks/decisions.py, and in sessions that differ by 20%, at least 19 of
20 next runs take less than this (docs/statistics.md).
"""

_Unit = Literal["USD", "node-hours", "node-time"]
_WRITE: Mapping[_Unit, Callable[[float], str]] = {
    "USD": format_usd,
    "node-hours": lambda hours: format_value(hours, digits=3),
    "node-time": format_seconds,
}


@dataclass(frozen=True)
class Deadline:
    """A deadline, and the clock that it applies to."""

    limit_seconds: float
    clock: DeadlineClock

    def times(self, count: MeasuredCount) -> ClockStatistics:
        """Return the statistics of a node count on the deadline's clock."""
        return count.row.clocks.submit_to_end if self.clock == "submit_to_end" else count.row.train

    @property
    def quantity(self) -> Quantity:
        """The name of the per-result quantity that the deadline limits."""
        return "submit_to_end_seconds" if self.clock == "submit_to_end" else "train_seconds"

    def run_seconds(self, count: MeasuredCount) -> float:
        """Return the mean time of completed runs in seconds on the deadline's clock.

        If that is unknown, return the mean train time.
        """
        return self.times(count).seconds or count.seconds

    def seconds(self, count: MeasuredCount) -> float:
        """Return the expected seconds of a completed run, including failed attempts before it."""
        run = self.run_seconds(count)
        return expected(run, count.row.per_result, self.quantity) or run

    def interval(self, count: MeasuredCount) -> Interval | None:
        """Return the interval of seconds() (95%, or 90% with failed attempts); None if unknown."""
        of_run = self.times(count).seconds_interval
        return count.per_result_interval(self.run_seconds(count), of_run, self.quantity)

    def next_seconds(self, count: MeasuredCount) -> float | None:
        """Return the upper 95% prediction bound of the next result in seconds; None if unknown."""
        in_session = self.times(count).next_run_seconds
        next_run = count.next_run(self.run_seconds(count), in_session)
        return next_result_bound(next_run, count.row.per_result, self.quantity)

    def text(self, is_shown: bool) -> str:
        """Return the condition in words, such as "trains within 1 h 0 min (…)"."""
        limit, scope = format_seconds(self.limit_seconds), DEADLINE_SCOPE[self.clock]
        whole = self.clock == "submit_to_end"
        verb, of = ("end", " of its submission") if whole else ("train", "")
        return f"{f'is shown to {verb}' if is_shown else f'{verb}s'} within {limit}{of} ({scope})"


def recommend_by_deadline(
    measured: Sequence[MeasuredCount], goals: RecommendationConfig, limit_seconds: float
) -> Recommendation:
    """Recommend the cheapest node count that passes; `measured` starts with the baseline."""
    deadline = Deadline(limit_seconds, deadline_clock(measured))

    def judge(count: MeasuredCount) -> JudgedCount:
        misses = count.is_unknown and count.least_share * deadline.seconds(count) > limit_seconds
        return judged_count(
            count.nodes,
            (
                None if misses else is_comparable(count),
                completes(count),
                is_in_time(count, deadline),
                is_within_budget(count, goals),
            ),
        )

    judged, contended = judge_counts(measured, lambda _: judge)
    answers = {each.nodes: each.answer for each in judged}
    eligible = [count for count in measured if answers[count.nodes] == "pass"]
    possible = [count for count in measured if answers[count.nodes] != "fail"]
    unit = _unit(possible)
    ranked = _cheapest_first(eligible, unit)
    chosen = ranked[0] if ranked else None
    first = _cheapest_first(possible, unit)
    preferred = first[: first.index(chosen)] if chosen is not None else first
    may_be_cheapest = [
        count
        for count in possible
        if count is not chosen
        and count.is_contended
        and (chosen is None or _least_spent(count, unit) <= _spent(chosen, unit))
    ]
    open_ = {count.nodes for count in [*preferred, *may_be_cheapest]}
    undecided = [each for each in judged if each.nodes in open_]
    # a node count that is undecided in both cases would be without contention, too
    in_question = [
        count.nodes
        for count in may_be_cheapest
        if count.nodes in contended or count.is_unknown or answers[count.nodes] == "pass"
    ]
    best = [] if chosen is None else [chosen.nodes]
    return Recommendation(
        rule="deadline",
        deadline_clock=deadline.clock,
        basis=basis_of([deadline.next_seconds(count) for count in measured]),
        chosen=choice_of(chosen, measured[0]),
        runner_up=choice_of(ranked[1] if len(ranked) > 1 else None, measured[0]),
        rejected=rejected_of(
            judged,
            chosen,
            {count.nodes: _costs_more(count, ranked[0], unit) for count in ranked},
        ),
        judged=tuple(judged),
        not_ruled_out=tuple(each.nodes for each in undecided),
        between=tuple(sorted([*in_question, *best])) if in_question else (),
        reason=_reason(measured, judged, undecided, chosen, unit, goals, deadline),
    )


def recommend_none(
    measured: Sequence[MeasuredCount],
    goals: RecommendationConfig,
    why_not: Callable[[MeasuredCount], str],
    reason: str,
) -> Recommendation:
    """Return a recommendation without a choice, under the rule that the goals imply.

    `why_not` returns the reason against a node count.
    """
    has_deadline = goals.deadline_seconds is not None
    has_value = goals.hour_value_usd is not None
    return Recommendation(
        rule="deadline" if has_deadline else "hour_value" if has_value else "efficiency",
        deadline_clock=deadline_clock(measured) if has_deadline else None,
        basis="point",
        chosen=None,
        runner_up=None,
        rejected=tuple(Choice(nodes=count.nodes, reason=why_not(count)) for count in measured),
        reason=reason,
    )


def deadline_clock(measured: Sequence[MeasuredCount]) -> DeadlineClock:
    """Return submit_to_end if every used run has a time on that clock, else train.

    The two clocks are never mixed.
    """
    known = all(count.row.clocks.submit_to_end.n == count.row.n for count in measured)
    return "submit_to_end" if known else "train"


def _cheapest_first(counts: Sequence[MeasuredCount], unit: _Unit) -> list[MeasuredCount]:
    return sorted(
        counts,
        key=lambda count: (
            rounded(_spent(count, unit)),
            rounded(count.seconds_per_result),
            count.nodes,
        ),
    )


def is_in_time(count: MeasuredCount, deadline: Deadline) -> Verdict:
    """Compare the time of the next result with the deadline."""
    seconds, most = deadline.seconds(count), deadline.next_seconds(count)
    limit = deadline.limit_seconds
    what = "time from submission to end" if deadline.clock == "submit_to_end" else "train time"
    time = f"{count.named(what, f'{what} per result')} {format_seconds(seconds)}"
    shown = f"the deadline of {format_seconds(limit)}"
    assumed = ASSUMED_FACTOR * deadline.run_seconds(count)
    if most is None:
        longest = next_result_bound(assumed, count.row.per_result, deadline.quantity)
        unsure = (
            f"the spread is unknown for n = {count.row.n}, so the {count.next_name} is assumed to "
            f"take up to {format_seconds(longest)}"
        )
    else:
        unsure = f"the {count.next_name} {next_night(count)} may take up to {format_seconds(most)}"
    return at_most(
        "deadline",
        count,
        (
            deadline.run_seconds(count),
            deadline.times(count).next_run_seconds,
            deadline.quantity,
        ),
        limit,
        above=f"{time} misses {shown} by {format_seconds(seconds - limit)}",
        unsure=f"{time} meets {shown}, but {unsure}",
        assumed=assumed,
    )


def _unit(counts: Sequence[MeasuredCount]) -> _Unit:
    """Return the unit in which the costs of all node counts can be compared."""
    if all(count.usd is not None for count in counts):
        return "USD"
    is_charged = all(count.node_hours is not None for count in counts)
    return "node-hours" if is_charged else "node-time"


def _spent(count: MeasuredCount, unit: _Unit) -> float:
    cost = {"USD": count.usd, "node-hours": count.node_hours}.get(unit)
    return count.nodes * count.seconds_per_result if cost is None else cost


def _least_spent(count: MeasuredCount, unit: _Unit) -> float:
    """Return the minimum cost that a result could have had on an otherwise idle machine."""
    return _spent(count, unit) * count.least_share


def _costs_more(count: MeasuredCount, chosen: MeasuredCount, unit: _Unit) -> str:
    spent, least = _spent(count, unit), _spent(chosen, unit)
    what = count.cost_name if unit == "USD" else count.named(unit, f"{unit} per result")
    text = _WRITE[unit]
    shown, limit = text(spent), text(least)
    if rounded(spent) == rounded(least):
        return (
            f"{what} {shown} is the same as for {nodes_text(chosen.nodes)}, and the train time is "
            "not shorter"
        )
    return f"{what} {shown} is {just(shown, limit)}above the {limit} of {nodes_text(chosen.nodes)}"


def _reason(
    measured: Sequence[MeasuredCount],
    judged: Sequence[JudgedCount],
    undecided: Sequence[JudgedCount],
    chosen: MeasuredCount | None,
    unit: _Unit,
    goals: RecommendationConfig,
    deadline: Deadline,
) -> str:
    is_shown = chosen is None and bool(undecided)
    condition = deadline.text(is_shown)
    if goals.budget_usd_per_run is not None:
        condition += f" for at most {format_usd(goals.budget_usd_per_run)}"
    if any(v.criterion == "completes" and v.answer != "pass" for j in judged for v in j.verdicts):
        verb = "to complete" if is_shown else "completes"
        condition += f" and {verb} at least half of its attempts"
    if chosen is None and not all(count.is_same_model for count in measured):
        condition += f" and {'to reach' if is_shown else 'reaches'} {BASELINE_METRIC}"
    notes = [*undecided_notes(undecided), *few_runs_notes(measured)]
    if chosen is not None:
        notes = [*_margin_notes(chosen, deadline), *notes]
        if unit == "node-hours":
            notes = ["no price is set, so cheapest means fewest node-hours", *notes]
        elif unit == "node-time":
            unknown = "some run costs are unknown"
            notes = [f"{unknown}, so cheapest means least node-time", *notes]
        return sentence(
            f"{nodes_text(chosen.nodes)} is the cheapest measured node count that {condition}",
            *notes,
        )
    return sentence(
        f"No measured node count {condition}; {_nearest(measured, judged, deadline)}", *notes
    )


def _margin_notes(chosen: MeasuredCount, deadline: Deadline) -> list[str]:
    """Return a note on the margin to the deadline if there is no prediction bound, else []."""
    if deadline.next_seconds(chosen) is not None:
        return []
    margin = format_percent(deadline.limit_seconds / deadline.seconds(chosen) - 1)
    return [
        f"the spread is unknown for n = {chosen.row.n}, so the {chosen.next_name} is only in time "
        f"if it is at most {margin} slower"
    ]


def _nearest(
    measured: Sequence[MeasuredCount], judged: Sequence[JudgedCount], deadline: Deadline
) -> str:
    """Return a clause on the node count that is closest to passing and the limits it misses."""
    answers = {each.nodes: each.answer for each in judged}
    verdicts = {each.nodes: {v.criterion: v for v in each.verdicts} for each in judged}
    problems = {each.nodes: " and ".join(each.problems) for each in judged}
    trained = [count for count in measured if count.is_usable or count.is_bounded]
    in_time = [count for count in trained if verdicts[count.nodes]["deadline"].answer == "pass"]
    if in_time:
        nearest = min(in_time, key=lambda count: (count.usd is None, count.usd or 0.0, count.nodes))
        return (
            f"at the cheapest that meets the deadline, {nodes_text(nearest.nodes)}, "
            f"{problems[nearest.nodes]}"
        )

    def distance(count: MeasuredCount) -> tuple[bool, bool, float, int]:
        seconds = deadline.seconds(count)
        misses = verdicts[count.nodes]["deadline"].answer == "fail"
        most = seconds if misses else deadline.next_seconds(count) or seconds
        return answers[count.nodes] == "fail", misses, most, count.nodes

    fastest = min(trained, key=distance)
    is_fastest = deadline.seconds(fastest) <= min(map(deadline.seconds, trained))
    among = "" if all(count.is_same_model for count in measured) else " with that metric"
    name = f"fastest{among}" if is_fastest else "node count nearest to passing"
    verdict = verdicts[fastest.nodes]["deadline"]
    # otherwise, a different limit rules it out
    is_decisive = verdict.answer == answers[fastest.nodes]
    other = "" if is_decisive else f", and {problems[fastest.nodes]}"
    return f"at the {name}, {nodes_text(fastest.nodes)}, {verdict.reason}{other}"
