"""Stop a sweep's jobs, verify that they stop, and release their warm pools.

A backend can be eventually consistent: lists, descriptions and stops can lag behind an accepted job
by seconds. The jobs to stop are therefore taken from memory and from the claims in the store, and
the backend's list only adds to them. A job that the backend does not show yet is polled for
SETTLE_SECONDS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from nodesweep.errors import CALL_ERRORS, BackendUnusable, JobRefused, best_effort, is_transient
from nodesweep.launch.protocol import STOPPING_SECONDS, Launcher
from nodesweep.launch.registry import Backend
from nodesweep.polling import ENDING_CLOCK, Clock, intervals
from nodesweep.scaling.job import JobStatus
from nodesweep.tasks.sweeps.claims import read_claims, read_validation_claims

logger = logging.getLogger("nodesweep.jobs")
SETTLE_SECONDS = 30.0
"""Seconds for which a name unknown to the backend may belong to a job that was just accepted."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 5.0
_DESCRIBE_SECONDS = 15.0  # of a job that is stopping, because the list may lag

Lister = Callable[[], Iterable[JobStatus]]


def end_jobs(
    launcher: Launcher,
    job_names: Iterable[str],
    clock: Clock,
    listed: Lister = list,
    claimed: Callable[[], Iterable[str]] = list,
) -> list[str]:
    """Stop the given jobs and those that `claimed` and `listed` add.

    Wait until each job is stopping or, if it has a warm pool, until it has stopped and the pool is
    released. This takes at most STOPPING_SECONDS plus the time for the release.

    Returns:
        The names of the jobs that had not ended.

    Raises:
        JobRefused: some jobs could not be stopped, or may not have stopped; all others have.
        One of CALL_ERRORS: neither `claimed` nor `listed` could be read.
    """
    ending = _Ending(launcher, job_names, clock)
    for pause in intervals(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS):
        was_settled = ending.is_settled  # a job can appear during a round, whose calls can be slow
        ending.stop()
        ending.add(listed, claimed)
        ending.stop()
        ending.poll()
        if ending.is_late or (
            not ending.pending
            and not ending.list_is_outdated
            and (not ending.may_have_more_jobs or was_settled)
        ):
            break
        clock.sleep(pause)
    for name in sorted(ending.pending - ending.failures.keys()):
        if name in ending.stopping:
            logger.warning(
                "%s did not stop within %.0f s; check it in the AWS console or, on Slurm, with"
                " squeue",
                name,
                STOPPING_SECONDS,
            )
        else:
            why = f"unknown if it stopped within {STOPPING_SECONDS:.0f} s"
            ending.failures[name] = why
    release_pools(launcher, sorted(ending.with_pool - ending.pending), clock)
    if ending.failures:
        listed_failures = "\n".join(
            f"{name}: {why}" for name, why in sorted(ending.failures.items())
        )
        raise JobRefused(
            "these jobs could not be stopped; stop them in the AWS console or, on Slurm, with"
            f" scancel:\n{listed_failures}"
        )
    if ending.lost is not None:
        raise ending.lost
    return sorted(ending.stop_requested)


