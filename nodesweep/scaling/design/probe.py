"""The probe design: probe every node count, then validate the answer with one whole run.

A probe is a job that ends itself once its steady step time is known (docs/probe.md); its train time
is projected (nodesweep/scaling/outcome/projection.py). The validation run is a whole job at the
recommended count, planned as one more repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from nodesweep.scaling.analysis.interval import MIN_REPEATS
from nodesweep.scaling.design.base import Attempt, Check, Design, Measured, Progress
from nodesweep.scaling.design.costs import DesignCost, Estimate, full_cost, reference_minutes
from nodesweep.scaling.formats import (
    format_percent,
    format_seconds,
    join_words,
    nodes_text,
    pluralize,
)
from nodesweep.scaling.outcome.attainment import soundness
from nodesweep.scaling.t_distribution import t_quantile

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
    from nodesweep.scaling.analysis.rows import SummaryRow
    from nodesweep.scaling.analysis.speedup import Run
    from nodesweep.scaling.instances.progress import SweepProgress
    from nodesweep.scaling.outcome.outcome import JobOutcome
    from nodesweep.scaling.outcome.projection import Projection
    from nodesweep.scaling.rules.rule import Facts

REFERENCE_STEPS = 5000
"""Assumed number of steps of a run; the reference does not report its own."""
STEP_NOISE = 0.05
"""Assumed spread of step times, as a share of their mean."""
_LEAST_PROBE_STEPS = 30  # 10 warm-up and 20 timed steps: infra/image/nodesweep_clock.py
_WARM_UP_STEPS = 10
_NORMAL = 1.96  # two-sided 95% quantile
_ROUNDING = 1e-9  # relative: rounding error between sums of the same steps


class Probe(Design):
    """The probe design."""

    name = "probe"
    jobs_text = "at most {} jobs: probes, and one full run that validates their projection"

    def progress(
        self, config: BenchmarkConfig, rows: Sequence[SummaryRow], attempts: Sequence[Attempt]
    ) -> Progress:
        """Ask for all probes first, then for the validation run at the count they recommend."""
        ended = {(each.nodes, each.repeat) for each in attempts}
        repeats = range(1, config.sweep.repeats + 1)
        points = tuple((nodes, repeat) for nodes in config.sweep.node_counts for repeat in repeats)
        if missing := tuple(point for point in points if point not in ended):
            return Progress(points, missing, (), "every node count is probed first")
        nodes, reason = _count_to_validate(config, rows)
        if nodes is None:
            return Progress(points, (), (), reason)
        check = (nodes, config.sweep.most_repeats)
        left = () if check in ended else (check,)
        return Progress((*points, check), left, (), reason)

    def progress_of_types(
        self, config: BenchmarkConfig, outcomes: Sequence[JobOutcome]
    ) -> SweepProgress:
        """Ask for rounds of probes of the arms that may be the answer, then the validation run."""
        from nodesweep.scaling.instances.design import probe_types  # a plan does not need it

        return probe_types(config, outcomes)

    def find_checks(
        self, config: BenchmarkConfig, runs: Sequence[Run], progress: Progress
    ) -> tuple[Check | None, tuple[Check, ...]]:
        """Return the validation run at the count to validate, and those at other counts.

        The recommendation may have changed after the others were made. Of several runs at one
        count, the least contended one counts and, of equals, the latest.
        """
        is_validation_run = config.sweep.is_validation_run
        latest: dict[int, JobOutcome] = {}
        outcomes = (run.outcome for run in runs)
        for outcome in sorted(outcomes, key=lambda each: (soundness(each), each.created_at or "")):
            if is_validation_run(outcome.repeat) and outcome.completed:
                latest[outcome.nodes] = outcome
        asked = [nodes for nodes, repeat in progress.points if is_validation_run(repeat)]
        found = [check for _, each in sorted(latest.items()) if (check := _compare(each, runs))]
        others = tuple(check for check in found if check.nodes not in asked)
        return next((check for check in found if check.nodes in asked), None), others

    def caveats(self, measured: Measured, general: Sequence[str]) -> Sequence[str]:
        """Return the general caveats, then those on projected figures and their validation."""
        return (*general, *_projected_notes(measured))

    def plan_lines(self, config: BenchmarkConfig) -> list[str]:
        """Return a line on the validation run."""
        sweep = config.sweep
        what = "node count" if sweep.instance_types is None else "instance type and node count"
        return [f"{sweep.most_jobs:>4} one full job at the {what} that the probes recommend"]

    def estimate(self, config: BenchmarkConfig) -> Estimate | None:
        """Return the cost with one probe per repeat of the config's design, at each count."""
        if self.rules.unsuited(config):
            return None
        sweep, ends = config.sweep, config.sweep.probe_ends
        cost = probe_cost(
            sweep.node_counts,
            config.report.recommendation,
            sweep.arm_repeats,
            ends.precision,
            ends.max_steps,
            len(config.instance_types),
        )
        spread = format_percent(STEP_NOISE)
        note = f"probes: {REFERENCE_STEPS:,} steps, which vary by {spread}; "
        return Estimate(f"probe, {pluralize(sweep.arm_repeats, 'repeat')}", cost, note)

    def program_hints(self, facts: Facts) -> Iterator[str]:
        """Yield hints on ending a job early and on reporting its time (docs/probe.md).

        A probe that does not end itself is a whole job, and one that does not report its steps and
        planned steps gives no time. None has a final metric, which a growing batch needs.
        """
        sizes = [point.global_batch_size or 0 for point in facts.plan.points]
        if max(sizes) > min(sizes):
            yield (
                "training.batch.policy: fixed_per_replica, and probes have no final metric, so "
                "convergence stays unknown and the report gives samples per second without a node "
                "count; use sweep.design full or sequential, or policy fixed_global"
            )
        yield (
            "sweep.design: probe: a job ends early only if its program asks the clock after each "
            "step, and otherwise costs as much as a full run; see 'Your training script' in "
            "docs/probe.md for the three lines"
        )
        if facts.files.mentions_planned_steps is False:
            yield (
                "sweep.design: probe: no .py file in training.source_dir "
                f"{facts.training.source_dir} contains clock(steps=…) or planned_steps, and no "
                "metric definition has such a name; a probe that does not report how many steps it "
                "ran, and out of how many, gives no time to train, and two of them end the sweep"
            )


