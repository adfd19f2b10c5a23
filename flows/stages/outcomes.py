"""Build a job's outcome from its status, metrics, utilization and last log lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nodesweep.configs.models import BenchmarkConfig, TrainingConfig
from nodesweep.events import event_extra
from nodesweep.launch.registry import Backend, backend_of
from nodesweep.launch.saved_logs import log_tail
from nodesweep.scaling import names
from nodesweep.scaling.instances.progress import count_points
from nodesweep.scaling.job import JobStatus, Render, ResolvedInputs
from nodesweep.scaling.outcome.attainment import attained_share, format_attained, is_contended
from nodesweep.scaling.outcome.logged import (
    missing_metrics,
    needs_log,
    read_logged,
    uses_definitions,
)
from nodesweep.scaling.outcome.outcome import JobOutcome, kept_node_facts, read_outcome
from nodesweep.scaling.outcome.pieces import whole_lines
from nodesweep.scaling.planning.plan import PlannedPoint, SweepPlan
from nodesweep.scaling.report.failures import LINES_SHOWN
from nodesweep.tasks.jobs.training_jobs import job_status

logger = logging.getLogger("nodesweep.sweep")


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep with its plan and inputs, and the backend that runs it.

    Its jobs are named by the requests of `named_by`; None: those of the backend.
    """

    backend: Backend
    config: BenchmarkConfig
    plan: SweepPlan
    inputs: ResolvedInputs
    named_by: Render | None = None

    @property
    def render(self) -> Render:
        """A function that returns the requests that name the jobs."""
        return self.named_by or self.backend.render

    def count_points(self, outcomes: Sequence[JobOutcome]) -> tuple[int, int]:
        """Return the number of planned points, and of those that have no completed run."""
        return count_points(self.config, outcomes)


def collect_outcome(
    planned: PlannedSweep, point: PlannedPoint, attempt: int, job: JobStatus
) -> JobOutcome:
    """Return the outcome of an ended job.

    The log is searched for values if metrics.json is missing or lacks train time or world size, or
    if the platform has no value for a metric definition. The log is kept next to the report; the
    outcome of a failed job includes its last lines.
    """
    config, backend, sweep = planned.config, planned.backend, planned.inputs.sweep_id
    name, completed = job.name, job.completed
    metrics = backend.read_metrics(sweep, name) if completed else None
    log = whole_lines(
        backend.read_log(job, Path(config.report.directory) / sweep / names.LOGS),
        point.world_size // point.nodes,
    )
    tail = [] if completed else log_tail(log)
    is_asked = completed and (
        needs_log(metrics, config.ends_early(point.repeat))
        or missing_metrics(job)
        or uses_definitions(job, metrics)
    )
    logged = read_logged(job, log if is_asked else ())
    arm = config.of_arm(point.arm.name)
    utilisation = backend_of(arm.platform).read_utilisation(job)  # the arm's platform has the nodes
    point_facts = point_fields(arm.training, point, attempt)
    outcome = read_outcome(job, metrics, tail, logged, utilisation=utilisation, **point_facts)
    return with_queue_deadline_reason(outcome, config.sweep.queue_deadline_seconds)


def with_queue_deadline_reason(outcome: JobOutcome, queue_deadline_seconds: float) -> JobOutcome:
    """Return the outcome, with its reason corrected if the job was stopped while still waiting.

    The platform only reports that the job was stopped. The reason is derived from the job's times,
    so that a rebuilt report gives the same reason.
    """
    waited = outcome.clocks.submit_to_end_seconds
    trained = "Training" in outcome.phases
    if outcome.status != "Stopped" or trained or waited is None or waited < queue_deadline_seconds:
        return outcome
    reason = (
        f"did not begin to train within {queue_deadline_seconds:g} s (sweep.queue_deadline_seconds)"
        " and was stopped; raise that limit, or run where or when there is capacity"
    )
    return replace(outcome, reason=reason)


