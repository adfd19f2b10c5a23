"""Recommend a node count from the summary rows, and find the time-cost Pareto front.

The efficiency rule picks the largest node count whose efficiency and doubling ratio meet their
limits. If there is a deadline, the deadline rule (deadline.py) picks the cheapest node count that
meets it instead. If there is a value of an hour, hour_value.py picks the node count with the least
cost plus waiting. The verdict for each limit is pass, fail or undecided (verdicts.py). Every
measured node count except the chosen one gets the reason against it, and an undecided one also gets
the runs that would decide (docs/recommendation.md; docs/method.md, "Cost and recommendation").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import (
    Choice,
    Recommendation,
    basis_of,
    choice_of,
    few_runs_notes,
    rejected_of,
    sentence,
    undecided_notes,
)
from nodesweep.scaling.analysis.bounds import (
    JudgeOne,
    contended_text,
    judge_counts,
    largest_that_may_pass,
)
from nodesweep.scaling.analysis.deadline import recommend_by_deadline, recommend_none
from nodesweep.scaling.analysis.hour_value import recommend_by_hour_value
from nodesweep.scaling.analysis.intervals import MIN_REPEATS
from nodesweep.scaling.analysis.measured_count import MeasuredCount, measured_counts, rounded
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.analysis.throughput import unless_convergence_unknown
from nodesweep.scaling.analysis.verdicts import (
    CONTENDED,
    JudgedCount,
    completes,
    is_comparable,
    is_efficient,
    is_faster,
    is_within_budget,
    judged_count,
    pays_for_doubling,
)
from nodesweep.scaling.formats import (
    counts_text,
    format_percent,
    format_ratio,
    format_usd,
    join_words,
    nodes_text,
)
from nodesweep.scaling.outcome.attainment import LEAST_BOUNDED

OwnJudge = Callable[[Sequence[MeasuredCount], RecommendationConfig], Recommendation]


def recommend(
    rows: Sequence[SummaryRow],
    goals: RecommendationConfig,
    own: OwnJudge | None = None,
) -> Recommendation | None:
    """Recommend one of the measured node counts; return None if there are fewer than two.

    No node count is chosen if convergence is unknown at one of them, unless the answer is a larger
    node count than the baseline. A deadline needs times of runs, not rates.

    Args:
        rows: The summary rows.
        goals: Limits, deadline and budget.
        own: The recommendation function of the design, if it has one. It is not used if there is a
            deadline, a value of an hour, a budget per run, a failed attempt, or a contended node
            count whose time has known bounds.
    """
    measured = measured_counts(rows)
    if len(measured) < 2:
        return None
    return unless_convergence_unknown(_recommend(measured, goals, own), measured, goals)


def _recommend(
    measured: Sequence[MeasuredCount], goals: RecommendationConfig, own: OwnJudge | None
) -> Recommendation:
    # the rules for a deadline and the value of an hour don't need the baseline
    is_ratio = goals.deadline_seconds is None and goals.hour_value_usd is None
    if measured[0].is_unknown and is_ratio:
        return _recommend_none_for_contended(
            measured, goals, "every node count is compared with the baseline"
        )
    known = [count for count in measured if not count.is_unknown]
    if len(known) < len(measured):
        if len(known) < 2:
            why = "no other node count is left to compare with"
            return _recommend_none_for_contended(measured, goals, why)
        if not any(count.is_same_model for count in known):
            why = "the other node counts trained a different model"
            return _recommend_none_for_contended(measured, goals, why)
    if goals.deadline_seconds is not None:
        answer = recommend_by_deadline(measured, goals, goals.deadline_seconds)
        return _unless_contended(answer, measured)
    if goals.hour_value_usd is not None:
        answer = recommend_by_hour_value(measured, goals, goals.hour_value_usd)
        return _unless_contended(answer, measured)
    is_contended = any(count.is_bounded for count in measured)
    has_failed = any(count.row.per_result is not None for count in measured)
    if not (own is None or goals.budget_usd_per_run is not None or is_contended or has_failed):
        answer = own(measured, goals)
    else:
        answer = _by_efficiency(measured, goals)
    return _unless_contended(_unless_next_contended(answer, measured), measured)


def pareto_front(
    rows: Sequence[SummaryRow], spent: Callable[[MeasuredCount], float | None] = attrgetter("usd")
) -> tuple[int, ...]:
    """Return the node counts on the front of train time and cost, ascending.

    A node count is on the front if no other one is at least as good in both and better in one. Time
    and cost are expected values for a result, including failed attempts, and `spent` returns the
    cost. Node counts without a time or a cost are left out, and so are contended and
    throughput-only ones, whose times are not valid times-to-train.
    """
    points = sorted(
        (rounded(count.seconds_per_result), rounded(usd), count.nodes)
        for count in measured_counts(rows)
        if (usd := spent(count)) is not None and count.is_usable
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
    judge = partial(_judge_efficiency, goals=goals)
    judged, contended = judge_counts(measured, judge)
    answers = {each.nodes: each.answer for each in judged}
    eligible = [count for count in measured if answers[count.nodes] == "pass"]
    chosen = eligible[-1] if eligible else None
    undecided = [
        each
        for each in judged
        if each.answer == "undecided" and (chosen is None or each.nodes > chosen.nodes)
    ]
    reasons = {
        count.nodes: f"passes too, with fewer nodes than {eligible[-1].nodes}" for count in eligible
    }
    return Recommendation(
        rule="efficiency",
        basis=basis_of([count.row.train.efficiency_interval for count in measured[1:]]),
        chosen=choice_of(chosen, measured[0]),
        runner_up=choice_of(_next_efficient(measured, eligible), measured[0]),
        rejected=rejected_of(judged, chosen, reasons),
        judged=tuple(judged),
        not_ruled_out=tuple(each.nodes for each in undecided),
        between=(
            tuple(sorted(largest_that_may_pass(measured, judge)))
            if any(each.nodes in contended for each in undecided)
            else ()
        ),
        larger_may_pass=chosen is measured[-1],
        reason=_efficiency_reason(measured, judged, undecided, chosen, goals),
    )


def _judge_efficiency(measured: Sequence[MeasuredCount], goals: RecommendationConfig) -> JudgeOne:
    """Return the function that checks a node count by the limits of the efficiency rule."""
    base = measured[0]
    by_nodes = {count.nodes: count for count in measured}
    times = [(rounded(count.seconds_per_result), count) for count in measured if count.is_usable]

    def judge(count: MeasuredCount) -> JudgedCount:
        share = completes(count)
        if count is base and share is not None and share.answer == "undecided":
            share = None  # the baseline is still chosen if no larger node count passes
        return judged_count(
            count.nodes,
            (
                is_comparable(count),
                share,
                is_efficient(count, base, goals),
                pays_for_doubling(count, by_nodes.get(count.nodes // 2), goals),
                None if count is base else is_faster(count, _smaller_as_fast(count, times)),
                is_within_budget(count, goals),
            ),
        )

    return judge


def _smaller_as_fast(
    count: MeasuredCount, times: Sequence[tuple[float, MeasuredCount]]
) -> list[MeasuredCount]:
    """Return the smaller node counts that are at least as fast, ascending; `times` are rounded."""
    limit = rounded(count.seconds_per_result)
    return [other for seconds, other in times if other.nodes < count.nodes and seconds <= limit]


def _next_efficient(
    measured: Sequence[MeasuredCount], eligible: Sequence[MeasuredCount]
) -> MeasuredCount | None:
    """Return the next smaller node count that passes, or None if no node count passes.

    If only one passes, return the usable node count with the highest lower bound of the efficiency
    among the others, or None if there is none.
    """
    if len(eligible) != 1:
        return eligible[-2] if eligible else None
    others = [count for count in measured if count is not eligible[0] and count.is_usable]
    return max(others, key=lambda count: (rounded(count.efficiency_low), count.nodes), default=None)


def _efficiency_reason(
    measured: Sequence[MeasuredCount],
    judged: Sequence[JudgedCount],
    undecided: Sequence[JudgedCount],
    chosen: MeasuredCount | None,
    goals: RecommendationConfig,
) -> str:
    limits = [
        f"efficiency at least {format_percent(goals.min_efficiency)}",
        f"doubling ratio at least {format_ratio(goals.min_doubling_ratio)}",
    ]
    if goals.budget_usd_per_run is not None:
        limits.append(f"run cost at most {format_usd(goals.budget_usd_per_run)}")
    if any(count.row.per_result is not None for count in measured):
        limits.append("at least half of the attempts complete")
    asked = f"({', '.join(limits)})"
    notes = [*undecided_notes(undecided), *few_runs_notes(measured), *_few_pairs_notes(measured)]
    shown = "is shown to pass" if undecided else "passes"
    if chosen is None:  # even the baseline fails, on its budget or attempts
        why = f"at {nodes_text(measured[0].nodes)}, {judged[0].problems[0]}"
        return sentence(f"No measured node count {shown} {asked}", why, *notes)
    if chosen is measured[0]:
        return sentence(
            f"No node count larger than {nodes_text(chosen.nodes)} {shown} {asked}", *notes
        )
    if chosen is measured[-1]:
        notes = [f"more than {chosen.nodes} nodes were not measured and may pass too", *notes]
    if chosen.doubling_ratio is None:
        notes = [
            (
                f"the doubling ratio at {nodes_text(chosen.nodes)} was not checked, since there is "
                "no train time at half that node count"
            ),
            *notes,
        ]
    smaller = [each.nodes for each in judged if each.nodes < chosen.nodes and each.answer != "pass"]
    if smaller:
        notes = [f"smaller node counts that do not pass: {join_words(smaller)}", *notes]
    return sentence(
        f"{nodes_text(chosen.nodes)} is the largest measured node count that passes {asked}", *notes
    )


def _few_pairs_notes(measured: Sequence[MeasuredCount]) -> list[str]:
    """Return a note on node counts that have too few repeats in common with the baseline.

    They have enough runs, but the ratios of a shuffled sweep are paired by repeat.
    """
    base = measured[0]
    few = [
        count.nodes
        for count in measured[1:]
        if min(base.row.n, count.row.n) >= MIN_REPEATS
        and count.row.train.efficiency_interval is None
    ]
    if not few:
        return []
    return [
        f"fewer than {MIN_REPEATS} repeats have times for both {nodes_text(base.nodes)} and "
        f"{join_words(few)}, so point estimates were used there"
    ]


def _recommend_none_for_contended(
    measured: Sequence[MeasuredCount], goals: RecommendationConfig, why: str
) -> Recommendation:
    """Return a recommendation without a choice, since node counts were too contended.

    `why` is a clause on why the other node counts don't give an answer.
    """
    return recommend_none(
        measured,
        goals,
        lambda count: (
            CONTENDED if count.is_unknown else "there is no reliable node count to compare with"
        ),
        _why_none(measured, why),
    )


def _unless_next_contended(
    recommendation: Recommendation, measured: Sequence[MeasuredCount]
) -> Recommendation:
    """Drop the choice if the next larger node count, which may be better, was too contended.

    Undecided node counts in between are skipped.
    """
    if recommendation.chosen is None:
        return recommendation
    chosen = recommendation.chosen.nodes
    undecided = {each.nodes for each in recommendation.judged if each.answer == "undecided"}
    larger = (count for count in measured if count.nodes > chosen)
    unknown = next(
        (count for count in larger if count.is_unknown or count.nodes not in undecided), None
    )
    if unknown is None or not unknown.is_unknown:
        return recommendation
    this = Choice(
        nodes=chosen,
        reason=f"{nodes_text(unknown.nodes)} may be better, but were too contended to tell",
    )
    passes = [] if chosen == measured[0].nodes else [f"{nodes_text(chosen)} passed all limits"]
    return recommendation.model_copy(
        update=dict(
            chosen=None,
            runner_up=None,
            between=(),
            rejected=tuple(
                sorted([this, *recommendation.rejected], key=lambda choice: choice.nodes)
            ),
            reason=_why_none(
                measured,
                f"without valid times there, it is unknown whether more than {nodes_text(chosen)} "
                f"{'pays' if chosen == 1 else 'pay'} off",
                *passes,
            ),
        )
    )


def _unless_contended(
    recommendation: Recommendation, measured: Sequence[MeasuredCount]
) -> Recommendation:
    """Drop the choice if contended times leave several candidates, and explain each candidate."""
    nodes = recommendation.between
    if not nodes:
        return recommendation
    if recommendation.chosen is not None:
        question = f"between {join_words(nodes)} nodes"
    else:
        any_of = "any of " if len(nodes) > 1 else ""
        question = f"whether {any_of}{counts_text(nodes)} can be recommended"
    sources = [count for count in measured if count.is_bounded or count.nodes in nodes]
    open_ = [
        f"at {nodes_text(each.nodes)}, {' and '.join(each.problems) or 'it may be the cheapest'}"
        for each in recommendation.judged
        if each.nodes in nodes
        and (recommendation.chosen is None or each.nodes != recommendation.chosen.nodes)
    ]
    rejected = list(recommendation.rejected)
    if recommendation.chosen is not None:
        others = [each for each in nodes if each != recommendation.chosen.nodes]
        are = "is" if others == [1] else "are"
        this = Choice(
            nodes=recommendation.chosen.nodes,
            reason=f"undecided whether {counts_text(others)} {are} better",
        )
        rejected = sorted([this, *rejected], key=lambda choice: choice.nodes)
    return recommendation.model_copy(
        update=dict(
            chosen=None,
            runner_up=None,
            larger_may_pass=False,
            rejected=tuple(rejected),
            reason=sentence(
                f"Undecided {question}, since {contended_text(sources)}",
                *open_,
            ),
        )
    )


def _why_none(measured: Sequence[MeasuredCount], why: str, *notes: str) -> str:
    at = counts_text(count.nodes for count in measured if count.is_unknown)
    return sentence(
        f"No recommendation, since nodes were contended at {at}, where one got less than "
        f"{format_percent(LEAST_BOUNDED)} of the CPU it requested, and {why}",
        *notes,
    )
