"""Summary rows -> how many nodes to run on, and which counts no other beats on time and cost.

docs/method.md, "Cost and recommendation", and docs/recommendation.md.

Rule "efficiency": the largest count whose efficiency and doubling ratio hold their limits. Rule
"deadline", where one is given: the cheapest count that meets it, from submission to end where every
measured count knows that time, else by its train time. Every other measured count is named with why
it was not chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from configs.models import RecommendationConfig
from scaling.analysis.clocks import ClockStatistics
from scaling.analysis.counts import (
    MeasuredCount,
    cost_change,
    faster_text,
    measured_counts,
    rounded,
)
from scaling.analysis.intervals import MIN_REPEATS, Interval
from scaling.analysis.speedup import SummaryRow
from scaling.formats import (
    format_percent,
    format_ratio,
    format_seconds,
    format_usd,
    join_words,
    nodes_text,
)
from scaling.parts import Part

Rule = Literal["efficiency", "deadline"]
Basis = Literal["interval", "point"]
DeadlineClock = Literal["submit_to_end", "train"]
# What a time held against a deadline includes.
DEADLINE_SCOPE: dict[DeadlineClock, str] = {
    "submit_to_end": "waiting included",
    "train": "start-up not included",
}


class Choice(Part):
    """A node count and what speaks for or against it."""

    nodes: int = Field(description="N, nodes per job.")
    reason: str = Field(
        description="Its numbers against the baseline; of a rejected count why it was not chosen."
    )


class Recommendation(Part):
    """The node count to run on. `chosen` and `rejected` together are the measured counts."""

    rule: Rule = Field(
        description=(
            "efficiency: the largest count that is efficient enough;"
            " deadline: the cheapest that meets it."
        )
    )
    deadline_clock: DeadlineClock | None = Field(
        default=None,
        description=(
            "What the deadline was held against. submit_to_end: from submission to end, waiting"
            " included, where every used run knows it; train: the train time, start-up not"
            " included. Null under the rule efficiency."
        ),
    )
    basis: Basis = Field(
        description=(
            "interval: every count was judged by the bound of its interval; point: some by its"
            " point estimate, since fewer than 3 runs have no interval."
        )
    )
    chosen: Choice | None = Field(description="The recommended count; null where none passes.")
    runner_up: Choice | None = Field(
        description="The next best by the same rule; it stands in `rejected` too."
    )
    rejected: tuple[Choice, ...] = Field(description="Every other measured count, ascending.")
    reason: str = Field(description="One sentence: why the chosen count, or why none.")


@dataclass(frozen=True)
class _Deadline:
    """The limit and the clock it holds on."""

    limit_seconds: float
    clock: DeadlineClock

    def times(self, count: MeasuredCount) -> ClockStatistics:
        return count.row.clocks.submit_to_end if self.clock == "submit_to_end" else count.row.train

    def seconds(self, count: MeasuredCount) -> float:
        return self.times(count).seconds or count.seconds

    def seconds_high(self, count: MeasuredCount) -> float:
        interval = self.times(count).seconds_interval
        return self.seconds(count) if interval is None else interval.high

    @property
    def asked(self) -> str:
        limit, scope = format_seconds(self.limit_seconds), DEADLINE_SCOPE[self.clock]
        if self.clock == "submit_to_end":
            return f"ends within {limit} of its submission ({scope})"
        return f"trains within {limit} ({scope})"


def recommend(rows: Sequence[SummaryRow], goals: RecommendationConfig) -> Recommendation | None:
    """Choose among the measured counts; None for fewer than two.
    A deadline needs times of whole runs, not rates.
    """
    measured = measured_counts(rows)
    if len(measured) < 2:
        return None
    if measured[0].starved:
        return _none_for_starved(measured, goals, "all are compared with the baseline")
    if any(count.starved for count in measured) and _is_alone(measured):
        return _none_for_starved(measured, goals, "what is left has nothing to compare with")
    if goals.deadline_seconds is not None:
        return _by_deadline(
            measured, goals, _Deadline(goals.deadline_seconds, _deadline_clock(measured))
        )
    answer = _by_efficiency(measured, goals)
    is_fewest = answer.chosen is not None and answer.chosen.nodes == measured[0].nodes
    return _none_for_starved_next(answer, measured) if is_fewest and measured[1].starved else answer


def pareto_front(rows: Sequence[SummaryRow]) -> tuple[int, ...]:
    """Node counts that no other beats on train time and cost, warm pool included; ascending, ()
    without a known cost.

    One beats another where it is not worse in either and better in one, so counts equal in both
    stay. A count without a time or a cost is out, and a throughput-only one too: its time is not a
    time-to-train.
    """
    points = sorted(
        (rounded(count.seconds), rounded(count.usd), count.nodes)
        for count in measured_counts(rows)
        if count.usd is not None and count.counts
    )
    front: list[int] = []
    best: tuple[float, float] | None = None
    for seconds, usd, nodes in points:
        if best is None or usd < best[1] or (seconds, usd) == best:
            front.append(nodes)
            best = (seconds, usd)
    return tuple(sorted(front))


def _by_efficiency(
    measured: Sequence[MeasuredCount], goals: RecommendationConfig
) -> Recommendation:
    times = [(count.nodes, rounded(count.seconds)) for count in measured if count.counts]
    problems = {
        count.nodes: _inefficiencies(count, measured[0], _smaller_as_fast(count, times), goals)
        for count in measured
    }
    eligible = [count for count in measured if not problems[count.nodes]]
    chosen = eligible[-1] if eligible else None
    reasons = {
        count.nodes: f"passes too, with fewer nodes than {eligible[-1].nodes}" for count in eligible
    }
    return Recommendation(
        rule="efficiency",
        basis=_basis([count.row.train.efficiency_interval for count in measured[1:]]),
        chosen=_choice(chosen, measured[0]),
        runner_up=_choice(_next_efficient(measured, eligible), measured[0]),
        rejected=_rejected(measured, chosen, problems, reasons),
        reason=_efficiency_reason(measured, problems, chosen, goals),
    )


def _smaller_as_fast(count: MeasuredCount, times: Sequence[tuple[int, float]]) -> int | None:
    """The smallest node count below it that is at least as fast, or None.

    `times` are the (nodes, seconds) to compare with, ascending and to nine digits.
    """
    limit = rounded(count.seconds)
    return next(
        (nodes for nodes, seconds in times if nodes < count.nodes and seconds <= limit), None
    )


def _inefficiencies(
    count: MeasuredCount, base: MeasuredCount, as_fast: int | None, goals: RecommendationConfig
) -> list[str]:
    """What keeps a node count from being chosen. At the baseline E is 1 and D does not apply."""
    found = _other_model(count)
    if count is not base:
        found += _below_limits(count, goals)
        found += [f"not faster than {nodes_text(as_fast)}"] if as_fast is not None else []
    return found + _over_budget(count, goals)


def _below_limits(count: MeasuredCount, goals: RecommendationConfig) -> list[str]:
    found = []
    shown, low, least = map(
        format_percent, (count.efficiency, count.efficiency_low, goals.min_efficiency)
    )
    if rounded(count.efficiency) < goals.min_efficiency:
        found.append(f"efficiency {shown} is {_just(shown, least)}below {least}")
    elif rounded(count.efficiency_low) < goals.min_efficiency:
        found.append(
            f"the lower bound of efficiency {shown}, {low}, is {_just(low, least)}below {least}"
        )
    ratio = count.doubling_ratio
    if ratio is not None and rounded(ratio) < goals.min_doubling_ratio:
        shown, least = format_ratio(ratio), format_ratio(goals.min_doubling_ratio)
        found.append(f"doubling ratio {shown} is {_just(shown, least)}below {least}")
    return found


def _next_efficient(
    measured: Sequence[MeasuredCount], eligible: Sequence[MeasuredCount]
) -> MeasuredCount | None:
    """The next largest that passes, else the one nearest to eligible by efficiency;
    None where nothing passes.
    """
    if len(eligible) != 1:
        return eligible[-2] if eligible else None
    others = [count for count in measured if count is not eligible[0] and count.counts]
    return max(others, key=lambda count: (rounded(count.efficiency_low), count.nodes), default=None)


def _efficiency_reason(
    measured: Sequence[MeasuredCount],
    problems: Mapping[int, Sequence[str]],
    chosen: MeasuredCount | None,
    goals: RecommendationConfig,
) -> str:
    limits = [
        f"efficiency at least {format_percent(goals.min_efficiency)}",
        f"doubling ratio at least {format_ratio(goals.min_doubling_ratio)}",
    ]
    if goals.budget_usd_per_run is not None:
        limits.append(f"run cost at most {format_usd(goals.budget_usd_per_run)}")
    asked, notes = f"({', '.join(limits)})", _too_few_runs_note(measured)
    if chosen is None:  # then not even the baseline, which only a budget can rule out
        why = f"at {nodes_text(measured[0].nodes)}, {problems[measured[0].nodes][0]}"
        return _sentence(f"No measured count passes {asked}", why, *notes)
    if chosen is measured[0]:
        return _sentence(f"No count larger than {nodes_text(chosen.nodes)} passes {asked}", *notes)
    if chosen.doubling_ratio is None:
        notes = [
            (
                f"half of {chosen.nodes} has no train time to compare with,"
                " so its doubling ratio was not judged"
            ),
            *notes,
        ]
    smaller = [
        count.nodes for count in measured if count.nodes < chosen.nodes and problems[count.nodes]
    ]
    if smaller:
        notes = [f"smaller counts that do not pass: {join_words(smaller)}", *notes]
    return _sentence(
        f"{nodes_text(chosen.nodes)} is the largest measured count that passes {asked}", *notes
    )


def _by_deadline(
    measured: Sequence[MeasuredCount], goals: RecommendationConfig, deadline: _Deadline
) -> Recommendation:
    problems = {
        count.nodes: _other_model(count) + _too_late(count, deadline) + _over_budget(count, goals)
        for count in measured
    }
    eligible = [count for count in measured if not problems[count.nodes]]
    priced = all(count.usd is not None for count in eligible)
    ranked = sorted(
        eligible,
        key=lambda count: (rounded(_spent(count, priced)), rounded(count.seconds), count.nodes),
    )
    chosen = ranked[0] if ranked else None
    return Recommendation(
        rule="deadline",
        deadline_clock=deadline.clock,
        basis=_basis([deadline.times(count).seconds_interval for count in measured]),
        chosen=_choice(chosen, measured[0]),
        runner_up=_choice(ranked[1] if len(ranked) > 1 else None, measured[0]),
        rejected=_rejected(
            measured,
            chosen,
            problems,
            {count.nodes: _costs_more(count, ranked[0], priced) for count in ranked},
        ),
        reason=_deadline_reason(measured, chosen, priced, goals, deadline),
    )


def _deadline_clock(measured: Sequence[MeasuredCount]) -> DeadlineClock:
    """What a person waits, where every used run knows it, else the train time:
    the two are never mixed.
    """
    known = all(count.row.clocks.submit_to_end.n == count.row.n for count in measured)
    return "submit_to_end" if known else "train"


def _too_late(count: MeasuredCount, deadline: _Deadline) -> list[str]:
    seconds = deadline.seconds(count)
    high = deadline.seconds_high(count)
    limit = deadline.limit_seconds
    if rounded(high) <= limit:
        return []
    what = "time from submission to end" if deadline.clock == "submit_to_end" else "train time"
    bound = (
        "" if deadline.times(count).seconds_interval is None else f" (up to {format_seconds(high)})"
    )
    missed = f"misses the deadline of {format_seconds(limit)} by {format_seconds(high - limit)}"
    return [f"{what} {format_seconds(seconds)}{bound} {missed}"]


def _spent(count: MeasuredCount, priced: bool) -> float:
    """USD of a run, or where costs are not known its node-seconds."""
    return count.usd if priced and count.usd is not None else count.nodes * count.seconds


def _costs_more(count: MeasuredCount, chosen: MeasuredCount, priced: bool) -> str:
    spent, least = _spent(count, priced), _spent(chosen, priced)
    what, text = (count.cost_name, format_usd) if priced else ("node-time", format_seconds)
    shown, limit = text(spent), text(least)
    if rounded(spent) == rounded(least):
        return (
            f"{what} {shown} is that of {nodes_text(chosen.nodes)},"
            " and the train time is not shorter"
        )
    return f"{what} {shown} is {_just(shown, limit)}above the {limit} of {nodes_text(chosen.nodes)}"


def _deadline_reason(
    measured: Sequence[MeasuredCount],
    chosen: MeasuredCount | None,
    priced: bool,
    goals: RecommendationConfig,
    deadline: _Deadline,
) -> str:
    asked = deadline.asked
    if goals.budget_usd_per_run is not None:
        asked += f" for at most {format_usd(goals.budget_usd_per_run)}"
    notes = _too_few_runs_note(measured)
    if chosen is not None:
        if not priced:
            notes = [
                "not every run cost is known, so the least node-time counts as cheapest",
                *notes,
            ]
        return _sentence(
            f"{nodes_text(chosen.nodes)} is the cheapest measured count that {asked}", *notes
        )
    trained = [count for count in measured if count.counts]
    in_time = [count for count in trained if not _too_late(count, deadline)]
    if in_time:
        nearest = min(in_time, key=lambda count: (count.usd is None, count.usd or 0.0, count.nodes))
        why = (
            f"at the cheapest in time, {nodes_text(nearest.nodes)},"
            f" {_over_budget(nearest, goals)[0]}"
        )
    else:
        fastest = min(trained, key=lambda count: (deadline.seconds_high(count), count.nodes))
        why = f"at the fastest, {nodes_text(fastest.nodes)}, {_too_late(fastest, deadline)[0]}"
    return _sentence(f"No measured count {asked}; {why}", *notes)


_UNLIKE_BASELINE = (
    "the final metric is not shown to be within the tolerance of the baseline's, so its time is not"
    " a time-to-train"
)


_STARVED = "its nodes were starved of CPU, so its time is no measurement"


def _other_model(count: MeasuredCount) -> list[str]:
    """Why its time can't be compared with the others."""
    return ([] if count.is_same_model else [_UNLIKE_BASELINE]) + (
        [_STARVED] if count.starved else []
    )


