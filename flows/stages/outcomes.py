"""What came back from a job: its description, metrics,
utilisation and last log lines as one outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from nodesweep.scaling.design.kinds import kind_of_job
from nodesweep.scaling.outcome.attainment import attained_share, format_attained, is_disturbed
from nodesweep.scaling.outcome.logged import (
    missing_metrics,
    needs_log,
    read_logged,
    uses_definitions,
)
from nodesweep.scaling.outcome.outcome import (
    JobOutcome,
    platform_kind,
    read_outcome,
    warm_pool_facts,
)
from nodesweep.scaling.planning.plan import PlannedPoint
from nodesweep.scaling.report.failures import LINES_SHOWN
from nodesweep.tasks.events import about
from nodesweep.tasks.jobs.logs import log_tail, read_job_log
from nodesweep.tasks.jobs.results import read_job_metrics
from nodesweep.tasks.jobs.training_jobs import describe_training_job
from nodesweep.tasks.jobs.utilisation import read_job_utilisation

logger = logging.getLogger("nodesweep.sweep")


def collect_outcome(
    config: BenchmarkConfig,
    sweep_id: str,
    point: PlannedPoint,
    attempt: int,
    description: Mapping[str, Any],
) -> JobOutcome:
    """Metrics and utilisation of a job that ended and, where it did not complete,
    its last log lines.

    Where its program wrote no metrics.json, or one without train time or world size, the log is
    asked for them, and where the platform has no value of a metric definition, or one that counts,
    for that. The whole
    log is kept beside the report, and read there.
    """
    name = description["TrainingJobName"]
    completed = description["TrainingJobStatus"] == "Completed"
    metrics = read_job_metrics(config.platform, sweep_id, name) if completed else None
    log = read_job_log(
        config.platform, name, Path(config.report.directory) / sweep_id / names.LOGS, completed
    )
    tail = [] if completed else log_tail(log)
    is_probe = kind_of_job(config, point.repeat) == "probe"
    is_asked = completed and (
        needs_log(metrics, is_probe)
        or missing_metrics(description)
        or uses_definitions(description, metrics)
    )
    logged = read_logged(description, log if is_asked else ())
    utilisation = read_job_utilisation(config.platform, description)
    point_facts = place_of(config, point, attempt)
    outcome = read_outcome(
        description, metrics, tail, logged, utilisation=utilisation, **point_facts
    )
    return name_queue_deadline(outcome, config.sweep.queue_deadline_seconds)


def name_queue_deadline(outcome: JobOutcome, queue_deadline_seconds: float) -> JobOutcome:
    """The outcome, its reason put right where the job was stopped because it did not begin
    to train in time.

    The platform knows only that it was stopped; told by its times, a report that is made anew says
    the same.
    """
    waited = outcome.clocks.submit_to_end_seconds
    trained = "Training" in outcome.phases
    if outcome.status != "Stopped" or trained or waited is None or waited < queue_deadline_seconds:
        return outcome
    reason = (
        f"did not begin to train within {queue_deadline_seconds:g} s (sweep.queue_deadline_seconds)"
        " and was stopped; look for capacity in another region or instance type, or wait longer"
    )
    return replace(outcome, reason=reason)


def place_of(config: BenchmarkConfig, point: PlannedPoint, attempt: int) -> dict[str, Any]:
    """What an outcome says of its point, under JobOutcome's names."""
    batch, rate = config.training.batch, config.training.learning_rate
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


def with_warm_pool(config: BenchmarkConfig, outcome: JobOutcome) -> JobOutcome:
    """The outcome with what became of the instances it kept,
    which is known only after the next job or the release.
    """
    description = describe_training_job(config.platform, outcome.job_name)
    return outcome if description is None else replace(outcome, **warm_pool_facts(description))


def refused_outcome(
    config: BenchmarkConfig, job_name: str, point: PlannedPoint, attempt: int, reason: str
) -> JobOutcome:
    """An attempt that SageMaker, the budget or sweep.max_retries kept from starting: a failed one,
    with its reason.
    """
    return JobOutcome(
        job_name=job_name,
        status="Failed",
        platform_kind=platform_kind(config.platform.role_arn),
        instance_type=point.instance_type or config.training.instance_type,
        reason=reason,
        **place_of(config, point, attempt),
    )


def say_outcome(outcome: JobOutcome) -> None:
    """One line on how a job ended."""
    extra = about_outcome(outcome)
    for number in outcome.cut_numbers:
        logger.warning("%s: %s", outcome.job_name, number.text)
    if outcome.unprojected is not None:
        logger.warning(
            "%s: no time to train: %s", outcome.job_name, outcome.unprojected, extra=extra
        )
    elif outcome.completed:
        logger.info("%s: %s", outcome.job_name, _trained(outcome), extra=extra)
    else:
        logger.error("%s: %s: %s", outcome.job_name, outcome.status, outcome.reason, extra=extra)


def _trained(outcome: JobOutcome) -> str:
    """How long, or how long a whole run is projected to take."""
    seconds, projection = outcome.clocks.train_seconds, outcome.projection
    contended = ""
    if is_disturbed(outcome):
        got = format_attained(attained_share(outcome))
        contended = f"; contended: a node got {got} of the CPU that it asked for"
    if projection is None:
        time = "an unknown time" if seconds is None else f"{seconds:.1f} s"
        return f"trained for {time}{contended}"
    error = projection.error_seconds
    return (
        f"projected {projection.train_seconds:.1f} s"
        f"{'' if error is None else f' ± {error:.1f} s'} of training, from"
        f" {projection.steps} of {projection.planned_steps} steps{contended}"
    )


def about_outcome(outcome: JobOutcome) -> dict[str, Any]:
    """What a view needs of a point that ended, and of a failed one the lines that matter."""
    clocks, error = outcome.clocks, outcome.program_error
    projected = outcome.projection
    steps = outcome.metric_number("steps") or outcome.logged.get("steps")
    if projected is not None:
        steps = None  # of a part; a view takes them for those of every whole run
    lines = [] if outcome.completed else list(outcome.log_tail[-LINES_SHOWN:])
    if error is not None and not outcome.completed:
        lines.append(error.text)
    return about(
        "point-ended",
        job=outcome.job_name,
        status=outcome.status,
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
