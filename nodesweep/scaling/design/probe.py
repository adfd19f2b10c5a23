"""The probe design: probe every node count, then validate the answer with full runs.

A probe is a job that stops once it has measured its steady step time (docs/probe.md). Its train
time is projected (nodesweep/scaling/outcome/projection.py). Validation runs are full runs, planned
as one more repeat: one at the recommended node count, and one at the node count whose rejection
decides the recommendation. If their times lead to a different recommendation, no node count is
recommended (probe_checks.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from nodesweep.scaling.analysis.interval import MIN_REPEATS
from nodesweep.scaling.design.base import Attempt, Check, Design, Measured, Progress
from nodesweep.scaling.design.costs import DesignCost, Estimate, full_cost, reference_minutes
from nodesweep.scaling.formats import counts_text, format_percent, join_words, nodes_text, pluralize
from nodesweep.scaling.outcome.attainment import soundness

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
    from nodesweep.scaling.analysis.advice import Recommendation
    from nodesweep.scaling.analysis.rows import SummaryRow
    from nodesweep.scaling.analysis.speedup import Run
    from nodesweep.scaling.instances.progress import SweepProgress
    from nodesweep.scaling.outcome.outcome import JobOutcome
    from nodesweep.scaling.outcome.projection import PartName, Projection
    from nodesweep.scaling.rules.rule import Facts

REFERENCE_STEPS = 5000
"""Assumed number of steps of a run, which the reference does not report."""
EPOCH_STEPS = 100
"""Assumed number of steps of an epoch; a probe runs the whole first epoch if max_steps allows."""
STEP_NOISE = 0.05
"""Assumed spread of step times, as a share of their mean."""
LEAST_PROBE_STEPS = 30  # 10 warm-up and 20 timed steps: infra/image/nodesweep_clock.py
_WARM_UP_STEPS = 10  # at the beginning of the run and of each epoch
_NORMAL = 1.96  # two-sided 95% quantile


class Probe(Design):
    """The design that probes every node count; it imports late so that a plan loads quickly."""

    name = "probe"
    jobs_text = "at most {} jobs: probes, and full runs that validate their projection"

    def progress(
        self, config: BenchmarkConfig, rows: Sequence[SummaryRow], attempts: Sequence[Attempt]
    ) -> Progress:
        """Request all probes first, then the full runs that validate their recommendation."""
        ended = {(each.nodes, each.repeat) for each in attempts}
        repeats = range(1, config.sweep.repeats + 1)
        points = tuple((nodes, repeat) for nodes in config.sweep.node_counts for repeat in repeats)
        if missing := tuple(point for point in points if point not in ended):
            return Progress(points, missing, (), "every node count is probed first")
        from nodesweep.scaling.design.probe_checks import counts_to_validate  # late import

        nodes, deciding, reason = counts_to_validate(config, rows)
        counts = [each for each in (nodes, deciding) if each is not None]
        checks = tuple((each, config.sweep.most_repeats) for each in counts)
        left = tuple(check for check in checks if check not in ended)
        return Progress((*points, *checks), left, (), reason, deciding)

    def progress_of_arms(
        self, config: BenchmarkConfig, outcomes: Sequence[JobOutcome]
    ) -> SweepProgress:
        """Request rounds of probes of the cells still in contention, then the validation run."""
        from nodesweep.scaling.instances.design import probe_arms  # late import

        return probe_arms(config, outcomes)

    def find_checks(
        self, config: BenchmarkConfig, runs: Sequence[Run], progress: Progress
    ) -> tuple[Check | None, tuple[Check, ...]]:
        """Return the validation run at the recommended node count, and any at other node counts.

        The others are the deciding node count and those recommended before the recommendation
        changed. Of several runs at a node count, the least contended is used, or the latest of
        equally contended ones.
        """
        from nodesweep.scaling.design.probe_checks import compare_check  # late import

        is_validation_run = config.sweep.is_validation_run
        latest: dict[int, JobOutcome] = {}
        outcomes = (run.outcome for run in runs)
        for outcome in sorted(outcomes, key=lambda each: (soundness(each), each.created_at or "")):
            if is_validation_run(outcome.repeat) and outcome.completed:
                latest[outcome.nodes] = outcome
        deciding = progress.deciding
        asked = [
            nodes
            for nodes, repeat in progress.points
            if is_validation_run(repeat) and nodes != deciding
        ]
        found = [
            check.model_copy(update={"decides": check.nodes == deciding})
            for _, each in sorted(latest.items())
            if (check := compare_check(each, runs))
        ]
        others = tuple(check for check in found if check.nodes not in asked)
        return next((check for check in found if check.nodes in asked), None), others

    def confirm(
        self,
        config: BenchmarkConfig,
        runs: Sequence[Run],
        recommendation: Recommendation | None,
        checks: Sequence[Check],
    ) -> Recommendation | None:
        """Return the recommendation, without a choice if the validation runs contradict it.

        The limits are evaluated again with the times of the full runs. The errors of the other
        projections are unknown, so the limits are evaluated with these projections as they are, and
        then with all of them scaled by the error at each validated node count in turn.
        """
        from nodesweep.scaling.design import probe_checks  # late import

        if recommendation is None or recommendation.chosen is None:
            return recommendation
        chosen = recommendation.chosen.nodes
        asked = [check for check in checks if check.nodes == chosen or check.decides]
        for factor in (1.0, *(1 + check.difference for check in asked)):
            again = probe_checks.judged_by_full_runs(config, runs, asked, factor)
            if problem := probe_checks.contradiction(recommendation, again, asked):
                return probe_checks.without_choice(recommendation, chosen, asked, problem)
        return recommendation

    def caveats(self, measured: Measured, general: Sequence[str]) -> Sequence[str]:
        """Return the general caveats, then caveats on projected figures and their validation."""
        return (*general, *_probe_notes(measured))

    def plan_lines(self, config: BenchmarkConfig) -> list[str]:
        """Return a line on each validation run."""
        sweep = config.sweep
        what = "node count" if sweep.arm_count == 1 else f"{sweep.arm_kind} and node count"
        lines = [
            f"one full job at the {what} that the probes recommend",
            "one full job at the node count whose rejection decides the recommendation, if any",
        ]
        first = sweep.most_jobs - sweep.max_checks + 1
        return [f"{first + n:>4} {lines[n]}" for n in range(sweep.max_checks)]

    def estimate(self, config: BenchmarkConfig) -> Estimate | None:
        """Return the cost with one probe per repeat of the config's design at each node count.

        None if the probe design does not suit the config.
        """
        if self.rules.unsuited(config):
            return None
        sweep, ends = config.sweep, config.sweep.probe_ends
        cost = probe_cost(
            sweep.node_counts,
            config.report.recommendation,
            sweep.arm_repeats,
            ends.precision,
            ends.max_steps,
            sweep.arm_count,
        )
        spread = format_percent(STEP_NOISE)
        note = (
            f"probes: {REFERENCE_STEPS:,} steps, which vary by {spread}, in epochs of "
            f"{EPOCH_STEPS}; "
        )
        return Estimate(f"probe, {pluralize(sweep.arm_repeats, 'repeat')}", cost, note)

    def program_hints(self, facts: Facts) -> Iterator[str]:
        """Yield hints on ending a job early and on reporting its time (docs/probe.md).

        A probe that does not stop early costs as much as a full run, and no time can be projected
        from a probe that does not report its steps and planned steps. No probe has a final metric,
        which a growing batch needs.
        """
        sizes = [point.global_batch_size or 0 for point in facts.plan.points]
        if max(sizes) > min(sizes):
            yield (
                "training.batch: the global batch differs between jobs, and probes have no final "
                "metric, so convergence stays unknown and nothing is recommended; use another "
                "sweep.design, or one global batch for all jobs (policy fixed_global)"
            )
        yield (
            "sweep.design: probe: a job stops early only if its program checks the clock after "
            "each step, and otherwise costs as much as a full run; see 'Your training script' in "
            "docs/probe.md for the three lines"
        )
        if facts.files.mentions_planned_steps is False:
            yield (
                "sweep.design: probe: no .py file in training.source_dir "
                f"{facts.training.source_dir} contains clock(steps=…) or planned_steps, and no "
                "metric definition has such a name; a probe that does not report how many steps it "
                "ran, and out of how many, gives no train time, and two in a row end the sweep"
            )


def _probe_notes(measured: Measured) -> Iterator[str]:
    """Yield caveats on the projected figures and their validation, or on a lack of projections."""
    check, others = measured.check, measured.other_checks
    if not any(row.n_projected for row in measured.rows):
        if any(row.n for row in measured.rows):
            yield (
                "Probe design: no job stopped early, so every time here is measured, at "
                "the cost of full runs. A short program runs all its steps before their time is "
                "known; your training script has to check the clock after each step "
                "(docs/probe.md)."
            )
        return
    yield from projected_notes(measured)
    why, deciding = _why_unchecked(measured.config, measured.progress), measured.progress.deciding
    if check is not None:
        yield f"Validation run: a full run on {_check_text(check)}."
    else:
        checked = " at the node count to be validated" if others else ""
        yield f"No full run has validated the projection{checked}: {why}."
    if deciding is not None and not any(other.decides for other in others):
        yield f"No full run has validated the rejection of {nodes_text(deciding)}: {why}."
    for other in others:
        when = (
            "whose rejection decides" if other.decides else "from before the recommendation changed"
        )
        yield f"Validation run at another node count, {when}: {_check_text(other)}."


def projected_notes(measured: Measured) -> Iterator[str]:
    """Yield caveats on projected times: their error, unseen parts of a run, and trends."""
    rows = [row for row in measured.rows if row.n_projected]
    if not rows:
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
    yield from _unseen_notes(measured.outcomes)
    yield from _trend_notes(measured.outcomes)


def _probes_by_nodes(outcomes: Sequence[JobOutcome]) -> Mapping[int, list[Projection]]:
    found: dict[int, list[Projection]] = {}
    for outcome in outcomes:
        if outcome.completed and outcome.projection is not None:
            found.setdefault(outcome.nodes, []).append(outcome.projection)
    return dict(sorted(found.items()))


def _unseen_notes(outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield notes on the parts of a full run that probes did not reach or did not report."""
    probes = _probes_by_nodes(outcomes)
    for name, text in _UNSEEN.items():
        at = [nodes for nodes, own in probes.items() if any(name in each.unseen for each in own)]
        if at:
            yield f"Not seen by the probes at {counts_text(at)}: {text}"
    silent = [
        nodes for nodes, own in probes.items() if any(each.epochs_seen is None for each in own)
    ]
    if silent:
        yield (
            f"Not reported by the probes at {counts_text(silent)}: the ends of epochs. If an epoch "
            "is longer than a probe, T does not include the cost of its end (evaluation, "
            "checkpoint, restart of the loader), and is too long if a cold first epoch is slower "
            "than the others; give clock(steps=…, epoch_steps=…) (docs/probe.md)."
        )


