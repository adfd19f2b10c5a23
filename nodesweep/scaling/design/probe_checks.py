"""Choose the full runs that validate a probe sweep, and find what they contradict.

Each node count gets a single full run, so a limit is considered met if that run meets it, even if
fewer than 19 of 20 further runs would. An undecided node count is not recommended, so no run can
contradict it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.advice import Choice, Recommendation, sentence
from nodesweep.scaling.analysis.intervals import MIN_REPEATS, geometric_mean
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run
from nodesweep.scaling.design.base import Check
from nodesweep.scaling.formats import format_seconds, join_words, nodes_text
from nodesweep.scaling.instances.progress import summarise_arm
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.outcome.projection import Projection
from nodesweep.scaling.t_distribution import t_quantile

_BY_TIME = frozenset(
    ("efficiency", "doubling_ratio", "faster", "deadline", "budget", "hour_value")
)  # criteria whose verdict the time of a full run can contradict
_ROUNDING = 1e-9  # relative: rounding error between sums of the same steps


def counts_to_validate(
    config: BenchmarkConfig, rows: Sequence[SummaryRow]
) -> tuple[int | None, int | None, str]:
    """Return (recommended, deciding, reason): the node counts to validate by full runs, and why.

    If the probes are too few to decide a deadline, no node count is recommended, and the smallest
    one that may meet the deadline is validated instead. A node count is None if it does not exist
    or if its time is already measured.
    """
    timed = [row for row in rows if row.train.seconds is not None]
    projected = [row.nodes for row in timed if row.n_projected]
    if not projected:
        return None, None, "no time is projected, so there is nothing to validate"
    recommendation = recommend(rows, config.report.recommendation)
    if recommendation is None:
        nodes = max(row.nodes for row in timed)
        return nodes, None, f"one full run on {nodes_text(nodes)} validates the projection"
    known = ", ".join(
        f"{format_seconds(row.train.seconds)} on {nodes_text(row.nodes)}" for row in timed
    )
    if recommendation.chosen is None:
        open_ = recommendation.not_ruled_out if recommendation.rule == "deadline" else ()
        may = next((nodes for nodes in open_ if nodes in projected), None)
        if may is None:
            return None, None, "no node count is recommended, so none is validated"
        why = (
            f"this does not rule out {nodes_text(may)}, so one full run there checks the projection"
        )
        return may, None, f"projected: {known}; {why}"
    nodes = recommendation.chosen.nodes
    # the cost of failed attempts is not projected, so a full run does not validate it
    without_failures = [row.nodes for row in timed if row.n_projected and row.per_result is None]
    deciding = _deciding_count(recommendation, nodes, without_failures)
    also = "" if deciding is None else f"one on {nodes_text(deciding)}, whose rejection decides,"
    if nodes not in projected:
        measured = (
            f"the recommendation, {nodes_text(nodes)}, is already measured, since its probes ran "
            f"all their steps ({known})"
        )
        return None, deciding, f"{measured}; {also} validates it" if also else measured
    why = f"this recommends {nodes_text(nodes)}, and one full run there"
    validates = f" and {also} validate it" if also else " validates it"
    return nodes, deciding, f"projected: {known}; {why}{validates}"


def _deciding_count(
    recommendation: Recommendation, chosen: int, projected: Sequence[int]
) -> int | None:
    """Return the node count that would be recommended if its projected time were too long.

    Under the efficiency rule, it is the next larger node count that is ruled out by its time alone.
    Under the deadline rule, it is the next smaller (and cheaper) one that is ruled out by its time
    alone. If there is no smaller one, or under any other rule, it is the runner-up. Return None if
    there is no such node count, or if its time is not projected.
    """
    rejected = [nodes for nodes in projected if _failed_by_time(recommendation, nodes)]
    if recommendation.rule == "efficiency":
        return min((nodes for nodes in rejected if nodes > chosen), default=None)
    smaller = [nodes for nodes in rejected if nodes < chosen]
    if recommendation.rule == "deadline" and smaller:
        return max(smaller)
    runner_up = recommendation.runner_up
    return runner_up.nodes if runner_up is not None and runner_up.nodes in projected else None


def judged_by_full_runs(
    config: BenchmarkConfig, runs: Sequence[Run], checks: Sequence[Check], factor: float
) -> Recommendation | None:
    """Return the recommendation from point estimates that use the times of the full runs.

    Single runs cannot decide a deadline (deadline.py), so the next run is assumed to take as long
    as the full run.
    """
    return recommend(rows_by_full_runs(config, runs, checks, factor), config.report.recommendation)


def rows_by_full_runs(
    config: BenchmarkConfig, runs: Sequence[Run], checks: Sequence[Check], factor: float
) -> list[SummaryRow]:
    """Return the summary rows with the full runs' times instead of their projections.

    The projections of the node counts without a full run are multiplied by `factor`.
    """
    times: dict[int, list[float]] = {}
    sample: dict[int, JobOutcome] = {}
    for run in runs:
        if run.used and run.train_seconds is not None:
            times.setdefault(run.outcome.nodes, []).append(run.train_seconds)
            sample.setdefault(run.outcome.nodes, run.outcome)
    measured = {check.nodes: check.measured_seconds for check in checks}
    again = [
        _retimed(outcome, measured.get(nodes, geometric_mean(times[nodes]) * factor))
        for nodes, outcome in sample.items()
    ]
    return [row.model_copy(update={"night_sigma": 0.0}) for row in summarise_arm(config, again)[0]]


def _retimed(outcome: JobOutcome, train_seconds: float) -> JobOutcome:
    """Return the outcome of a probe with `train_seconds` as its projected time.

    The outcome of a job that ran all its steps is returned unchanged.
    """
    projection = outcome.projection
    if projection is None:
        return outcome
    longer = train_seconds - projection.train_seconds
    return replace(
        outcome,
        clocks=outcome.clocks.model_copy(update={"train_seconds": train_seconds}),
        train_seconds_by={"projected": train_seconds},
        projection=projection.model_copy(
            update={
                "train_seconds": train_seconds,
                "extra_seconds": projection.extra_seconds + longer,
            }
        ),
    )


def contradiction(
    recommendation: Recommendation, again: Recommendation | None, checks: Sequence[Check]
) -> str | None:
    """Return how `again` contradicts the recommendation; None if it does not.

    `again` contradicts it if the recommended node count fails there, or if the deciding one, which
    was ruled out by its time alone, passes or is recommended.
    """
    judged = {} if again is None else {each.nodes: each for each in again.judged}
    chosen = None if again is None or again.chosen is None else again.chosen.nodes
    for check in checks:
        at, here = judged.get(check.nodes), nodes_text(check.nodes)
        answer = None if at is None else at.answer
        if check.decides:
            passes = answer == "pass" and _failed_by_time(recommendation, check.nodes)
            if passes or check.nodes == chosen:
                return f"{here} may be the answer"
        elif at is not None and answer == "fail":
            return f"{here} may not pass: {join_words(at.problems)}"
    return None


def _failed_by_time(recommendation: Recommendation, nodes: int) -> bool:
    failed = {
        verdict.criterion
        for each in recommendation.judged
        if each.nodes == nodes
        for verdict in each.verdicts
        if verdict.answer == "fail"
    }
    return bool(failed) and failed <= _BY_TIME


def without_choice(
    recommendation: Recommendation, chosen: int, checks: Sequence[Check], problem: str
) -> Recommendation:
    """Return the recommendation without its choice, which full runs contradict."""
    this = Choice(nodes=chosen, reason=problem)
    rejected = sorted([this, *recommendation.rejected], key=lambda choice: choice.nodes)
    counts = join_words(sorted({chosen, *(check.nodes for check in checks)}))
    return recommendation.model_copy(
        update={
            "chosen": None,
            "runner_up": None,
            "larger_may_pass": False,
            "rejected": tuple(rejected),
            "reason": sentence(
                f"Undecided, since full runs contradict the probes, which recommend "
                f"{nodes_text(chosen)}: {problem}",
                *(check.text for check in checks),
                f"sweep.design: full with node_counts that include {counts} decides it",
            ),
        }
    )


def compare_check(check: JobOutcome, runs: Sequence[Run]) -> Check | None:
    """Compare a full run with the projection at its node count; None if either time is unknown."""
    measured = check.train_seconds_by.get("program", check.train_seconds_by.get("logged"))
    projections = [
        run.outcome.projection
        for run in runs
        if run.used and run.outcome.nodes == check.nodes and run.outcome.projection is not None
    ]
    if measured is None or not projections:
        return None
    projected = fmean(each.train_seconds for each in projections)
    error = _error(projections)
    return Check(
        nodes=check.nodes,
        job_name=check.job_name,
        projected_seconds=projected,
        error_seconds=error,
        probes=len(projections),
        measured_seconds=measured,
        difference=measured / projected - 1,
        is_within_error=(
            None if error is None else abs(measured - projected) <= error + _ROUNDING * projected
        ),
    )


def _error(projections: Sequence[Projection]) -> float | None:
    """Return the half-width of the projection's 95% interval for a full run, in seconds.

    It is the largest error of a single probe or, with at least MIN_REPEATS probes, the half-width
    of the prediction interval from their spread if that is larger. None if a probe's error is
    unknown.
    """
    within = [each.error_seconds for each in projections]
    known = [error for error in within if error is not None]
    if len(known) < len(within):
        return None
    n = len(projections)
    if n < MIN_REPEATS:
        return max(known)
    # 95% prediction interval of the next run
    times = [each.train_seconds for each in projections]
    between = t_quantile(n - 1, 0.975) * stdev(times) * math.sqrt(1 + 1 / n)
    return max(*known, between)