def _is_alone(measured: Sequence[MeasuredCount]) -> bool:
    return sum(not count.starved for count in measured) < 2


def _none_for_starved(
    measured: Sequence[MeasuredCount], goals: RecommendationConfig, why: str
) -> Recommendation:
    """No choice, for the reason that `why` says in words."""
    deadline = goals.deadline_seconds is not None
    return Recommendation(
        rule="deadline" if deadline else "efficiency",
        deadline_clock=_deadline_clock(measured) if deadline else None,
        basis="point",
        chosen=None,
        runner_up=None,
        rejected=tuple(
            Choice(
                nodes=count.nodes,
                reason=_STARVED if count.starved else "there is no sound count to compare with",
            )
            for count in measured
        ),
        reason=_why_none(measured, why),
    )


def _none_for_starved_next(
    answer: Recommendation, measured: Sequence[MeasuredCount]
) -> Recommendation:
    """No choice in place of the fewest nodes: it would rest on the starved count above them."""
    fewest, unknown = nodes_text(measured[0].nodes), nodes_text(measured[1].nodes)
    return answer.model_copy(
        update=dict(
            chosen=None,
            runner_up=None,
            rejected=(
                Choice(nodes=measured[0].nodes, reason=f"{unknown} may be better: not known"),
                *answer.rejected,
            ),
            reason=_why_none(measured, f"whether more than {fewest} pay is not known without them"),
        )
    )


