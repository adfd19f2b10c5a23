"""One watcher for all running jobs of a sweep: a look describes each of them.

What it costs: a look is one DescribeTrainingJob for each job, and between two looks one
FilterLogEvents for the job whose log was read the longest ago, and further ones where calls are to
spare. All keep to one CallBudget, of platform.calls_per_second; beside it each look asks
`is_stopped`, one S3 GetObject. AWS publishes no rate for Describe; FilterLogEvents has 5 a second
per account and region (CloudWatch Logs quotas). One a second leaves room.

When it looks: every `poll_seconds`, each further pause 1.3 times the last up to 4 times
`poll_seconds` while nothing changes, each ± 20 %; a change begins anew. An end is therefore known
at most 4.8 `poll_seconds` after it happened, and at one call a second 1 s later for each job that
is described at that look beyond the burst.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nodesweep.scaling.outcome.line_kinds import Step
from nodesweep.scaling.outcome.outcome import TERMINAL
from nodesweep.tasks.errors import JobRefused
from nodesweep.tasks.events import about
from nodesweep.tasks.jobs.calls import describe, stop
from nodesweep.tasks.polling import CallBudget, Clock, Progress, intervals
from nodesweep.tasks.sweeps.stopping import STOPPING_SECONDS

logger = logging.getLogger("nodesweep.jobs")
# For short jobs that are looked at twice a second: the looks and log lines of about the first ten
# seconds, or an end's.
BURST_CALLS = 20
SPARE_CALLS = 10
"""Calls that log lines leave to the look to come."""
_WRITES_LOG = ("Training", "Uploading")


@dataclass(frozen=True)
class JobLimits:
    """Seconds that a job may wait from its creation until it trains,
    and take from then to its end.
    """

    queue_seconds: float
    run_seconds: float


@dataclass(frozen=True)
class JobStanding:
    """How far a job is: SageMaker's secondary status, and the step its log told of last."""

    state: str
    step: Step | None = None

    @property
    def text(self) -> str:
        """Training, step 142 of 350."""
        if self.step is None:
            return self.state
        of = "" if self.step.of is None else f" of {self.step.of}"
        return f"{self.state}, step {self.step.step}{of}"


@dataclass
class JobWait:
    """Since when an end is waited for, by the watcher's clock;
    it outlives a watch, which ends with any job's end.
    """

    stopped_at: float | None = None
    stop_accepted: bool = False
    unknown_since: float | None = None


