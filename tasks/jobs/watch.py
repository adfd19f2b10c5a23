"""One watcher for all running jobs of a sweep: its training jobs, or its Processing job.

A poll is one Describe per job, and one S3 GetObject for `is_stopped`; between polls come
one or more FilterLogEvents (quota: 5 a second per account and region; AWS publishes none for
Describe), all within a CallBudget of platform.calls_per_second. Pauses grow 1.3-fold from
`poll_seconds` up to 4 times that while nothing changes, ±20%, so an end is noticed at most 4.8
`poll_seconds` later, plus 1 s per job beyond the burst at one call a second.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from nodesweep.scaling.outcome.line_kinds import Step
from nodesweep.scaling.outcome.outcome import TERMINAL
from nodesweep.tasks.errors import JobRefused
from nodesweep.tasks.events import event_extra
from nodesweep.tasks.jobs.calls import STOPPING_SECONDS
from nodesweep.tasks.jobs.kind import TRAINING, Description, JobKind
from nodesweep.tasks.polling import CallBudget, Clock, Progress, intervals

# Enough for short jobs that are polled twice a second: the polls and log calls of about their first
# ten seconds, or of their end.
BURST_CALLS = 20
SPARE_CALLS = 10
"""Calls of the budget that log reading leaves for the next poll."""
_WRITES_LOG = ("Training", "Uploading")


@dataclass(frozen=True)
class JobLimits:
    """Seconds that a job may wait from its creation until it starts, and may run from then on."""

    queue_seconds: float
    run_seconds: float


@dataclass(frozen=True)
class JobProgress:
    """A job's progress: SageMaker's secondary status, and the last step in its log."""

    state: str
    step: Step | None = None

    @property
    def text(self) -> str:
        """The progress in words: "Training, step 142 of 350"."""
        if self.step is None:
            return self.state
        of = "" if self.step.of is None else f" of {self.step.of}"
        return f"{self.state}, step {self.step.step}{of}"


@dataclass
class JobWait:
    """The start times of waits for a job's end, by the watcher's clock.

    It outlives a watch, which ends when any job does.
    """

    stopped_at: float | None = None
    stop_accepted: bool = False
    unknown_since: float | None = None


@dataclass
class _Job:
    """A watched job; times without a date are by the watcher's clock."""

    kind: JobKind
    name: str
    wait: JobWait
    description: dict[str, Any] | None = None
    given_up: str | None = None
    followed_at: float = float("-inf")

    @property
    def state(self) -> str:
        """The job's state, as last reported."""
        return "not known yet" if self.description is None else self.kind.state(self.description)

    @property
    def message(self) -> str:
        """The platform's message about that state."""
        if self.description is None or self.kind.message is None:
            return ""
        return self.kind.message(self.description)

    @property
    def ended(self) -> dict[str, Any] | None:
        """The description of a job that is terminal or was given up on; None for others."""
        description = self.description
        if self.given_up is not None:
            member = self.kind.member
            unknown = {f"{member}Name": self.name, f"{member}Status": "InProgress"}
            return {**(description or unknown), "FailureReason": self.given_up}
        return (
            description
            if description is not None and self.kind.status(description) in TERMINAL
            else None
        )