def _trend_notes(outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield a note on each node count at which at least half of the probes trend the same way."""
    for nodes, own in _probes_by_nodes(outcomes).items():
        trends = [each.step_trend or 0.0 for each in own if each.is_trending]
        for are, effect in (("slower", "too short"), ("faster", "too long")):
            alike = [abs(trend) for trend in trends if (trend > 0) == (are == "slower")]
            if 2 * len(alike) >= len(own):
                yield (
                    f"Trend in the probes at {nodes_text(nodes)}: their steps got "
                    f"{format_percent(median(alike))} {are} (Mann-Kendall test at 1%) and may "
                    f"change further, so T may be {effect}; raise sweep.probe.max_steps or "
                    "max_share, or use design: full."
                )


_UNSEEN: Mapping[PartName, str] = {
    "epochs": (
        "the end of an epoch. T does not include it (restart of the loader, and evaluation and "
        "checkpoint if the program does not time them separately), and is too long if a cold first "
        "epoch is slower than the others. To include one, raise sweep.probe.max_steps or max_share "
        "to an epoch and 30 steps more; a run of two epochs needs design: full."
    ),
    "checkpoints": "a checkpoint. T does not include the cost of checkpoints.",
    "validations": (
        "a validation. The times billed and waited do not include the cost of validations."
    ),
}


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
    """Return the probe design's node-hours on the reference curve, excluding start-up.

    The minimum assumes the fewest steps per probe and one validation run at the cheapest node
    count. The maximum assumes max_steps per probe and validation runs at the two most expensive
    node counts. The expected cost assumes that a probe runs one epoch if max_steps allows. Several
    instance types share one validation run. Each type is assumed to be as fast as the reference, so
    the expected cost includes every round of all types. The minimum assumes that one type is left
    after the first round.

    Args:
        counts: The sweep's node counts.
        goals: The limits of the recommendation, which decide where the validation run takes place.
        repeats: Probes per node count.
        precision: Target half width of the 95% interval of a step's time, as a share of the time.
        max_steps: Largest number of steps of a probe.
        types: Number of instance types.
    """
    steady = (_NORMAL * STEP_NOISE / precision) ** 2
    epoch = EPOCH_STEPS if max_steps >= EPOCH_STEPS + LEAST_PROBE_STEPS else 0
    whole = full_cost(counts, repeats) * types
    checks = {nodes: full_cost([nodes], 1) for nodes in counts}
    least = whole
    if types > 1:
        has_goal = goals.deadline_seconds is not None or goals.budget_usd_per_run is not None
        first = sorted({min(counts), max(counts)}) if has_goal else counts
        least = full_cost(first, 1) * types + (repeats - 1) * min(checks.values())

    def hours(whole: float, steps: float, check: float) -> float:
        made = min(max(steps, LEAST_PROBE_STEPS), max_steps, REFERENCE_STEPS)
        return whole * made / REFERENCE_STEPS + check

    likely = _reference_choice(counts, goals)
    dearest = sorted(checks.values(), reverse=True)
    if types > 1:
        likely, dearest = likely[:1], dearest[:1]
    return DesignCost(
        least=hours(least, 0, min(checks.values())),
        expected=hours(
            whole, epoch + _WARM_UP_STEPS + steady, math.fsum(checks[nodes] for nodes in likely)
        ),
        most=hours(whole, max_steps, math.fsum(dearest[:2])),
    )


def _reference_choice(counts: Sequence[int], goals: RecommendationConfig) -> list[int]:
    """Return the largest node count that passes on the reference curve, and the next larger one.

    If none passes, the first is the smallest node count. The largest has no successor.
    """
    base = min(counts)

    def passes(nodes: int) -> bool:
        efficiency = reference_minutes(base) * base / reference_minutes(nodes) / nodes
        half = reference_minutes(nodes // 2) if nodes // 2 in counts and nodes % 2 == 0 else None
        ratio = math.inf if half is None else half / reference_minutes(nodes)
        return efficiency >= goals.min_efficiency and ratio >= goals.min_doubling_ratio

    best = max((nodes for nodes in counts if nodes != base and passes(nodes)), default=base)
    return [best, *sorted(nodes for nodes in counts if nodes > best)[:1]]
