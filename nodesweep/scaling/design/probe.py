"""The probe design: probe every node count, then validate the answer with one whole run.

A probe is a job that ends itself once its steady step time is known (docs/probe.md); its train time
is projected (nodesweep/scaling/outcome/projection.py). The validation run is a whole job at the
recommended count, planned as one more repeat.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from statistics import fmean, stdev

from pydantic import Field

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.intervals import MIN_REPEATS
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run
from nodesweep.scaling.design.kinds import check_repeat, is_check, kind_of_job
from nodesweep.scaling.design.sequential import Point, Progress
from nodesweep.scaling.formats import counted, format_seconds, join_words, nodes_text
from nodesweep.scaling.outcome.attainment import soundness
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.outcome.projection import Projection
from nodesweep.scaling.report_part import Part
from nodesweep.scaling.t_distribution import t_quantile

_ROUNDING = 1e-9  # relative: rounding error between sums of the same steps


class Check(Part):
    """A whole run at the recommended node count, compared with its projection."""

    nodes: int = Field(description="Node count that it ran on.")
    job_name: str = Field(description="Its training job.")
    projected_seconds: float = Field(description="Mean of the times projected there.")
    error_seconds: float | None = Field(
        description=(
            "Error of the projection for a full run, half of a 95% interval: the largest error "
            "of those projections or, for three or more, the prediction interval from their "
            "spread, whichever is wider; null: unknown."
        )
    )
    probes: int = Field(description="Number of projected times there.")
    measured_seconds: float = Field(description="Time of the full run.")
    difference: float = Field(description="Measured over projected time, minus 1.")
    is_within_error: bool | None = Field(description="null: the error is unknown.")

    @property
    def text(self) -> str:
        """The comparison in words.

        For example: 8 nodes took 13.6 s, 1.5% more than the 13.4 s ± 0.3 s projected, outside that
        error.
        """
        return self.text_of(nodes_text(self.nodes))

    def text_of(self, place: str) -> str:
        """Return the comparison in words, with another name for the place: 8 x ml.g5.xlarge."""
        error = "" if self.error_seconds is None else f" ± {format_seconds(self.error_seconds)}"
        share = f"{abs(self.difference) * 100:.1f}%"
        than = f"{share} {'more' if self.difference >= 0 else 'less'} than"
        where = {True: ", within this error", False: ", outside this error", None: ""}
        return (
            f"{place} took {format_seconds(self.measured_seconds)}, {than} the"
            f" {format_seconds(self.projected_seconds)}{error} projected"
            f"{where[self.is_within_error]}"
        )


def probe_progress(
    config: BenchmarkConfig, rows: Sequence[SummaryRow], ended: Collection[Point]
) -> Progress:
    """Return the points that the design has asked for, and those that come next.

    It is a pure function of what has ended, like the sequential design. `rows` are the report rows
    of the points that have `ended`.
    """
    repeats = range(1, check_repeat(config))
    points = tuple((nodes, repeat) for nodes in config.sweep.node_counts for repeat in repeats)
    if missing := tuple(point for point in points if point not in ended):
        return Progress(points, missing, (), "every node count is probed first")
    nodes, reason = _checked_count(config, rows)
    if nodes is None:
        return Progress(points, (), (), reason)
    check = (nodes, check_repeat(config))
    left = () if check in ended else (check,)
    return Progress((*points, check), left, (), reason)


def _checked_count(config: BenchmarkConfig, rows: Sequence[SummaryRow]) -> tuple[int | None, str]:
    """Return (count to validate with a whole run, reason); None if there is none to validate."""
    timed = [row for row in rows if row.train.seconds is not None]
    if not any(row.n_projected for row in timed):
        return None, "no time is projected, so there is nothing to validate"
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


def find_checks(
    config: BenchmarkConfig | None, runs: Sequence[Run], progress: Progress | None
) -> tuple[Check | None, tuple[Check, ...]]:
    """Return the validation run at the count that the design validates, and those at other counts.

    The answer may have moved after the others were made. Of several runs at one count, the least
    contended one counts, then the latest.
    """
    if config is None or progress is None:
        return None, ()
    latest: dict[int, JobOutcome] = {}
    outcomes = (run.outcome for run in runs)
    for outcome in sorted(outcomes, key=lambda each: (soundness(each), each.created_at or "")):
        if is_check(config, outcome.repeat) and outcome.completed:
            latest[outcome.nodes] = outcome
    asked = [nodes for nodes, repeat in progress.points if is_check(config, repeat)]
    found = [check for _, each in sorted(latest.items()) if (check := _compare(each, runs))]
    others = tuple(check for check in found if check.nodes not in asked)
    return next((check for check in found if check.nodes in asked), None), others


def _compare(check: JobOutcome, runs: Sequence[Run]) -> Check | None:
    """Return a whole run compared with its projection; None if either is unknown."""
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


def projected_notes(
    config: BenchmarkConfig | None,
    rows: Sequence[SummaryRow],
    check: Check | None,
    progress: Progress | None,
    others: Sequence[Check] = (),
) -> Iterator[str]:
    """Yield caveats: which figures are projected, from what, and whether a whole run confirms them.

    `check` is the validation run at the count that is validated now, if any; `others` are those at
    other counts.
    """
    if config is None or progress is None or config.sweep.design != "probe":
        return
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
        why = _why_unchecked(config, progress)
        yield f"No full run has validated the projection{checked}: {why}."
    for other in others:
        yield (
            "Validation run at another node count, made before the recommendation changed: "
            f"{_check_text(other)}."
        )


def unprojected_notes(outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield caveats: which probes give no train time, and the remedy."""
    by_reason: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.unprojected is not None:
            by_reason.setdefault(outcome.unprojected, []).append(outcome.nodes)
    for reason, counts in by_reason.items():
        at = join_words(map(nodes_text, sorted(set(counts))))
        yield (
            f"No time to train from {counted(len(counts), 'job')} at {at}: {reason}"
            " (docs/probe.md)."
        )