def _why_none(measured: Sequence[MeasuredCount], why: str) -> str:
    starved = join_words(count.nodes for count in measured if count.starved)
    at = f"{starved} {'node' if starved == '1' else 'nodes'}"
    return _sentence(f"No recommendation, since the nodes were starved of CPU at {at}, and {why}")


def _over_budget(count: MeasuredCount, goals: RecommendationConfig) -> list[str]:
    budget = goals.budget_usd_per_run
    if budget is None:
        return []
    shown, limit = format_usd(count.usd), format_usd(budget)
    if count.usd is None:
        return [f"run cost is unknown, against a budget of {limit}"]
    if rounded(count.usd) <= budget:
        return []
    return [f"{count.cost_name} {shown} is {_just(shown, limit)}above the budget of {limit}"]


def _choice(count: MeasuredCount | None, base: MeasuredCount) -> Choice | None:
    """The count with its numbers against the baseline."""
    if count is None:
        return None
    if count is base:
        return Choice(nodes=count.nodes, reason=f"the baseline, {format_seconds(count.seconds)}")
    parts = [f"{faster_text(count.row.train.speedup)} {nodes_text(base.nodes)}"]
    if change := cost_change(count.row, base.row):
        parts.append(change)
    parts.append(f"efficiency {format_percent(count.efficiency)}")
    if count.doubling_ratio is not None:
        parts.append(f"doubling ratio {format_ratio(count.doubling_ratio)}")
    return Choice(nodes=count.nodes, reason=", ".join(parts))