def watch(
    sagemaker: Any,
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
    kind: JobKind = TRAINING,
) -> list[dict[str, Any]]:
    """Wait until at least one job is terminal, and return the descriptions of those that are.

    Logs the jobs' states. A job past a limit, or of a stopped sweep, is stopped and waited for. The
    watch gives up on a job that has not ended 300 s after it was stopped, or that SageMaker has not
    known for as long: it returns the last description, not terminal, with a FailureReason. A
    ClientError of Describe is raised, and the caller can watch again.

    Args:
        sagemaker: the SageMaker client.
        job_names: the jobs to wait for.
        poll_seconds: shortest pause between two polls.
        limits: time limits of a job.
        clock: the source of time.
        budget: the budget of all API calls here except those of `is_stopped`.
        follow: reads a job's log, in the middle of each pause while the job trains, and at its end.
        is_stopped: called at every poll; True stops all jobs.
        waits: carries the 300 s over from one watch of a job to the next.
        has_stepped: if given, the wait also ends, without descriptions, once it returns True for a
            job; every log is then read in every pause.
        on_poll: called with each job's state after every poll at which none has ended.
        kind: the kind of the jobs.
    """
    waits = {} if waits is None else waits
    watcher = _Watcher(sagemaker, job_names, limits, clock, budget, follow, is_stopped, waits, kind)
    pauses = intervals(poll_seconds, 4 * poll_seconds)
    while True:
        changed, ended = watcher.poll()
        if ended:
            for description in ended:
                waits.pop(kind.name(description), None)
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
        sagemaker: Any,
        job_names: Sequence[str],
        limits: JobLimits,
        clock: Clock,
        budget: CallBudget,
        follow: Callable[[str], None],
        is_stopped: Callable[[], bool],
        waits: dict[str, JobWait],
        kind: JobKind,
    ) -> None:
        self._sagemaker, self._limits, self._clock = sagemaker, limits, clock
        self._budget, self._follow, self._is_stopped = budget, follow, is_stopped
        self._kind, self._logger = kind, logging.getLogger(kind.logger)
        self._jobs = [_Job(kind, name, waits.setdefault(name, JobWait())) for name in job_names]
        name = job_names[0] if len(job_names) == 1 else f"{len(job_names)} jobs"
        self._progress = Progress(name, self._logger, clock)

    @property
    def states(self) -> dict[str, str]:
        """Each job's state, as last reported."""
        return {job.name: job.state for job in self._jobs}

    def poll(self) -> tuple[bool, list[dict[str, Any]]]:
        """Poll once; return (True if anything changed, the descriptions of ended jobs)."""
        stops_all = self._is_stopped()
        changed = [job for job in self._jobs if self._describe(job)]
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

    def _describe(self, job: _Job) -> bool:
        """Describe the job, and return True if it has changed.

        Give up on a job that has been unknown to SageMaker for STOPPING_SECONDS.
        """
        self._budget.take()
        description = self._kind.describe(self._sagemaker, job.name)
        if description is None:
            now = self._clock.monotonic()
            job.wait.unknown_since = (
                now if job.wait.unknown_since is None else job.wait.unknown_since
            )
            if now - job.wait.unknown_since >= STOPPING_SECONDS:
                job.given_up = (
                    f"it has been unknown to SageMaker for {STOPPING_SECONDS:.0f} s;"
                    " resume the sweep to try again"
                )
            return False
        job.wait.unknown_since = None
        before, job.description = job.description, description
        return before is None or self._change_key(before) != self._change_key(description)

    def _change_key(self, description: Description) -> tuple[Any, ...]:
        kind = self._kind
        return (
            kind.status(description),
            kind.state(description),
            description.get("LastModifiedTime"),
        )

    def _enforce_limits(self, job: _Job) -> None:
        """Stop a job that exceeds a limit, and give up on one that keeps running after that."""
        if job.wait.stopped_at is None:
            problem = job.description and exceeded_limit(
                job.description, self._limits, self._clock.now(), self._kind
            )
            if problem:
                self._stop(job, problem)
            return
        if not job.wait.stop_accepted:
            self._request_stop(job)
        if self._clock.monotonic() > job.wait.stopped_at + STOPPING_SECONDS:
            job.given_up = (
                f"it did not stop within {STOPPING_SECONDS:.0f} s of being asked to and may still"
                " cost money; check it in the console"
            )

    def _stop(self, job: _Job, problem: str) -> None:
        self._logger.warning("%s %s and is being stopped", job.name, problem)
        job.wait.stopped_at = self._clock.monotonic()
        self._request_stop(job)

    def _request_stop(self, job: _Job) -> None:
        """Request the stop, to be repeated if the job is still unknown or the call fails."""
        self._budget.take()
        try:
            job.wait.stop_accepted = self._kind.stop(self._sagemaker, job.name)
        except (JobRefused, BotoCoreError, ClientError) as error:
            self._logger.warning("%s", error)

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
        """Return the platform's message, or the deadline of a waiting job if it gives none."""
        until = self._waits_until(job)
        if self._kind.message is not None or until is None:
            return job.message
        return f"gives up at {until:%Y-%m-%d %H:%M:%S} UTC"

    def _waits_until(self, job: _Job) -> datetime | None:
        """Return the deadline of a job that waits to start; None for others."""
        description = job.description
        if description is None or job.ended is not None or self._kind.started_at(description):
            return None
        created: datetime = description["CreationTime"]
        return created + timedelta(seconds=self._limits.queue_seconds)

    def _event_extra(self, job: _Job) -> dict[str, Any]:
        """Return the event for views: the state, and a waiting job's deadline and reason."""
        until = self._waits_until(job)
        return event_extra(
            "job-state",
            stage=self._kind.stage,
            job=job.name,
            state=job.state,
            wait_until=None if until is None else until.timestamp(),
            why="" if until is None else job.message,
        )

    def follow_logs(self, all_of_them: bool) -> None:
        """Read the logs of training jobs, longest unread first.

        Always reads the first; the others only if the budget has calls to spare, or with
        `all_of_them`.
        """
        training = [job for job in self._jobs if job.state in _WRITES_LOG]
        for index, job in enumerate(sorted(training, key=lambda job: job.followed_at)):
            if index == 0 or all_of_them:
                self._budget.take()
            elif not self._budget.try_take(SPARE_CALLS):
                return
            self._follow(job.name)
            job.followed_at = self._clock.monotonic()


def exceeded_limit(
    description: Description, limits: JobLimits, now: datetime, kind: JobKind = TRAINING
) -> str | None:
    """Return the limit that a running job exceeds, in words; None if it exceeds none.

    It uses the platform's own times, so that an adopted job gets no extra time. AWS rejects
    callers whose clock is off by 5 minutes or more.
    """
    started_at = kind.started_at(description)
    since = description["CreationTime"] if started_at is None else started_at
    seconds = (now - since).total_seconds()
    if seconds <= (limits.queue_seconds if started_at is None else limits.run_seconds):
        return None
    return (kind.not_started if started_at is None else kind.not_ended).format(seconds)
