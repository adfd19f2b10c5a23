"""One watcher for all running jobs of a sweep: a look is one list call, and only few jobs are described.

What it costs: a look is one ListTrainingJobs (100 jobs a page; of more jobs, after the first look, only what changed
lately is listed) and one DescribeTrainingJob for each job that ended or may be past a limit; where calls are to spare,
also one for each job that changed and one FilterLogEvents for each job that trains. All keep to one CallBudget, of
platform.calls_per_second; beside it each look asks `is_stopped`, one S3 GetObject. AWS publishes no rate for Describe
and List; FilterLogEvents has 5 a second per account and region (CloudWatch Logs quotas). One a second leaves room.

When it looks: every `poll_seconds`, each further pause 1.3 times the last up to 4 times `poll_seconds` while nothing
changes, each ± 20 %; a change begins anew. An end is therefore known at most 4.8 `poll_seconds` after it is listed,
and at one call a second 1 s later for each page that is listed and each job that is described at that look beyond the
burst.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scaling.outcome import TERMINAL
from tasks.errors import JobRefused
from tasks.job_calls import describe, stop
from tasks.polling import CallBudget, Clock, Progress, intervals
from tasks.stopping import STOPPING_SECONDS

logger = logging.getLogger("nodesweep.jobs")
# For short jobs that are looked at twice a second: the looks and log lines of about the first ten seconds, or an end's.
BURST_CALLS = 20
SPARE_CALLS = 10
"""Calls that messages and log lines leave to the looks to come."""
UNLISTED_SECONDS = 30.0
"""Lists are eventually consistent: a job that is missing in them is described, as often as this."""
FULL_LIST_SECONDS = 600.0
"""How often all jobs are listed, for a change that came into the list too late to be among the latest."""
_LIST_OVERLAP = timedelta(seconds=60)  # a change may come into the list so much later than another one
_PAGE_SIZE = 100
_HAS_TRAINED = ("Training", "Uploading")
_WRITES_LOG = (*_HAS_TRAINED, "InProgress")  # the latter of a platform whose list has no secondary status


@dataclass(frozen=True)
class JobLimits:
    """Seconds that a job may wait from its creation until it trains, and take from then to its end."""

    queue_seconds: float
    run_seconds: float


@dataclass
class JobWait:
    """Since when a job is waited for, by the watcher's clock; it outlives a watch, which ends with any job's end."""

    looked_at: float
    stopped_at: float | None = None
    stop_accepted: bool = False
    unknown_since: float | None = None


@dataclass
class _Job:
    """What is known of a job. Times without a date are the watcher's own clock."""

    name: str
    wait: JobWait
    summary: Mapping[str, Any] | None = None
    description: dict[str, Any] | None = None
    check_after: datetime | None = None
    given_up: str | None = None
    followed_at: float = float("-inf")

    @property
    def state(self) -> str:
        """The secondary status, where the list has it."""
        summary = self.summary or {}
        return str(summary.get("SecondaryStatus") or summary.get("TrainingJobStatus") or "not listed yet")

    @property
    def ended(self) -> dict[str, Any] | None:
        """The description of a job that is terminal or given up."""
        description = self.description
        if self.given_up is not None:
            unknown = {"TrainingJobName": self.name, "TrainingJobStatus": "InProgress"}
            return {**(description or unknown), "FailureReason": self.given_up}
        return description if description is not None and description["TrainingJobStatus"] in TERMINAL else None


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
) -> list[dict[str, Any]]:
    """Wait until at least one of the jobs is terminal; returns the descriptions of those that are.

    With `has_stepped` none is returned as soon as it says of one that it has reached the step that is waited for;
    then logs are worth a call at every look, not only where one is to spare.

    `follow` is called for jobs that train or have just ended, each call one of the budget, in turn. `is_stopped` is
    asked at every look; once it says so all jobs are stopped. A job past one of its limits is stopped and waited for.
    A job that does not end within 300 s of being stopped, or that nobody has known for as long, is given up: it is
    returned as it was last described, not terminal, and its FailureReason says why. `waits` keeps these 300 s from one
    watch of a job to the next. Says how the jobs stand. A ClientError of a list or a describe passes, and nothing is
    lost by it.
    """
    waits = {} if waits is None else waits
    watcher = _Watcher(sagemaker, job_names, limits, clock, budget, follow, is_stopped, waits, has_stepped is not None)
    pauses = intervals(poll_seconds, 4 * poll_seconds)
    while True:
        changed, ended = watcher.look()
        if ended:
            for description in ended:
                waits.pop(description["TrainingJobName"], None)
            return ended
        if has_stepped is not None and any(map(has_stepped, job_names)):
            return []
        if changed:
            pauses = intervals(poll_seconds, 4 * poll_seconds)
        clock.sleep(next(pauses))


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
        must_follow: bool,
    ) -> None:
        self._must_follow = must_follow
        self._sagemaker, self._limits, self._clock = sagemaker, limits, clock
        self._budget, self._follow, self._is_stopped = budget, follow, is_stopped
        now = clock.monotonic()
        self._jobs = {name: _Job(name, waits.setdefault(name, JobWait(looked_at=now))) for name in job_names}
        self._listed: set[str] = set()
        self._pages = 0
        self._listed_at = self._listed_fully_at = now
        self._platform_time: datetime | None = None
        name = job_names[0] if len(job_names) == 1 else f"{len(job_names)} jobs"
        self._progress = Progress(name, logger, clock)

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether anything changed, the descriptions of the jobs that are terminal)."""
        stops_all = self._is_stopped()
        first_seen = {name for name, job in self._jobs.items() if job.summary is None}
        changed = [job for job in self._list() + self._describe_unlisted() if job.ended is None]
        for job in self._jobs.values():
            if job.summary is not None and job.summary["TrainingJobStatus"] in TERMINAL and job.ended is None:
                self._describe(job)
        for job in changed:
            if job.ended is None and job.name not in first_seen and self._budget.try_take(SPARE_CALLS):
                self._describe(job, paid=True)
        for job in self._jobs.values():
            if job.ended is None and stops_all and job.wait.stopped_at is None:
                self._stop(job, "belongs to a sweep that was stopped")
            if job.ended is None:
                self._keep_to_limits(job)
        self._say(changed)
        self._follow_logs()
        return bool(changed), [job.ended for job in self._jobs.values() if job.ended is not None]

    def _list(self) -> list[_Job]:
        """List all jobs, newest first until each was seen, or only what changed lately; returns those that changed."""
        query: dict[str, Any] = {"SortBy": "CreationTime", "SortOrder": "Descending", "MaxResults": _PAGE_SIZE}
        if common := common_prefix(self._jobs):
            query["NameContains"] = common  # contains, so that other names may come with it
        now = self._clock.monotonic()
        since = self._list_since(now)
        if since is None:
            self._listed, self._listed_fully_at, self._pages = set(), now, 0
        else:
            query["LastModifiedTimeAfter"] = since
        summaries: list[Mapping[str, Any]] = []
        while True:
            self._budget.take()
            page = self._sagemaker.list_training_jobs(**query)
            summaries += page["TrainingJobSummaries"]
            self._listed |= self._jobs.keys() & {summary["TrainingJobName"] for summary in page["TrainingJobSummaries"]}
            self._pages += since is None
            if not page.get("NextToken") or (since is None and len(self._listed) == len(self._jobs)):
                break
            query["NextToken"] = page["NextToken"]
        self._set_platform_time(summaries, now)
        ours = ((self._jobs.get(summary["TrainingJobName"]), summary) for summary in summaries)
        return [job for job, summary in ours if job is not None and self._take_in(job, summary)]

    def _list_since(self, now: float) -> datetime | None:
        """From when on changes are listed, by the platform's clock; None where all jobs are to be."""
        due = self._pages <= 1 or now - self._listed_fully_at >= FULL_LIST_SECONDS
        return None if due or self._platform_time is None else self._platform_time - _LIST_OVERLAP

    def _set_platform_time(self, summaries: Sequence[Mapping[str, Any]], now: float) -> None:
        """The least that the platform's clock can show: its newest time, and what has passed since it was read."""
        known = [max(map(_modified, summaries))] if summaries else []
        if self._platform_time is not None:
            known.append(self._platform_time + timedelta(seconds=now - self._listed_at))
        self._platform_time, self._listed_at = max(known, default=None), now

    def _take_in(self, job: _Job, summary: Mapping[str, Any]) -> bool:
        """Keep a summary, or a description in its place; True where it differs from the last."""
        if job.summary is not None and _what_changes(job.summary) == _what_changes(summary):
            return False
        job.summary = summary
        # Before this no limit is broken, whatever the transitions are, which only a description has.
        has_trained = summary.get("SecondaryStatus") in _HAS_TRAINED
        limits = self._limits
        shortest = limits.run_seconds if has_trained else min(limits.queue_seconds, limits.run_seconds)
        job.check_after = summary["CreationTime"] + timedelta(seconds=shortest)
        return True

    def _describe_unlisted(self) -> list[_Job]:
        """Describe the jobs that the list has not shown for a while; returns those that changed."""
        now = self._clock.monotonic()
        missing = [job for job in self._jobs.values() if job.name not in self._listed]
        due = [job for job in missing if now - job.wait.looked_at >= UNLISTED_SECONDS]
        described = [(job, self._describe(job)) for job in due]
        return [job for job, description in described if description is not None and self._take_in(job, description)]

    def _describe(self, job: _Job, paid: bool = False) -> dict[str, Any] | None:
        """Its description; None where SageMaker does not know it, which is asked again until it is given up."""
        if not paid:
            self._budget.take()
        description = describe(self._sagemaker, job.name)
        now = job.wait.looked_at = self._clock.monotonic()
        if description is None:
            job.wait.unknown_since = now if job.wait.unknown_since is None else job.wait.unknown_since
            if now - job.wait.unknown_since >= STOPPING_SECONDS:
                job.given_up = f"SageMaker has not known it for {STOPPING_SECONDS:.0f} s; resume the sweep to try again"
            return None
        job.wait.unknown_since = None
        job.description = description
        job.check_after = _limit_at(description, self._limits)
        return description

    def _keep_to_limits(self, job: _Job) -> None:
        """Stop a job that is past a limit, and give up one that was stopped and goes on."""
        if job.wait.stopped_at is not None:
            if not job.wait.stop_accepted:
                self._ask_to_stop(job)
            if self._clock.monotonic() > job.wait.stopped_at + STOPPING_SECONDS:
                self._describe(job)  # the list may be behind
                if job.ended is None:
                    job.given_up = (
                        f"it did not stop within {STOPPING_SECONDS:.0f} s of being asked to and may still cost money; "
                        "look at it in the console"
                    )
        elif job.check_after is not None and self._clock.now() > job.check_after:
            description = self._describe(job)
            problem = description and overdue(description, self._limits, self._clock.now())
            if job.ended is None and problem:
                self._stop(job, problem)

    def _stop(self, job: _Job, problem: str) -> None:
        logger.warning("%s %s and is being stopped", job.name, problem)
        job.wait.stopped_at = self._clock.monotonic()
        self._ask_to_stop(job)

    def _ask_to_stop(self, job: _Job) -> None:
        """Where it is not accepted the job has ended, is not known yet, or the call failed: then it is asked again."""
        self._budget.take()
        try:
            job.wait.stop_accepted = bool(stop(self._sagemaker, [job.name]))
        except JobRefused as error:
            logger.warning("%s", error)
        else:
            if not job.wait.stop_accepted:
                self._describe(job)

    def _say(self, changed: Sequence[_Job]) -> None:
        """A line for each job that changed, and one for all of them."""
        if len(self._jobs) == 1:
            [job] = self._jobs.values()
            self._progress.note(job.state, _message(job))
            return
        for job in changed:
            logger.info("%s: %s%s", job.name, job.state, f" ({message})" if (message := _message(job)) else "")
        counts = Counter(job.state for job in self._jobs.values())
        self._progress.note(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))

    def _follow_logs(self) -> None:
        """Those that ended first, for the last time; then those that train, the longest unread first."""
        shown = [job for job in self._jobs.values() if job.ended is not None or job.state in _WRITES_LOG]
        for job in sorted(shown, key=lambda job: (job.ended is None, job.followed_at)):
            if self._must_follow:
                self._budget.take()
            elif not self._budget.try_take(SPARE_CALLS if job.ended is None else 0):
                return
            self._follow(job.name)
            job.followed_at = self._clock.monotonic()