@dataclass
class _Job:
    """What is known of a job. Times without a date are the watcher's own clock."""

    name: str
    wait: JobWait
    description: dict[str, Any] | None = None
    given_up: str | None = None
    followed_at: float = float("-inf")

    @property
    def state(self) -> str:
        """The secondary status of the job, as SageMaker last said it."""
        description = self.description or {}
        return str(
            description.get("SecondaryStatus")
            or description.get("TrainingJobStatus")
            or "not known yet"
        )

    @property
    def message(self) -> str:
        """What the platform says of that state."""
        transitions = (self.description or {}).get("SecondaryStatusTransitions") or [{}]
        return str(transitions[-1].get("StatusMessage") or "")

    @property
    def ended(self) -> dict[str, Any] | None:
        """The description of a job that is terminal or given up."""
        description = self.description
        if self.given_up is not None:
            unknown = {"TrainingJobName": self.name, "TrainingJobStatus": "InProgress"}
            return {**(description or unknown), "FailureReason": self.given_up}
        return (
            description
            if description is not None and description["TrainingJobStatus"] in TERMINAL
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
    on_look: Callable[[Mapping[str, str]], None] = lambda states: None,
) -> list[dict[str, Any]]:
    """Wait until at least one of the jobs is terminal; returns the descriptions of those that are.

    With `has_stepped` none is returned as soon as it says of one that it has reached the step that
    is waited for; then every log is worth a call in every pause, not only where one is to spare.

    `follow` is called for jobs that train, in the middle of each pause, and for those that have
    just ended, each call one of the budget. `is_stopped` is asked at every look; once it says so
    all jobs are stopped. A job past one of its limits is stopped and waited for. A job that does
    not end within 300 s of being stopped, or that nobody has known for as long, is given up: it is
    returned as it was last described, not terminal, and its FailureReason says why. `waits` keeps
    these 300 s from one watch of a job to the next. `on_look` is told the state of each job at
    every look at which none has ended. Says how the jobs stand. A ClientError of a
    describe passes, and nothing is lost by it.
    """
    waits = {} if waits is None else waits
    watcher = _Watcher(sagemaker, job_names, limits, clock, budget, follow, is_stopped, waits)
    pauses = intervals(poll_seconds, 4 * poll_seconds)
    while True:
        changed, ended = watcher.look()
        if ended:
            for description in ended:
                waits.pop(description["TrainingJobName"], None)
            return ended
        on_look(watcher.states)
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
    ) -> None:
        self._sagemaker, self._limits, self._clock = sagemaker, limits, clock
        self._budget, self._follow, self._is_stopped = budget, follow, is_stopped
        self._jobs = [_Job(name, waits.setdefault(name, JobWait())) for name in job_names]
        name = job_names[0] if len(job_names) == 1 else f"{len(job_names)} jobs"
        self._progress = Progress(name, logger, clock)

    @property
    def states(self) -> dict[str, str]:
        """Of each job, as SageMaker last said it."""
        return {job.name: job.state for job in self._jobs}

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether anything changed, the descriptions of the jobs that are terminal)."""
        stops_all = self._is_stopped()
        changed = [job for job in self._jobs if self._describe(job)]
        for job in self._jobs:
            if job.ended is None and stops_all and job.wait.stopped_at is None:
                self._stop(job, "belongs to a sweep that was stopped")
            if job.ended is None:
                self._keep_to_limits(job)
        self._say(changed)
        ended = [job for job in self._jobs if job.ended is not None]
        for job in ended:
            if self._budget.try_take():
                self._follow(job.name)  # its last lines
        return bool(changed), [job.ended for job in ended if job.ended is not None]

    def _describe(self, job: _Job) -> bool:
        """Whether it differs from the last look. One that SageMaker does not know is asked for
        until it is given up.
        """
        self._budget.take()
        description = describe(self._sagemaker, job.name)
        if description is None:
            now = self._clock.monotonic()
            job.wait.unknown_since = (
                now if job.wait.unknown_since is None else job.wait.unknown_since
            )
            if now - job.wait.unknown_since >= STOPPING_SECONDS:
                job.given_up = (
                    f"SageMaker has not known it for {STOPPING_SECONDS:.0f} s;"
                    " resume the sweep to try again"
                )
            return False
        job.wait.unknown_since = None
        before, job.description = job.description, description
        return before is None or _what_changes(before) != _what_changes(description)

    def _keep_to_limits(self, job: _Job) -> None:
        """Stop a job that is past a limit, and give up one that was stopped and goes on."""
        if job.wait.stopped_at is None:
            problem = job.description and overdue(job.description, self._limits, self._clock.now())
            if problem:
                self._stop(job, problem)
            return
        if not job.wait.stop_accepted:
            self._ask_to_stop(job)
        if self._clock.monotonic() > job.wait.stopped_at + STOPPING_SECONDS:
            job.given_up = (
                f"it did not stop within {STOPPING_SECONDS:.0f} s of being asked to and may still"
                " cost money; look at it in the console"
            )

    def _stop(self, job: _Job, problem: str) -> None:
        logger.warning("%s %s and is being stopped", job.name, problem)
        job.wait.stopped_at = self._clock.monotonic()
        self._ask_to_stop(job)

    def _ask_to_stop(self, job: _Job) -> None:
        """Where it is not accepted the job has ended, is not known yet, or the call failed:
        then it is asked again.
        """
        self._budget.take()
        try:
            job.wait.stop_accepted = bool(stop(self._sagemaker, [job.name]))
        except JobRefused as error:
            logger.warning("%s", error)

    def _say(self, changed: Sequence[_Job]) -> None:
        """A line for each job that changed, and one for all of them."""
        if len(self._jobs) == 1:
            [job] = self._jobs
            self._progress.note(job.state, job.message, extra=self._about(job))
            return
        for job in changed:
            words = f" ({job.message})" if job.message else ""
            logger.info("%s: %s%s", job.name, job.state, words, extra=self._about(job))
        counts = Counter(job.state for job in self._jobs)
        self._progress.note(
            ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        )

    def _about(self, job: _Job) -> dict[str, Any]:
        """For a view: the state, and until when and why a job that does not train yet waits."""
        wait_until, why = None, ""
        if job.description is not None and _trained_at(job.description) is None:
            wait_until = job.description["CreationTime"].timestamp() + self._limits.queue_seconds
            why = job.message
        return about("job-state", job=job.name, state=job.state, wait_until=wait_until, why=why)

    def follow_logs(self, all_of_them: bool) -> None:
        """Of the jobs that train, the longest unread first: that one always,
        the others where calls are to spare.
        """
        training = [job for job in self._jobs if job.state in _WRITES_LOG]
        for index, job in enumerate(sorted(training, key=lambda job: job.followed_at)):
            if index == 0 or all_of_them:
                self._budget.take()
            elif not self._budget.try_take(SPARE_CALLS):
                return
            self._follow(job.name)
            job.followed_at = self._clock.monotonic()


def overdue(description: Mapping[str, Any], limits: JobLimits, now: datetime) -> str | None:
    """Which limit a job that has not ended is past, or None.

    Counted from the platform's own times, so that a job that is adopted has no more time than any
    other; they are as good as the two clocks agree, and AWS answers no caller whose clock is 5
    minutes off.
    """
    trained_at = _trained_at(description)
    since = description["CreationTime"] if trained_at is None else trained_at
    seconds = (now - since).total_seconds()
    if seconds <= (limits.queue_seconds if trained_at is None else limits.run_seconds):
        return None
    if trained_at is None:
        return f"has not begun to train in {seconds:.0f} s"
    return f"has not ended {seconds:.0f} s after it began to train"


def _trained_at(description: Mapping[str, Any]) -> datetime | None:
    transitions = description.get("SecondaryStatusTransitions") or ()
    return next((step["StartTime"] for step in transitions if step["Status"] == "Training"), None)


def _what_changes(description: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        description["TrainingJobStatus"],
        description.get("SecondaryStatus"),
        description.get("LastModifiedTime"),
    )
