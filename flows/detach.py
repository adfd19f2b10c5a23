"""Submit every job of a sweep and leave; `collect` makes the report from the platform alone."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from prefect import flow

from configs.models import MAX_PARALLEL_JOBS, BenchmarkConfig
from flows.ending import end_sweep
from flows.preflight import preflight
from flows.scaling_benchmark import start_sweep
from flows.signals import ended_once
from flows.sweep import submit_point
from scaling.plan import SweepPlan
from tasks.errors import JobRefused, PreflightRefused, SweepStopped
from tasks.owner import SweepOwner
from tasks.polling import STOP
from tasks.stopping import stop_sweep_jobs
from tasks.storage import ensure_bucket, is_sweep_stopped

logger = logging.getLogger("nodesweep.flow")


@dataclass(frozen=True)
class DetachedSweep:
    """A sweep that runs by itself; `refused` says why a job was not accepted."""

    sweep_id: str
    job_names: tuple[str, ...]
    refused: tuple[str, ...]


@flow(name="detached-sweep", flow_run_name="detached-{config.name}")
def start_detached_sweep(config: BenchmarkConfig) -> DetachedSweep:
    """Start every job of a sweep and return once they are accepted. No failed point is tried again.

    Args:
        config: The benchmark; its sweep.max_parallel_jobs must hold all its points.
    """
    STOP.clear()
    with ended_once():
        return _start_detached_sweep(config)


def _start_detached_sweep(config: BenchmarkConfig) -> DetachedSweep:
    plan = preflight(config)
    _refuse_queue(config, plan)
    ensure_bucket(config.platform)
    inputs, _ = start_sweep(config, None)
    sweep = inputs.sweep_id
    logger.info("sweep %s: %d jobs; `nodesweep stop %s` stops them", sweep, len(plan.points), sweep)
    owner = SweepOwner(config.platform, sweep)
    owner.leave()  # first: a reaper must not meet a job without it
    accepted: list[str] = []
    refused: list[str] = []
    try:
        for point in plan.points:
            try:
                description = submit_point(config, plan, inputs, point)
            except JobRefused as error:
                logger.error("%s", error)
                refused.append(str(error))
                continue
            if description is None:
                break
            accepted.append(description["TrainingJobName"])
    except BaseException as error:
        end_sweep(config, sweep, accepted, error, owner)
        raise
    if is_sweep_stopped(config.platform, sweep):  # perhaps before SageMaker knew the last job that was accepted
        stop_sweep_jobs(config.platform, sweep)
        raise SweepStopped(
            f"sweep {sweep} was stopped (`nodesweep stop`) after {len(accepted)} of its jobs had started"
        )
    return DetachedSweep(sweep, tuple(accepted), tuple(refused))


def _refuse_queue(config: BenchmarkConfig, plan: SweepPlan) -> None:
    """All or none is started: nobody is there to send what would have to wait."""
    jobs, at_once = len(plan.points), config.sweep.max_parallel_jobs
    if jobs <= at_once:
        return
    advice = f"set it to {jobs} where the quota holds their nodes together, or run without --detach"
    if jobs > MAX_PARALLEL_JOBS:
        advice = f"it goes up to {MAX_PARALLEL_JOBS}: measure fewer points, or run without --detach"
    raise PreflightRefused(
        (f"sweep.max_parallel_jobs: is {at_once}, and --detach starts all {jobs} jobs at once; {advice}",)
    )
