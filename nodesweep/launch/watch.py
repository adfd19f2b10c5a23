"""Watch all running jobs of a sweep: its training jobs, or its Processing job.

On AWS, a poll makes one Describe call per job, and one S3 GetObject for `is_stopped`. Between polls
there are one or more FilterLogEvents calls (quota: 5 per second, account and region; AWS publishes
none for Describe). All of them except GetObject are limited to platform.calls_per_second by a
CallBudget. While nothing changes, pauses (±20%) grow 1.3-fold from `poll_seconds` up to 4 times
that. So an end is noticed after at most 4.8 `poll_seconds`, plus, at one call per second, 1 s per
job beyond the burst.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from nodesweep.errors import CALL_ERRORS, JobRefused
from nodesweep.events import Stage, event_extra
from nodesweep.launch.protocol import STOPPING_SECONDS, Launcher
from nodesweep.polling import CallBudget, Clock, Progress, intervals
from nodesweep.scaling.job import TRAINING_PHASE, JobStatus
from nodesweep.scaling.outcome.line_kinds import Step

# Enough for about ten seconds of polls and log calls of short jobs that are polled twice a second.
BURST_CALLS = 20
SPARE_CALLS = 10
"""Number of calls in the budget that log reading leaves for the next poll."""
UNKNOWN_PHASE = "not known yet"
"""The phase of a job that its backend has not reported yet."""
WRITES_LOG = (TRAINING_PHASE, "Uploading")
"""Phases in which the program is running or has just run."""


@dataclass(frozen=True)
class JobLimits:
    """Maximum seconds from a job's creation until it starts, and from then until it ends."""

    queue_seconds: float
    run_seconds: float


@dataclass(frozen=True)
class Wording:
    """A watch's messages about its jobs.

    Attributes:
        not_started: text about a job that exceeds its time in the queue.
        not_ended: text about a job that exceeds its runtime.
        logger: name of the logger.
        stage: stage of the events, or None for the logger's stage.
    """

    not_started: str = "has not started training after {:.0f} s"
    not_ended: str = "has not ended {:.0f} s after training started"
    logger: str = "nodesweep.jobs"
    stage: Stage | None = None


OF_TRAINING = Wording()


@dataclass(frozen=True)
class JobProgress:
    """A job's progress: its phase, and the last step in its log."""

    state: str
    step: Step | None = None

    @property
    def text(self) -> str:
        """The progress as text, such as "Training, step 142 of 350"."""
        if self.step is None:
            return self.state
        of = "" if self.step.of is None else f" of {self.step.of}"
        return f"{self.state}, step {self.step.step}{of}"


@dataclass
class JobWait:
    """The times at which waits for a job's end started, by the watcher's clock.

    It outlives a watch, which ends as soon as any job has ended.
    """

    stopped_at: float | None = None
    stop_accepted: bool = False
    unknown_since: float | None = None


@dataclass
class _Job:
    """A watched job; times in seconds are by the watcher's clock."""

    name: str
    wait: JobWait
    status: JobStatus | None = None
    given_up: str | None = None
    followed_at: float = float("-inf")

    @property
    def state(self) -> str:
        """The job's phase, as last reported."""
        return UNKNOWN_PHASE if self.status is None else self.status.phase

    @property
    def message(self) -> str:
        """The platform's message about that phase."""
        return (self.status.message or "") if self.status is not None else ""

    @property
    def ended(self) -> JobStatus | None:
        """The status of a job that has ended or was given up on, or None."""
        if self.given_up is not None:
            return replace(self.status or JobStatus(self.name, "running"), reason=self.given_up)
        return self.status if self.status is not None and self.status.has_ended else None