def _count_to_validate(
    config: BenchmarkConfig, rows: Sequence[SummaryRow]
) -> tuple[int | None, str]:
    """Return (count to validate with a whole run, reason); None if there is none to validate."""
    timed = [row for row in rows if row.train.seconds is not None]
    if not any(row.n_projected for row in timed):
        return None, "no time is projected, so there is nothing to validate"
    from nodesweep.scaling.analysis.recommend import recommend  # a plan does not need it

    recommendation = recommend(rows, config.report.recommendation)
    if recommendation is None:
        nodes = max(row.nodes for row in timed)
        return nodes, f"one full run on {nodes_text(nodes)} validates the projection"
    if recommendation.chosen is None:
        return None, "no node count is recommended, so none is validated"
    nodes = recommendation.chosen.nodes
    known = ", ".join(
        f"{format_seconds(row.train.seconds)} on {nodes_text(row.nodes)}" for row in timed
    )
    if not any(row.n_projected for row in timed if row.nodes == nodes):
        return None, (
            f"the recommendation, {nodes_text(nodes)}, is already measured, since its probes ran "
            f"all their steps ({known})"
        )
    why = f"this recommends {nodes_text(nodes)}, and one full run there validates it"
    return nodes, f"projected: {known}; {why}"


def _compare(check: JobOutcome, runs: Sequence[Run]) -> Check | None:
    """Compare a whole run with its projection; return None if either is unknown."""
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
    """Return the half width of the 95% interval for a whole run, in seconds.

    It is the wider of the errors within the probes and, with enough probes, the prediction interval
    from the spread between them.
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


def _projected_notes(measured: Measured) -> Iterator[str]:
    """Yield caveats on the projected figures, their source and their validation."""
    rows, check, others = measured.rows, measured.check, measured.other_checks
    if not any(row.n_projected for row in rows):
        if any(row.n for row in rows):
            yield (
                "Probe design: no job ended itself early, so every time here is measured, at "
                "the cost of full runs. A short program runs all its steps before their time is "
                "known; your training script has to ask the clock after each step "
                "(docs/probe.md)."
            )
        return
    errors = [
        f"{share:.1%} at {nodes_text(row.nodes)}"
        for row in rows
        if (share := _error_share(row)) is not None
    ]
    known = f" (95% error within a run: {join_words(errors)})" if errors else ""
    yield (
        f"Projected: the probes ended early. T{known}, everything derived from it, and the cost "
        "of a run are projected to a full run; the cost of the sweep is measured. The quality "
        "of the trained model is not assessed."
    )
    if check is not None:
        yield f"Validation run: a full run on {_check_text(check)}."
    else:
        checked = " at the node count to be validated" if others else ""
        why = _why_unchecked(measured.config, measured.progress)
        yield f"No full run has validated the projection{checked}: {why}."
    for other in others:
        yield (
            "Validation run at another node count, from before the recommendation changed: "
            f"{_check_text(other)}."
        )


def _check_text(check: Check) -> str:
    is_narrow = check.error_seconds is not None and check.probes < MIN_REPEATS
    return check.text + ("; the spread between runs is not included" if is_narrow else "")


def _why_unchecked(config: BenchmarkConfig, progress: Progress) -> str:
    if progress.next_points:
        return "the validation run did not take place; continue with --resume"
    if any(config.sweep.is_validation_run(repeat) for _, repeat in progress.points):
        return "the validation run did not complete, or gave no train time"
    return progress.reason


def _error_share(row: SummaryRow) -> float | None:
    error, seconds = row.projection_error_seconds, row.train.seconds
    return None if error is None or seconds is None else error / seconds


def probe_cost(
    counts: Sequence[int],
    goals: RecommendationConfig,
    repeats: int,
    precision: float,
    max_steps: int,
    types: int = 1,
) -> DesignCost:
    """Return the probe design's node-hours on the reference curve, without start-up.

    The least assumes the fewest steps per probe and the validation run at the cheapest count; the
    most assumes max_steps per probe and the validation run at the most expensive count. With
    several instance types, each is assumed to be as fast as the reference, so no arm is dropped in
    the expected cost; in the least, one arm is left after the first round.

    Args:
        counts: The sweep's node counts.
        goals: The limits of the recommendation, which decide the validation run's count.
        repeats: Probes per count.
        precision: Target half width of the 95% interval of a step's time, as a share of the time.
        max_steps: Largest number of steps of a probe.
        types: Number of instance types.
    """
    steady = (_NORMAL * STEP_NOISE / precision) ** 2
    whole = full_cost(counts, repeats) * types
    checks = {nodes: full_cost([nodes], 1) for nodes in counts}
    least = whole
    if types > 1:
        has_goal = goals.deadline_seconds is not None or goals.budget_usd_per_run is not None
        first = sorted({min(counts), max(counts)}) if has_goal else counts
        least = full_cost(first, 1) * types + (repeats - 1) * min(checks.values())

    def hours(whole: float, steps: float, check: float) -> float:
        made = min(max(steps, _LEAST_PROBE_STEPS), max_steps, REFERENCE_STEPS)
        return whole * made / REFERENCE_STEPS + check

    return DesignCost(
        least=hours(least, 0, min(checks.values())),
        expected=hours(whole, _WARM_UP_STEPS + steady, checks[_reference_choice(counts, goals)]),
        most=hours(whole, max_steps, max(checks.values())),
    )


def _reference_choice(counts: Sequence[int], goals: RecommendationConfig) -> int:
    """Return the largest count that passes the limits on the reference curve, else the smallest."""
    base = min(counts)

    def passes(nodes: int) -> bool:
        efficiency = reference_minutes(base) * base / reference_minutes(nodes) / nodes
        half = reference_minutes(nodes // 2) if nodes // 2 in counts and nodes % 2 == 0 else None
        ratio = math.inf if half is None else half / reference_minutes(nodes)
        return efficiency >= goals.min_efficiency and ratio >= goals.min_doubling_ratio

    return max((nodes for nodes in counts if nodes != base and passes(nodes)), default=base)