def common_prefix(names: Iterable[str]) -> str:
    """What all names begin with: what the least and the greatest of them do."""
    least, greatest = min(names), max(names)
    length = next((place for place, pair in enumerate(zip(least, greatest, strict=False)) if len(set(pair)) > 1), None)
    return least[:length]


def overdue(description: Mapping[str, Any], limits: JobLimits, now: datetime) -> str | None:
    """Which limit a job that has not ended is past, or None.

    Counted from the platform's own times, so that a job that is adopted has no more time than any other; they are
    as good as the two clocks agree, and AWS answers no caller whose clock is 5 minutes off.
    """
    if now <= _limit_at(description, limits):
        return None
    trained_at = _trained_at(description)
    if trained_at is None:
        return f"has not begun to train in {(now - description['CreationTime']).total_seconds():.0f} s"
    return f"has not ended {(now - trained_at).total_seconds():.0f} s after it began to train"


def _limit_at(description: Mapping[str, Any], limits: JobLimits) -> datetime:
    """When a job that goes on as it is described breaks a limit."""
    trained_at = _trained_at(description)
    if trained_at is None:
        return description["CreationTime"] + timedelta(seconds=limits.queue_seconds)
    return trained_at + timedelta(seconds=limits.run_seconds)


def _trained_at(description: Mapping[str, Any] | None) -> datetime | None:
    transitions = (description or {}).get("SecondaryStatusTransitions") or ()
    return next((step["StartTime"] for step in transitions if step["Status"] == "Training"), None)


def _message(job: _Job) -> str:
    """The status message of a description that is no older than the state it is said with."""
    description = job.description or {}
    transitions = description.get("SecondaryStatusTransitions") or [{}]
    return str(transitions[-1].get("StatusMessage") or "") if description.get("SecondaryStatus") == job.state else ""


def _modified(summary: Mapping[str, Any]) -> datetime:
    return summary.get("LastModifiedTime") or summary["CreationTime"]


def _what_changes(summary: Mapping[str, Any]) -> tuple[Any, ...]:
    return summary["TrainingJobStatus"], summary.get("SecondaryStatus"), _modified(summary)
