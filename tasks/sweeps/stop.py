"""Stop a sweep, wherever it runs: prevent further jobs, and stop the running ones.

This module needs no Prefect, so that `nodesweep stop` works without it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import ValidationError

from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import CALL_ERRORS, RecordDamaged, SweepNotFound, best_effort
from nodesweep.launch.registry import Backend, backend_of
from nodesweep.tasks.sweeps.claims import mark_sweep_stopped, read_validation_claims
from nodesweep.tasks.sweeps.records import has_record, read_sweep_record
from nodesweep.tasks.sweeps.stopping import stop_sweep_jobs_now

logger = logging.getLogger("nodesweep.stop")


def stop_whole_sweep(backend: Backend, sweep: str) -> list[str]:
    """Mark the sweep as stopped, stop its jobs, and return the names of the running ones.

    Jobs are looked up on the platform named in the sweep's record. Raises the errors of
    stop_sweep_jobs_now().
    """
    backend = backend_of(platform_of_jobs(backend, sweep))
    store = backend.store
    running: list[str] = []
    with best_effort(f"the running jobs of {sweep} can't be listed"):
        # Only for the return value, since others may be stopping the same jobs.
        running = running_jobs(backend, sweep)
    # The mark comes first, so that a run of the sweep either sees it before it submits a job, or
    # has already claimed the job.
    with best_effort(
        f"sweep {sweep} can't be marked as stopped,"
        " so if it is still running, it may submit further jobs"
    ):
        mark_sweep_stopped(store, sweep)
    with best_effort(f"could not check whether sweep {sweep} has begun"):
        if not running and not has_record(store.quick(), sweep):
            logger.warning(
                "no sweep %s has begun; is the ID correct? If it begins later, it submits no jobs",
                sweep,
            )
    stopped = sorted({*running, *stop_sweep_jobs_now(backend, sweep)})
    for name in stopped:
        logger.info("%s is stopped or stopping", name)
    return stopped


def platform_of_jobs(backend: Backend, sweep: str) -> PlatformConfig:
    """Return the platform to which the sweep's record says that jobs were submitted.

    Without a record, that is the backend's own.
    """
    platform = backend.platform
    try:
        record = read_sweep_record(backend.store.quick(), sweep)
        return platform.with_jobs_of(record["config"].get("platform") or {})
    except SweepNotFound:
        return platform
    except (RecordDamaged, ValidationError, *CALL_ERRORS) as error:
        logger.warning(
            "the record of %s can't be read, so its jobs are looked up on the config's platform:"
            " %s",
            sweep,
            error,
        )
        return platform


def still_running(backend: Backend, sweep: str, job_names: Sequence[str]) -> set[str] | None:
    """Return those of the given jobs that have not ended, according to the platform's list.

    Return None if a job is missing from the list, or if the call fails or times out.
    """
    try:
        listed = backend.launcher(quick=True).jobs_of(sweep)
    except CALL_ERRORS:
        return None
    has_ended = {job.name: job.has_ended for job in listed}
    if not has_ended.keys() >= set(job_names):  # the list lags
        return None
    return {name for name in job_names if not has_ended[name]}


def running_jobs(backend: Backend, sweep: str) -> list[str]:
    """Return the sweep's jobs that have not ended.

    Before the first training job, this is the job that validates the dataset. The calls time out
    after seconds rather than minutes.
    """
    listed = backend.launcher(quick=True).jobs_of(sweep)
    running = [job.name for job in listed if not job.has_ended]
    if not listed:
        claimed = read_validation_claims(backend.store.quick(), sweep)
        validating = backend.validations(quick=True).describe(claimed)
        running += [name for name, job in validating.items() if not job.has_ended]
    return running