def watch(
    launcher: Launcher,
    job_names: Sequence[str],
    poll_seconds: float,
    limits: JobLimits,
    clock: Clock,
    budget: CallBudget,
    follow: Callable[[str], None] = lambda job_name: None,
    is_stopped: Callable[[], bool] = lambda: False,
    waits: dict[str, JobWait] | None = None,
    has_stepped: Callable[[str], bool] | None = None,
    on_poll: Callable[[Mapping[str, str]], None] = lambda states: None,
    wording: Wording = OF_TRAINING,
) -> list[JobStatus]:
    """Wait until at least one job has ended, and return the statuses of ended jobs.

    The states of the jobs are logged. A job that exceeds a limit, or belongs to a stopped sweep, is
    stopped and waited for. The watch gives up on a job that has not ended 300 s after it was
    stopped, or that its backend has not reported for 300 s. It then returns the job's last status,
    which is not final, and gives the reason. Errors of describe() propagate, and the caller can
    watch again.

    Args:
        launcher: the launcher of the jobs.
        job_names: the jobs to wait for.
        poll_seconds: shortest pause between two polls.
        limits: time limits of a job.
        clock: the source of time.
        budget: the budget of all API calls except those of `is_stopped`.
        follow: reads a job's log in the middle of each pause while the job trains, and at its end.
        is_stopped: called in every poll; if it returns True, all jobs are stopped.
        waits: keeps track of the 300 s across several watches of a job.
        has_stepped: if given, all logs are read in every pause, and the wait also ends, without
            statuses, once it returns True for a job.
        on_poll: called with the state of each job after every poll in which none has ended.
        wording: the messages.
    """
    waits = {} if waits is None else waits
    watcher = _Watcher(
        launcher, job_names, limits, clock, budget, follow, is_stopped, waits, wording
    )
    pauses = intervals(poll_seconds, 4 * poll_seconds)
    while True:
        changed, ended = watcher.poll()
        if ended:
            for job in ended:
                waits.pop(job.name, None)
            return ended
        on_poll(watcher.states)
        if changed:
            pauses = intervals(poll_seconds, 4 * poll_seconds)
        half_pause = next(pauses) / 2
        clock.sleep(half_pause)
        watcher.follow_logs(all_of_them=has_stepped is not None)
        if has_stepped is not None and any(map(has_stepped, job_names)):
            return []
        clock.sleep(half_pause)


