"""Submit all jobs of a sweep and exit; `collect` later creates the report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import JobRefused, PreflightRefused, RunFailed, SweepStopped
from nodesweep.flows.scaling_benchmark import BenchmarkRun
from nodesweep.flows.stages.cancellable import cancellable, named
from nodesweep.flows.stages.ending import end_sweep
from nodesweep.flows.stages.outcomes import PlannedSweep, collect_outcome
from nodesweep.flows.stages.sweep import job_limits, submit_point
from nodesweep.polling import utc_now
from nodesweep.scaling import names
from nodesweep.scaling.instances.arms import lacks_memory
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.fail_fast import code_digest, is_programs_fault, needs_smoke
from nodesweep.scaling.planning.plan import PlannedPoint, SweepPlan
from nodesweep.scaling.planning.workload import sized_steps, sizing_key, unsized_reason
from nodesweep.tasks.calls import prepare_store, stop_sweep_jobs
from nodesweep.tasks.jobs.source import is_code_proven
from nodesweep.tasks.jobs.training_jobs import watch_training_jobs
from nodesweep.tasks.sweeps.claims import is_sweep_stopped
from nodesweep.tasks.sweeps.job_runs import run_name
from nodesweep.tasks.sweeps.owner import owned
from nodesweep.tasks.task import as_task

logger = logging.getLogger("nodesweep.flow")


@dataclass(frozen=True)
class DetachedSweep:
    """A sweep that runs unattended; `refused` holds a reason per job that was not accepted."""

    sweep_id: str
    job_names: tuple[str, ...]
    refused: tuple[str, ...]


@flow(name="detached-sweep", flow_run_name=named("detached-{config.name}"))
@cancellable
def start_detached_sweep(config: BenchmarkConfig) -> DetachedSweep:
    """Start all jobs of a sweep and return once they are accepted. Failed points are not retried.

    If the code is new (sweep.smoke), the smallest job runs first and the others start once it has
    reached its first step. If the first job determines the step count of all jobs
    (training.baseline_seconds), the others start once it has completed.

    Args:
        config: The benchmark; its sweep.max_parallel_jobs must cover all its points.
    """
    run = BenchmarkRun.of(config)
    store, plan = run.backend.store, run.check()
    _check_all_start_at_once(config, plan)
    prepare_store(store)
    begun = run.start_sweep(None)
    inputs, planned, sweep = begun.inputs, run.planned(plan, begun), begun.inputs.sweep_id
    logger.info("sweep %s: %d jobs; `nodesweep stop %s` stops them", sweep, len(plan.points), sweep)
    accepted: list[str] = []
    refused: list[str] = []
    points, failed = list(plan.points), None
    is_new = needs_smoke(config.sweep) and not is_code_proven(
        store, code_digest(config.training, inputs)
    )
    sizing, steps = sizing_key(config), None
    if is_new:
        points.sort(key=lambda point: point.nodes)
    points.sort(key=lambda point: point.key != sizing)
    with owned(store, sweep, detached=True) as owner:
        try:
            for point in points:
                if sizing is not None and refused and not accepted:
                    refused.append(f"{point.key.text}: {unsized_reason(config.sweep)}")
                    continue
                try:
                    job = _submit_as_task(planned, point, steps)
                except JobRefused as error:
                    logger.error("%s", error)
                    refused.append(str(error))
                    continue
                if job is None:
                    break
                accepted.append(job.name)
                if len(accepted) == 1 and sizing is not None:
                    failed, steps = _wait_for_sizing_job(planned, point, accepted[0])
                elif len(accepted) == 1 and is_new:
                    failed = _run_smoke_job(planned, point, accepted[0])
                if failed is not None:
                    break
        except BaseException as error:
            end_sweep(run.backend, config.sweep.on_cancel, sweep, accepted, error, owner)
            raise
    if is_sweep_stopped(store, sweep):
        # SageMaker may not list the last accepted job yet
        stop_sweep_jobs(run.backend, sweep)
        raise SweepStopped(
            f"sweep {sweep} was stopped (`nodesweep stop`) after {len(accepted)}"
            " of its jobs had started"
        )
    if failed is not None:
        raise RunFailed(
            f"sweep {sweep}: its first job, {accepted[0]}, failed, so no other was started:"
            f" {failed}. Its log: nodesweep logs {sweep}"
        )
    return DetachedSweep(sweep, tuple(accepted), tuple(refused))


def _submit_as_task(
    planned: PlannedSweep, point: PlannedPoint, steps: int | None
) -> JobStatus | None:
    """Submit a point's job in a task run named after it, whose final state shows the result.

    The task has no parameters, because Prefect would search the config for task runs, and its
    states have no data.

    Raises:
        JobRefused: The backend did not accept the job.
    """
    job: JobStatus | None = None
    refused: JobRefused | None = None

    def submit() -> State[Any]:
        nonlocal job, refused
        try:
            job = submit_point(planned, point, steps)
        except JobRefused as error:
            refused = error
            return Failed(name="Refused", message=str(error))
        if job is None:
            return Completed(name="Stopped", message="The sweep was stopped before this job.")
        return Completed(name="Submitted", message=job.name)

    key = names.JobKey(point.arm.code, point.nodes, point.repeat, 1)
    as_task("submit-training-job", submit, task_run_name=run_name(key), persist_result=False)()
    if refused is not None:
        raise refused
    return job


def _run_smoke_job(planned: PlannedSweep, point: PlannedPoint, name: str) -> str | None:
    """Wait until the first job of new code reaches its first step or ends.

    Returns:
        The reason why the program failed, or None if it did not.
    """
    logger.info("the code is new, so the other jobs start once %s has reached its first step", name)
    config = planned.config
    for ended in _watch(planned, name, config.training.metric_definitions):
        if ended.has_ended:
            outcome = collect_outcome(planned, point, 1, ended)
            fits_elsewhere = config.sweep.arm_count > 1 and lacks_memory(outcome)
            if is_programs_fault(outcome) and not fits_elsewhere:
                return _why_failed(outcome)
    return None


def _watch(
    planned: PlannedSweep, name: str, first_step: Mapping[str, str] | None = None
) -> list[JobStatus]:
    """Wait until the job ends or, with metric definitions, reaches its first step."""
    section = planned.config.sweep
    seconds, limits = section.poll_interval_seconds, job_limits(planned.config.training, section)
    sweep, since = planned.inputs.sweep_id, utc_now()
    return watch_training_jobs(
        planned.backend, sweep, [name], seconds, limits, since, None, first_step
    )


def _why_failed(outcome: JobOutcome) -> str | None:
    return outcome.program_error.text if outcome.program_error else outcome.reason


def _wait_for_sizing_job(
    planned: PlannedSweep, point: PlannedPoint, name: str
) -> tuple[str | None, int | None]:
    """Wait until the job that determines the step count has ended.

    Returns:
        The reason why the job did not complete, or None, and the number of steps of the other jobs,
        or None if the job did not complete.
    """
    logger.info(
        "the other jobs train for as many steps as %s and start once it has completed", name
    )
    [ended] = _watch(planned, name)
    if not ended.has_ended:  # the watch gave up on it
        return ended.reason, None
    outcome = collect_outcome(planned, point, 1, ended)
    if outcome.completed:
        return None, sized_steps(planned.config, [outcome])
    return _why_failed(outcome) or f"it ended with status {outcome.status}", None


def _check_all_start_at_once(config: BenchmarkConfig, plan: SweepPlan) -> None:
    """Refuse sweeps whose jobs cannot all start at once, since nobody would submit the rest."""
    if config.sweep.rules.decides_as_it_goes:
        raise PreflightRefused(
            f"sweep.design: {config.sweep.design} chooses each job by earlier results, but"
            " --detach starts all jobs at once; set sweep.design: full, or run without --detach"
        )
    if config.training.instance_fallbacks:
        raise PreflightRefused(
            "training.instance_fallbacks: the first job decides which instance type all jobs use,"
            " but --detach starts all jobs at once; remove the fallbacks, or run without --detach"
        )
    if (problem := config.platform.unattended_problem) is not None:
        raise PreflightRefused(problem)
    jobs, at_once = len(plan.points), config.sweep.max_parallel_jobs
    if jobs <= at_once:
        return
    raise PreflightRefused(
        f"sweep.max_parallel_jobs: got {at_once}, but --detach starts all {jobs} jobs at once; set"
        f" it to {jobs} if the quota covers all of their nodes, or run without --detach"
    )