class _Ending:
    """The state of each job; a job counts as running until the backend reports its end."""

    def __init__(self, launcher: Launcher, job_names: Iterable[str], clock: Clock) -> None:
        self._launcher, self._clock = launcher, clock
        self._deadline = clock.monotonic() + STOPPING_SECONDS
        self._settled = clock.monotonic() + SETTLE_SECONDS
        self._names = set(job_names)
        self.stop_requested: set[str] = set()
        self._over: set[str] = set()
        self.unknown: set[str] = set()
        self.with_pool: set[str] = set()
        self.stopping: set[str] = set()
        self._denied: set[str] = set()
        self._refused: set[str] = set()
        self._described_at: dict[str, float] = {}
        self._listed_at, self._requested_before_list = clock.monotonic(), 0
        self.lost: Exception | None = ValueError("the jobs of the sweep were never listed")
        """The reason why the set of jobs is unknown, or None once a call has reported it."""
        self.failures: dict[str, str] = {}
        """Jobs that the last attempt could not stop, and why."""

    @property
    def is_late(self) -> bool:
        """True after the deadline.

        This is checked before every call, since an unresponsive platform takes minutes per job.
        """
        return self._clock.monotonic() >= self._deadline

    @property
    def is_settled(self) -> bool:
        """True once lists, descriptions and tags have had time to show every accepted job."""
        return self._clock.monotonic() >= self._settled

    @property
    def may_have_more_jobs(self) -> bool:
        """True if a job is not visible yet, or if no call has reported the jobs."""
        return bool(self.unknown) or self.lost is not None

    @property
    def list_is_outdated(self) -> bool:
        """True if jobs were stopped since the last list, and that took longer than a pause."""
        seconds = self._clock.monotonic() - self._listed_at
        stopped_since = len(self.stop_requested) > self._requested_before_list
        return stopped_since and seconds > _LONGEST_PAUSE_SECONDS

    @property
    def pending(self) -> set[str]:
        """The jobs that still have to be waited for."""
        done = self._over | self.unknown | self._refused | (self.stopping - self.with_pool)
        return self._names - done

    def add(self, listed: Lister, claimed: Callable[[], Iterable[str]]) -> None:
        """Add newly found jobs, and mark those that have ended."""
        if self.is_late:
            return
        self._listed_at = self._clock.monotonic()
        self._requested_before_list = len(self.stop_requested)
        with self._listing_source(
            "the claims of the sweep's jobs can't be read; listed jobs are stopped"
        ):
            self._names.update(claimed())
        with self._listing_source(
            "the sweep's jobs can't be listed; jobs known by name are stopped"
        ):
            for job in listed():
                self._names.add(job.name)
                if job.has_ended:
                    self._over.add(job.name)
                    self.unknown.discard(job.name)
                    if job.retention in ("available", "in_use"):
                        self.with_pool.add(job.name)

    @contextmanager
    def _listing_source(self, failure: str) -> Iterator[None]:
        """Apply best_effort() to a call that reports the jobs; one successful call is enough."""
        with best_effort(failure):
            try:
                yield
            except CALL_ERRORS as error:
                self.lost = self.lost and error
                raise
            self.lost = None

    def stop(self) -> None:
        """Ask each running job to stop once, even if requests for other jobs fail.

        Denied requests are retried, because the stack's role can stop jobs only by their tags, and
        the tags of a new job appear late.
        """
        for name in sorted(
            self._names - self._over - self.stop_requested - self._refused - self.stopping
        ):
            if self.is_late:
                self.failures.setdefault(
                    name, f"the platform did not respond within {STOPPING_SECONDS:.0f} s"
                )
                continue
            try:
                if not self._launcher.stop(name):
                    continue  # the job has ended or is unknown; its status shows which
            except (JobRefused, *CALL_ERRORS) as error:
                self.failures[name] = str(error)
                if isinstance(error, BackendUnusable):  # late tags are not the cause
                    self._refused.add(name)
                elif not is_transient(error):
                    self._denied.add(name)
                continue
            self.stop_requested.add(name)
            self._denied.discard(name)
            self.failures.pop(name, None)

    def poll(self) -> None:
        """Describe each job that may still have to be waited for.

        Stopping jobs are described less often, because the list shows when they have ended.
        """
        for name in sorted(
            self._names - self._over - self._refused - (self.stopping - self.with_pool)
        ):
            now = self._clock.monotonic()
            if self.is_late or (
                name in self.stopping and now - self._described_at[name] < _DESCRIBE_SECONDS
            ):
                continue
            self._described_at[name] = now
            with best_effort(f"{name} can't be described"):
                try:
                    job = self._launcher.status(name)
                except CALL_ERRORS as error:
                    if self.is_settled and not is_transient(error):
                        self.failures.setdefault(name, str(error))
                        self._refused.add(name)
                    raise
                if job is None:
                    self.unknown.add(name)
                    self.failures.pop(name, None)
                    continue
                self.unknown.discard(name)
                if job.keep_alive_seconds:
                    self.with_pool.add(name)
                if job.has_ended:
                    self._over.add(name)
                    self.failures.pop(name, None)
                elif job.state == "stopping":  # whoever requested it
                    self.stopping.add(name)
                    self.failures.pop(name, None)
                elif name in self._denied and self.is_settled:
                    self._refused.add(name)