class _Watcher:
    def __init__(
        self,
        launcher: Launcher,
        job_names: Sequence[str],
        limits: JobLimits,
        clock: Clock,
        budget: CallBudget,
        follow: Callable[[str], None],
        is_stopped: Callable[[], bool],
        waits: dict[str, JobWait],
        wording: Wording,
    ) -> None:
        self._launcher, self._limits, self._clock = launcher, limits, clock
        self._budget, self._follow, self._is_stopped = budget, follow, is_stopped
        self._wording, self._logger = wording, logging.getLogger(wording.logger)
        self._jobs = [_Job(name, waits.setdefault(name, JobWait())) for name in job_names]
        name = job_names[0] if len(job_names) == 1 else f"{len(job_names)} jobs"
        self._progress = Progress(name, self._logger, clock)

    @property
    def states(self) -> dict[str, str]:
        """The last reported state of each job."""
        return {job.name: job.state for job in self._jobs}

    def poll(self) -> tuple[bool, list[JobStatus]]:
        """Poll once; return (True if anything changed, the statuses of ended jobs)."""
        stops_all = self._is_stopped()
        found = self._launcher.describe([job.name for job in self._jobs], self._budget.take)
        changed = [job for job in self._jobs if self._has_changed(job, found.get(job.name))]
        for job in self._jobs:
            if job.ended is None and stops_all and job.wait.stopped_at is None:
                self._stop(job, "belongs to a stopped sweep")
            if job.ended is None:
                self._enforce_limits(job)
        self._log_changes(changed)
        ended = [job for job in self._jobs if job.ended is not None]
        for job in ended:
            if self._budget.try_take():
                self._follow(job.name)  # its last lines
        return bool(changed), [job.ended for job in ended if job.ended is not None]

    def _has_changed(self, job: _Job, status: JobStatus | None) -> bool:
        """Record the job's status, and return True if it has changed.

        Give up on a job that its backend has not reported for STOPPING_SECONDS.
        """
        if status is None:
            now = self._clock.monotonic()
            job.wait.unknown_since = (
                now if job.wait.unknown_since is None else job.wait.unknown_since
            )
            if now - job.wait.unknown_since >= STOPPING_SECONDS:
                job.given_up = (
                    f"its backend has not reported it for {STOPPING_SECONDS:.0f} s;"
                    " resume the sweep to try again"
                )
            return False
        job.wait.unknown_since = None
        before, job.status = job.status, status
        return before is None or _change_key(before) != _change_key(status)

    def _enforce_limits(self, job: _Job) -> None:
        """Stop a job that exceeds a limit, and give up on one that keeps running after that."""
        if job.wait.stopped_at is None:
            problem = job.status and exceeded_limit(
                job.status, self._limits, self._clock.now(), self._wording
            )
            if problem:
                self._stop(job, problem)
            return
        if not job.wait.stop_accepted:
            self._request_stop(job)
        if self._clock.monotonic() > job.wait.stopped_at + STOPPING_SECONDS:
            job.given_up = (
                f"it did not stop within {STOPPING_SECONDS:.0f} s of the request and may still cost"
                " money; stop it in the AWS console or, on Slurm, with scancel"
            )

    def _stop(self, job: _Job, problem: str) -> None:
        self._logger.warning("%s %s and is being stopped", job.name, problem)
        job.wait.stopped_at = self._clock.monotonic()
        self._request_stop(job)

    def _request_stop(self, job: _Job) -> None:
        """Request the stop, which is repeated later if the job is unknown or the call fails."""
        self._budget.take()
        try:
            job.wait.stop_accepted = self._launcher.stop(job.name)
        except (JobRefused, *CALL_ERRORS) as error:
            self._logger.warning("%s can't be stopped: %s", job.name, error)

    def _log_changes(self, changed: Sequence[_Job]) -> None:
        """Log a line for each job that changed, and a summary."""
        if len(self._jobs) == 1:
            [job] = self._jobs
            self._progress.note(job.state, self._details(job), extra=self._event_extra(job))
            return
        for job in changed:
            words = f" ({job.message})" if job.message else ""
            self._logger.info("%s: %s%s", job.name, job.state, words, extra=self._event_extra(job))
        counts = Counter(job.state for job in self._jobs)
        self._progress.note(
            ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        )

    def _details(self, job: _Job) -> str:
        """Return the platform's message, or the deadline of a waiting job if there is none."""
        until = self._waits_until(job)
        if until is None or (job.status is not None and job.status.message is not None):
            return job.message
        return f"gives up at {until:%Y-%m-%d %H:%M:%S} UTC"

    def _waits_until(self, job: _Job) -> datetime | None:
        """Return the deadline of a job that waits to start, or None for other jobs."""
        status = job.status
        if status is None or job.ended is not None or status.started_at is not None:
            return None
        if status.created_at is None:
            return None
        return status.created_at + timedelta(seconds=self._limits.queue_seconds)

    def _event_extra(self, job: _Job) -> dict[str, Any]:
        """Return the event for views: the state, and a waiting job's deadline and reason."""
        until = self._waits_until(job)
        return event_extra(
            "job-state",
            stage=self._wording.stage,
            job=job.name,
            state=job.state,
            wait_until=None if until is None else until.timestamp(),
            why="" if until is None else job.message,
        )

    def follow_logs(self, all_of_them: bool) -> None:
        """Read the logs of training jobs, starting with the one not read for the longest time.

        The first log is always read, the others only if the budget has calls to spare or
        `all_of_them` is True.
        """
        training = [job for job in self._jobs if job.state in WRITES_LOG]
        for index, job in enumerate(sorted(training, key=lambda job: job.followed_at)):
            if index == 0 or all_of_them:
                self._budget.take()
            elif not self._budget.try_take(SPARE_CALLS):
                return
            self._follow(job.name)
            job.followed_at = self._clock.monotonic()


def _change_key(status: JobStatus) -> tuple[Any, ...]:
    return status.state, status.phase, status.changed_at


def exceeded_limit(
    status: JobStatus, limits: JobLimits, now: datetime, wording: Wording = OF_TRAINING
) -> str | None:
    """Describe the limit that a running job exceeds, or return None if it exceeds none.

    The platform's times are used, so that an adopted job gets no extra time. AWS rejects callers
    whose clock is off by 5 minutes or more.
    """
    since = status.started_at or status.created_at
    if since is None:
        return None
    seconds, has_started = (now - since).total_seconds(), status.started_at is not None
    if seconds <= (limits.run_seconds if has_started else limits.queue_seconds):
        return None
    return (wording.not_ended if has_started else wording.not_started).format(seconds)