def unrequested_partial_notes(
    config: BenchmarkConfig | None, outcomes: Sequence[JobOutcome]
) -> Iterator[str]:
    """Yield caveats on unrequested partial runs, whose times are projected all the same.

    These are jobs that ended early but were to be whole, and probes that ended without being told
    to.
    """
    if config is None:
        return
    parts = [outcome for outcome in outcomes if outcome.projection is not None]
    whole = [each for each in parts if kind_of_job(config, each.repeat) != "probe"]
    if whole:
        yield (
            f"Partial runs: jobs that should have run all their steps ran {_parts_text(whole)}; "
            "the time of the rest is projected. Look for a step limit left in the program, its "
            "hyperparameters or its image; use design: probe to measure partial runs and "
            "validate them."
        )
    untold = [
        each for each in parts if each not in whole and each.metric("probe", "ended") == "complete"
    ]
    if untold:
        yield (
            f"Ended early for no known reason: probes ran {_parts_text(untold)}, although "
            "nothing had asked them to end. The projection covers all the steps that the "
            "program reports for a full run; if a full run has no more than these, the program "
            "miscounts its steps."
        )


def _parts_text(parts: Sequence[JobOutcome]) -> str:
    """Return, for example, "50 of 500 steps at 1 node and 50 of 500 steps at 2 nodes"."""
    by_nodes = {each.nodes: each.projection for each in parts if each.projection is not None}
    return join_words(
        f"{part.steps} of {part.planned_steps} steps at {nodes_text(nodes)}"
        for nodes, part in sorted(by_nodes.items())
    )


def _check_text(check: Check) -> str:
    is_narrow = check.error_seconds is not None and check.probes < MIN_REPEATS
    return check.text + ("; the spread between runs is not included" if is_narrow else "")


def _why_unchecked(config: BenchmarkConfig, progress: Progress) -> str:
    if progress.next_points:
        return "the validation run was not made; continue with --resume"
    if any(is_check(config, repeat) for _, repeat in progress.points):
        return "the validation run did not complete, or gave no train time"
    return progress.reason


def _error_share(row: SummaryRow) -> float | None:
    error, seconds = row.projection_error_seconds, row.train.seconds
    return None if error is None or seconds is None else error / seconds