def point_fields(training: TrainingConfig, point: PlannedPoint, attempt: int) -> dict[str, Any]:
    """Return an outcome's fields about its point, named as in JobOutcome."""
    batch, rate = training.batch, training.learning_rate
    return {
        "nodes": point.nodes,
        "repeat": point.repeat,
        "attempt": attempt,
        "world_size": point.world_size,
        "global_batch_size": point.global_batch_size,
        "per_replica_batch_size": point.per_replica_batch_size,
        "learning_rate": point.learning_rate,
        "batch_policy": batch and batch.policy,
        "learning_rate_rule": rate and rate.rule,
    }


def with_warm_pool(backend: Backend, outcome: JobOutcome) -> JobOutcome:
    """Return the outcome, updated with the state of its warm pool after the next job or release."""
    job = job_status(backend, outcome.job_name)
    return outcome if job is None else replace(outcome, **kept_node_facts(job))


def refused_outcome(
    planned: PlannedSweep, job_name: str, point: PlannedPoint, attempt: int, reason: str
) -> JobOutcome:
    """Return the outcome of an attempt refused by the backend, the budget or sweep.max_retries."""
    training = planned.config.of_arm(point.arm.name).training
    return JobOutcome(
        job_name=job_name,
        status="Failed",
        platform_kind=planned.backend.kind,
        # it would have run on the type that the first job got, if any
        instance_type=None if training.instance_fallbacks else training.instance_type,
        reason=reason,
        **point_fields(training, point, attempt),
    )


def log_outcome(outcome: JobOutcome) -> None:
    """Log how a job ended."""
    extra = outcome_event(outcome)
    for number in outcome.cut_numbers:
        logger.warning("%s: %s", outcome.job_name, number.text)
    if outcome.unprojected is not None:
        logger.warning(
            "%s: no training time: %s", outcome.job_name, outcome.unprojected, extra=extra
        )
    elif outcome.completed:
        logger.info("%s: %s", outcome.job_name, _train_time_text(outcome), extra=extra)
    else:
        logger.error("%s: %s: %s", outcome.job_name, outcome.status, outcome.reason, extra=extra)


def _train_time_text(outcome: JobOutcome) -> str:
    """Return the train time, measured or projected, as text."""
    seconds, projection = outcome.clocks.train_seconds, outcome.projection
    contended = ""
    if is_contended(outcome):
        got = format_attained(attained_share(outcome))
        contended = f"; contended: a node got {got} of the CPU that it requested"
    if projection is None:
        time = "an unknown time" if seconds is None else f"{seconds:.1f} s"
        if outcome.train_clock == "training_phase":
            return f"its Training phase took {time}; no train time is known{contended}"
        return f"trained for {time}{contended}"
    error = projection.error_seconds
    return (
        f"projected {projection.train_seconds:.1f} s"
        f"{'' if error is None else f' ± {error:.1f} s'} of training, from"
        f" {projection.steps} of {projection.planned_steps} steps{contended}"
    )


def outcome_event(outcome: JobOutcome) -> dict[str, Any]:
    """Return the facts a view needs about an ended point, with log lines if it failed."""
    clocks, error = outcome.clocks, outcome.program_error
    projected = outcome.projection
    steps = outcome.metric_number("steps") or outcome.logged.get("steps")
    if projected is not None:
        steps = None  # of a partial run; a view would assume them for every whole run
    lines = [] if outcome.completed else list(outcome.log_tail[-LINES_SHOWN:])
    if error is not None and not outcome.completed:
        lines.append(error.text)
    return event_extra(
        "point-ended",
        job=outcome.job_name,
        status=outcome.status,
        instance_type=outcome.instance_type,
        train_seconds=clocks.train_seconds,
        is_projected=projected is not None,
        whole_run_seconds=outcome.whole_run_clocks.submit_to_end_seconds if projected else None,
        whole_run_steps=projected.planned_steps if projected else None,
        billable_seconds=clocks.billable_seconds,
        submit_to_end_seconds=clocks.submit_to_end_seconds,
        steps=None if steps is None else int(steps),
        reason=outcome.reason,
        lines=lines,
    )
