"""Submit or adopt, describe, watch and list training jobs on any backend.

A job's name is derived from its sweep, point, attempt and request digest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from nodesweep.aws.platform import patient
from nodesweep.launch.registry import Backend
from nodesweep.launch.watch import JobLimits, JobProgress, watch
from nodesweep.polling import Clock
from nodesweep.scaling.job import JobSpec, JobStatus
from nodesweep.scaling.planning.fail_fast import is_step
from nodesweep.tasks.sweeps.claims import read_claims, read_stop_mark

logger = logging.getLogger("nodesweep.jobs")


@patient
def job_status(backend: Backend, job_name: str) -> JobStatus | None:
    """Return the status of one job, or None if there is no such job."""
    return backend.launcher().status(job_name)


def describe_training_jobs(backend: Backend, job_names: Sequence[str]) -> list[JobStatus]:
    """Return the status of each given job that exists.

    The calls count against the call budget that all watches share.
    """
    found = backend.launcher().describe(job_names, backend.budget.take)
    return list(found.values())


@patient
def submit_training_job(backend: Backend, spec: JobSpec) -> JobStatus:
    """Start a training job, or adopt the existing one.

    This is not a task, because the job itself is a task run (tasks/sweeps/job_runs.py).
    """
    return backend.launcher().submit(spec)


@patient
def watch_training_jobs(
    backend: Backend,
    sweep: str,
    job_names: Sequence[str],
    poll_seconds: float,
    limits: JobLimits,
    log_since: datetime,
    earlier_mark: str | None = None,
    first_step: Mapping[str, str] | None = None,
    on_poll: Callable[[Mapping[str, JobProgress]], None] = lambda progress: None,
) -> list[JobStatus]:
    """Wait until any of these jobs ends, following their logs; stop them if the sweep is stopped.

    Args:
        backend: the platform's backend.
        sweep: the sweep's ID.
        job_names: the jobs to wait for.
        poll_seconds: shortest pause between two polls.
        limits: time limits of a job.
        log_since: the time from which to read logs; a later watch in this process continues where
            the last one ended.
        earlier_mark: a stop mark to ignore; any other mark stops all these jobs.
        first_step: metric definitions; if given, the wait also ends once a log reports a step, and
            no statuses are returned.
        on_poll: called with the progress of each job after every poll in which none has ended.

    Returns:
        The statuses of the jobs that have ended.
    """
    store = backend.store

    def is_stopped() -> bool:
        return read_stop_mark(store, sweep) not in (None, earlier_mark)

    follower = backend.follower
    if first_step is None:
        follower.begin(job_names, log_since)
    else:
        follower.begin(job_names, log_since, lambda line: is_step(line, first_step))
    return watch(
        backend.launcher(),
        job_names,
        poll_seconds,
        limits,
        Clock(),
        backend.budget,
        follower.poll,
        is_stopped,
        backend.waits,
        None if first_step is None else follower.has_stepped,
        lambda states: on_poll(
            {name: JobProgress(state, follower.last_step(name)) for name, state in states.items()}
        ),
    )


def list_training_jobs(backend: Backend, sweep: str) -> list[str]:
    """Return the names of a sweep's training jobs.

    The backend's jobs come first, oldest first. Claimed jobs that the backend does not list, and
    may never have accepted, come last.
    """
    listed = [job.name for job in backend.launcher().jobs_of(sweep)]
    return [*listed, *sorted(read_claims(backend.store, sweep) - set(listed))]
