"""The sweep: one training job per point, in the planned order; a failed point does not lose the others."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prefect import flow

from configs.models import BenchmarkConfig
from scaling.outcome import TERMINAL, JobOutcome, platform_kind, read_outcome
from scaling.plan import PlannedPoint, SweepPlan
from scaling.request import ResolvedInputs, build_request
from tasks.errors import JobRefused
from tasks.jobs import QuotaReached, stop_now, submit_training_job, watch_training_jobs
from tasks.polling import Clock
from tasks.results import read_job_log, read_job_metrics

logger = logging.getLogger("nodesweep.sweep")
_STOP_GRACE_SECONDS = 600  # beyond queueing and max runtime: download, upload and the platform's own slack
_QUOTA_PAUSE_SECONDS = 60.0


@dataclass
class _Attempt:
    """One try at a point; `tries_left` counts further ones that this run may make."""

    point: PlannedPoint
    number: int
    tries_left: int
    deadline: float = 0.0
    quota_deadline: float | None = None


@flow(name="sweep", flow_run_name="sweep-{inputs.sweep_id}", validate_parameters=False)
def run_sweep(config: BenchmarkConfig, plan: SweepPlan, inputs: ResolvedInputs) -> list[JobOutcome]:
    """Run every planned point; one outcome per attempt, failed ones too. Stops its jobs when cancelled."""
    waiting = deque(_Attempt(point, 1, config.sweep.max_attempts - 1) for point in plan.points)
    active: dict[str, _Attempt] = {}
    outcomes: list[JobOutcome] = []
    try:
        while waiting or active:
            while waiting and len(active) < config.sweep.max_parallel_jobs:
                attempt = waiting.popleft()
                request = build_request(config, attempt.point, inputs, attempt.number)
                # Before the call: a job that was accepted is stopped with the others, whatever fails after that.
                active[request["TrainingJobName"]] = attempt
                try:
                    description = _submit(config, request, attempt, len(outcomes) + len(active), len(plan.points))
                except JobRefused as error:
                    del active[request["TrainingJobName"]]
                    if _may_wait_for_quota(config, error, attempt, bool(active)):
                        waiting.appendleft(attempt)
                        break
                    outcomes.append(_refused(config, request["TrainingJobName"], attempt, error))
                    _say(outcomes[-1])
                    continue
                if description["TrainingJobStatus"] in TERMINAL:
                    del active[request["TrainingJobName"]]
                    _settle_earlier(config, inputs, attempt, description, outcomes, waiting)
            _settle_ended(config, inputs, active, outcomes, waiting)
    except BaseException:
        if active:
            logger.warning("stopping %d running jobs", len(active))
            stop_now(config.platform, list(active))
        raise
    return sorted(outcomes, key=lambda outcome: (outcome.nodes, outcome.repeat, outcome.attempt))


def _submit(
    config: BenchmarkConfig, request: Mapping[str, Any], attempt: _Attempt, place: int, total: int
) -> dict[str, Any]:
    """Start or adopt the attempt's job and set its deadline."""
    logger.info(
        "job %d/%d: %d x %s, repeat %d%s",
        place,
        total,
        attempt.point.nodes,
        config.training.instance_type,
        attempt.point.repeat,
        f", attempt {attempt.number}" if attempt.number > 1 else "",
    )
    limits = config.sweep.queue_deadline_seconds + config.training.max_runtime_seconds + _STOP_GRACE_SECONDS
    attempt.deadline = time.monotonic() + limits
    return submit_training_job(config.platform, request)


def _settle_earlier(
    config: BenchmarkConfig,
    inputs: ResolvedInputs,
    attempt: _Attempt,
    description: Mapping[str, Any],
    outcomes: list[JobOutcome],
    waiting: deque[_Attempt],
) -> None:
    """A job that an earlier run ended: a completed one is the result, any other one gets a new attempt."""
    outcome = collect_outcome(config, inputs.sweep_id, attempt.point, attempt.number, description)
    outcomes.append(outcome)
    logger.info("%s: %s by an earlier run", outcome.job_name, outcome.status)
    if not outcome.completed:
        waiting.appendleft(_Attempt(attempt.point, attempt.number + 1, attempt.tries_left))


def _settle_ended(
    config: BenchmarkConfig,
    inputs: ResolvedInputs,
    active: dict[str, _Attempt],
    outcomes: list[JobOutcome],
    waiting: deque[_Attempt],
) -> None:
    """Wait for the next job to end, collect what ended, and put back what may pass on another try."""
    if not active:
        return
    deadlines = {name: attempt.deadline for name, attempt in active.items()}
    for description in watch_training_jobs(
        config.platform, list(active), config.sweep.poll_interval_seconds, deadlines
    ):
        attempt = active.pop(description["TrainingJobName"])
        outcome = collect_outcome(config, inputs.sweep_id, attempt.point, attempt.number, description)
        outcomes.append(outcome)
        _say(outcome)
        if outcome.may_pass and attempt.tries_left:
            waiting.appendleft(_Attempt(attempt.point, attempt.number + 1, attempt.tries_left - 1))


def collect_outcome(
    config: BenchmarkConfig, sweep_id: str, point: PlannedPoint, attempt: int, description: Mapping[str, Any]
) -> JobOutcome:
    """Metrics of a job that ended and, where it did not complete, its last log lines."""
    name = description["TrainingJobName"]
    completed = description["TrainingJobStatus"] == "Completed"
    metrics = read_job_metrics(config.platform, sweep_id, name) if completed else None
    log_tail = [] if completed else read_job_log(config.platform, name)
    return read_outcome(
        description,
        metrics,
        log_tail,
        nodes=point.nodes,
        repeat=point.repeat,
        attempt=attempt,
        world_size=point.world_size,
        global_batch_size=point.global_batch_size,
        per_replica_batch_size=point.per_replica_batch_size,
        learning_rate=point.learning_rate,
    )


def _may_wait_for_quota(config: BenchmarkConfig, error: JobRefused, attempt: _Attempt, others_run: bool) -> bool:
    """Whether a refusal is a matter of quota that more waiting may end; waits a minute where no job of ours will."""
    if not isinstance(error, QuotaReached):
        return False
    logger.warning("quota reached: %s", error)
    if attempt.quota_deadline is None:  # counted from the first refusal
        attempt.quota_deadline = time.monotonic() + config.sweep.queue_deadline_seconds
    if time.monotonic() > attempt.quota_deadline:
        return False
    if not others_run:
        Clock().sleep(_QUOTA_PAUSE_SECONDS * random.uniform(0.8, 1.2))
    return True


def _refused(config: BenchmarkConfig, job_name: str, attempt: _Attempt, error: JobRefused) -> JobOutcome:
    """A point that SageMaker would not start: a failed one, with the refusal as its reason."""
    point = attempt.point
    return JobOutcome(
        nodes=point.nodes,
        repeat=point.repeat,
        attempt=attempt.number,
        job_name=job_name,
        status="Failed",
        platform_kind=platform_kind(config.platform.role_arn),
        instance_type=config.training.instance_type,
        reason=str(error),
        world_size=point.world_size,
        global_batch_size=point.global_batch_size,
        per_replica_batch_size=point.per_replica_batch_size,
        learning_rate=point.learning_rate,
    )


def _say(outcome: JobOutcome) -> None:
    if outcome.completed:
        seconds = outcome.clocks.train_seconds
        logger.info(
            "%s: trained for %s", outcome.job_name, "an unknown time" if seconds is None else f"{seconds:.1f} s"
        )
    else:
        logger.error("%s: %s: %s", outcome.job_name, outcome.status, outcome.reason)