def stop_sweep_jobs_now(backend: Backend, sweep: str, job_names: Iterable[str] = ()) -> list[str]:
    """Stop the given jobs first, then all others of the sweep; return those that had not ended.

    A run that is being cancelled calls this function directly, because Prefect starts no further
    tasks in it. Raises the same errors as end_jobs().
    """
    launcher, store = backend.launcher(), backend.store
    validating, refusal = _end_validation(backend, sweep)
    try:
        stopped = end_jobs(
            launcher,
            job_names,
            ENDING_CLOCK,
            partial(launcher.jobs_of, sweep),
            partial(read_claims, store, sweep),
        )
    except CALL_ERRORS:
        logger.warning(
            "the jobs of %s are unknown, and some may still be running; stop them with `nodesweep"
            " stop %s`",
            sweep,
            sweep,
        )
        raise
    if refusal is not None:
        raise refusal
    return [*validating, *stopped]


def _end_validation(backend: Backend, sweep: str) -> tuple[list[str], JobRefused | None]:
    """Stop the jobs that may be validating the sweep's dataset.

    Returns:
        The names of the jobs that had not ended, and the error if one could not be stopped. The
        error is not raised, so that the training jobs are stopped too.
    """
    claimed: list[str] = []
    with best_effort(f"could not check whether {sweep} has a Processing job"):
        claimed = read_validation_claims(backend.store, sweep)
    try:
        return end_jobs(backend.validations(), claimed, ENDING_CLOCK), None
    except JobRefused as error:
        return [], error


def stop_processing_jobs(backend: Backend, job_names: Sequence[str]) -> list[str]:
    """Stop these validation jobs."""
    return end_jobs(backend.validations(), job_names, ENDING_CLOCK)


def release_pools_now(backend: Backend, sweep: str, job_names: Iterable[str]) -> list[str]:
    """Release the warm pools of the sweep's ended jobs, both the given and the listed ones.

    A pool that is listed as over has ended; any other status in the list can be outdated.
    """
    launcher, wanted = backend.launcher(), set(job_names)
    with best_effort(f"the warm pools of {sweep} can't be listed"):
        for job in launcher.jobs_of(sweep):
            (wanted.discard if job.retention == "over" else wanted.add)(job.name)
    return release_pools(launcher, sorted(wanted), ENDING_CLOCK)


def stop_training_jobs(backend: Backend, job_names: Sequence[str]) -> list[str]:
    """Stop these training jobs."""
    return end_jobs(backend.launcher(), job_names, ENDING_CLOCK)


def release_pools(
    launcher: Launcher,
    job_names: Iterable[str],
    clock: Clock,
    settle_seconds: float = SETTLE_SECONDS,
) -> list[str]:
    """Release the warm pools of those jobs that have ended; errors are only logged.

    A description can lag, so while it shows the pool neither as available nor as over, it is polled
    until `settle_seconds` have passed.

    Returns:
        The names of the jobs whose pools were released.
    """
    left, released = list(dict.fromkeys(job_names)), list[str]()
    deadline = clock.monotonic() + settle_seconds
    for pause in intervals(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS):
        last = clock.monotonic() >= deadline
        again: list[str] = []
        for index, name in enumerate(left):
            try:
                done = _release(launcher, name, released)
            except CALL_ERRORS as error:
                done = not is_transient(error)
                # A platform that does not respond takes minutes per call.
                late = clock.monotonic() >= deadline
                if done or late:
                    logger.warning("the warm pool of %s can't be released: %s", name, error)
                if late and not done:
                    logger.warning(
                        "the warm pools of %d more jobs can't be released either",
                        len(left) - index - 1 + len(again),
                    )
                    return released
            if not done:
                again.append(name)
        left = again
        if not left or last:
            break
        clock.sleep(pause)
    return released


def _release(launcher: Launcher, name: str, released: list[str]) -> bool:
    """Release the job's pool if it is available; return True if nothing is left to do."""
    job = launcher.status(name)
    if job is None:
        return False
    if not job.has_ended:
        return True  # it keeps running, and its pool with it
    if job.retention == "available":
        launcher.release(name)
        released.append(name)
        return True
    return job.retention == "over" or not job.keep_alive_seconds or job.billing_began_at is None