def _rejected(
    measured: Sequence[MeasuredCount],
    chosen: MeasuredCount | None,
    problems: Mapping[int, Sequence[str]],
    outdone: Mapping[int, str],
) -> tuple[Choice, ...]:
    """All but the chosen: what is wrong with each, or how the chosen one outdoes it."""
    return tuple(
        Choice(
            nodes=count.nodes, reason=" and ".join(problems[count.nodes]) or outdone[count.nodes]
        )
        for count in measured
        if count is not chosen
    )


def _basis(intervals: Sequence[Interval | None]) -> Basis:
    return "point" if None in intervals else "interval"


def _too_few_runs_note(measured: Sequence[MeasuredCount]) -> list[str]:
    """Which counts have too few runs for an interval."""
    few = [count for count in measured if count.row.n < MIN_REPEATS]
    if not few:
        return []
    repeats = join_words(sorted({count.row.n for count in few}))
    where = "" if len(few) == len(measured) else f" (at {join_words(count.nodes for count in few)})"
    return [f"n = {repeats}{where} has no interval, so point estimates were judged"]


def _just(shown: str, limit: str) -> str:
    """So that a number which rounds to its limit does not read as one that holds it."""
    return "just " if shown == limit else ""


def _sentence(clause: str, *notes: str) -> str:
    return "; ".join([clause, *notes]) + "."
