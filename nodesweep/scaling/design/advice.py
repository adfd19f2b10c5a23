"""The recommendation of a sequential sweep: the largest node count found to pass.

docs/sequential.md documents the design.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
from nodesweep.scaling.analysis.advice import (
    Choice,
    Recommendation,
    choice_of,
    rejected_of,
    sentence,
    undecided_notes,
)
from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.analysis.measured_count import MeasuredCount
from nodesweep.scaling.analysis.verdicts import (
    JudgedCount,
    MoreRuns,
    Verdict,
    is_comparable,
    judged_count,
    runs_needed,
)
from nodesweep.scaling.design.base import CountAnswer, Judged, Point, Progress
from nodesweep.scaling.design.sequential import ZONE, Sequential
from nodesweep.scaling.formats import (
    agree,
    counts_text,
    format_percent,
    format_ratio,
    nodes_text,
    pluralize,
)


def recommend_sequential(
    measured: Sequence[MeasuredCount], goals: RecommendationConfig, progress: Progress
) -> Recommendation:
    """Return the recommendation that follows from the sequential design's verdicts.

    Node counts between the baseline and the recommended one were not evaluated. If the sweep ended
    before the design was done, the remaining node counts are undecided.
    """
    base = measured[0]
    by_nodes = {count.nodes: count for count in measured}
    answers = {each.nodes: each for each in progress.answers}
    passed = [nodes for nodes, each in answers.items() if each.answer == "pass"]
    chosen = by_nodes[passed[0]] if passed else base
    judged = [
        _judge(count, answers.get(count.nodes), by_nodes)
        for count in measured
        if count is base or count.nodes >= chosen.nodes
    ]
    open_ = [each for each in judged if each.answer == "undecided" and each.verdicts]
    smaller = [
        Choice(
            nodes=count.nodes,
            reason=f"fewer nodes than {chosen.nodes}, so it was not evaluated",
        )
        for count in measured
        if base.nodes < count.nodes < chosen.nodes
    ]
    instead = {each.nodes: "not decided when the sweep ended" for each in judged}
    instead[base.nodes] = f"fewer nodes than {chosen.nodes}"
    rejected = sorted(
        [*rejected_of(judged, chosen, instead), *smaller], key=lambda choice: choice.nodes
    )
    return Recommendation(
        rule="efficiency",
        basis="sequential",
        chosen=choice_of(chosen, base),
        runner_up=None,
        rejected=tuple(rejected),
        judged=tuple(judged),
        not_ruled_out=tuple(each.nodes for each in open_),
        larger_may_pass=chosen is measured[-1],
        reason=_reason(measured, chosen, judged, open_, goals),
    )


def skipped_run_notes(
    config: BenchmarkConfig, progress: Progress, made: Collection[Point]
) -> Iterator[str]:
    """Yield caveats on the runs that the sequential design skipped.

    `made` are the points that were run, including points of an earlier attempt at the sweep that
    the design no longer requests.
    """
    most = len(config.sweep.node_counts) * config.sweep.max_repeats
    yield (
        f"Sequential design: {len(progress.points)} runs were requested instead of {most} "
        f"({config.sweep.max_repeats} of each node count); node counts with fewer than 3 runs have "
        "no interval."
    )
    if unrequested := set(made) - set(progress.points):
        yield (
            f"The design no longer requests {pluralize(len(unrequested), 'run')} at "
            f"{counts_text(sorted({nodes for nodes, _ in unrequested}))} from before a resume; "
            "they count toward the times and the cost, but not toward decisions."
        )
    open_ = [each.nodes for each in progress.answers if each.answer == "undecided"]
    most_of = {nodes: repeat for nodes, repeat in sorted(progress.points)}
    is_over = not progress.next_points
    undecided = [nodes for nodes in open_ if is_over and most_of[nodes] >= config.sweep.max_repeats]
    lost = [nodes for nodes in open_ if is_over and nodes not in undecided]
    if lost:
        yield (
            f"Undecided at {counts_text(sorted(lost))}, since none of the last runs gave a usable "
            "train time. Fix the cause, then continue with --resume."
        )
    if undecided:
        yield (
            f"Undecided at {counts_text(sorted(undecided))} after {config.sweep.max_repeats} runs "
            "of each (sweep.max_repeats). If the answer is worth more runs, raise it and continue "
            "with --resume."
        )
    if left := len(progress.next_points):
        yield (
            f"The sequential design is not finished: {left} of its runs "
            f"{agree(left, 'has', 'have')} not been made, so it may still decide node counts "
            "that are undecided now; continue with --resume."
        )


def _judge(
    count: MeasuredCount, answer: CountAnswer | None, by_nodes: Mapping[int, MeasuredCount]
) -> JudgedCount:
    verdicts = [is_comparable(count)]
    verdicts += [_verdict(count, each, by_nodes) for each in answer.limits] if answer else []
    judged = judged_count(count.nodes, verdicts)
    is_open = count.nodes != min(by_nodes) and not any(verdicts)
    return judged.model_copy(update={"answer": "undecided"}) if is_open else judged


def _verdict(
    count: MeasuredCount, judged: Judged, by_nodes: Mapping[int, MeasuredCount]
) -> Verdict:
    needed: tuple[MoreRuns, ...] = ()
    if judged.answer == "undecided":
        needed = runs_needed(
            judged.value, judged.low, judged.high, judged.limit, (by_nodes[judged.than], count)
        )
    return Verdict(
        criterion=judged.criterion,
        answer=judged.answer,
        value=judged.value,
        limit=judged.limit,
        interval=Interval(low=judged.low, high=judged.high, level=1 - judged.error),
        reason=_why(judged),
        more_runs=needed,
    )


def _why(judged: Judged) -> str | None:
    value, limit = judged.value_text, judged.limit_text
    return {
        "pass": None,
        "fail": f"{value} misses {limit}",
        "undecided": f"{value} may or may not reach {limit}",
        "on_the_limit": f"{value} is within {format_percent(ZONE)} of {limit}",
    }[judged.answer]


def _reason(
    measured: Sequence[MeasuredCount],
    chosen: MeasuredCount,
    judged: Sequence[JudgedCount],
    open_: Sequence[JudgedCount],
    goals: RecommendationConfig,
) -> str:
    asked = (
        f"(efficiency at least {format_percent(goals.min_efficiency)}, doubling ratio at least"
        f" {format_ratio(goals.min_doubling_ratio)})"
    )
    design = Sequential()
    notes = [*design.limit_notes(judged), *undecided_notes(open_), design.promise]
    if chosen is measured[0]:
        return sentence(
            f"No node count larger than {nodes_text(chosen.nodes)} is known to pass {asked}", *notes
        )
    if chosen is measured[-1]:
        notes = [f"more than {chosen.nodes} nodes were not measured and may pass too", *notes]
    return sentence(
        f"{nodes_text(chosen.nodes)} is the largest measured node count that passes {asked}", *notes
    )
