"""Show a sweep's jobs in Prefect as task runs that last as long as the jobs.

No thread waits for each job. Instead, one call creates a job's task run, and one call sets each of
its states, at most one call per second. If changes come faster, intermediate states are dropped,
and jobs that ended before they were shown come last.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import NamedTuple
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
    TaskRunFilterTags,
)
from prefect.client.schemas.objects import TERMINAL_STATES, State, StateType, TaskRun, TaskRunResult
from prefect.context import SettingsContext, get_settings_context
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

from nodesweep.launch.watch import UNKNOWN_PHASE, WRITES_LOG
from nodesweep.polling import CallBudget, Clock, intervals
from nodesweep.scaling import names
from nodesweep.scaling.formats import format_seconds
from nodesweep.scaling.job import OVER_TIME
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.tasks.cancelling import quick_client
from nodesweep.tasks.task import as_task, failures_as_warnings

logger = logging.getLogger("nodesweep.board")
CALLS_PER_SECOND, BURST_CALLS = 1.0, 4
_PAUSES_SECONDS = 1.0, 60.0
"""First and longest pause after an error, in seconds."""
_LAST_SECONDS, _LAST_PAUSE_SECONDS = 30.0, 4.0
"""Time for retrying calls after a sweep has ended, and longest pause in between, in seconds."""
_ANSWER_SECONDS = 10.0
"""Timeout of a call in seconds."""
_ENDING_SECONDS = 120.0
"""Maximum time for updating all jobs of a run whose process has ended, in seconds."""
_TAG = "training-job"
_UNFINISHED = [StateType.PENDING, StateType.RUNNING]


class JobView(NamedTuple):
    """A job's state in Prefect: its type, name and message, which defaults to the job's name."""

    type: StateType
    name: str
    message: str | None = None

    @property
    def is_final(self) -> bool:
        """True if the job has ended, or is no longer watched."""
        return self.type in TERMINAL_STATES


SUBMITTED = JobView(StateType.PENDING, "Submitted")
STOPPED = JobView(StateType.CANCELLED, "Cancelled", "The job was stopped with its run.")
UNWATCHED = JobView(
    StateType.CANCELLED, "Unwatched", "The run ended before the job, which may still be running."
)


def running_view(phase: str) -> JobView:
    """Return the view of a job in this phase.

    Prefect counts every Running state as a try, so all phases of the program share one.
    """
    if phase == UNKNOWN_PHASE:
        return SUBMITTED
    if phase in WRITES_LOG:
        return JobView(StateType.RUNNING, "Running")
    return JobView(StateType.PENDING, phase)


def ended_view(outcome: JobOutcome, was_watched: bool) -> JobView:
    """Return the view of an attempt that has ended.

    If this run did not watch it, it ended in an earlier run, and is "Cached" if it completed.
    """
    if outcome.completed:
        return JobView(StateType.COMPLETED, "Completed" if was_watched else "Cached")
    if (outcome.reason or "").startswith(OVER_TIME):
        return JobView(StateType.FAILED, "TimedOut", outcome.reason)
    if outcome.status == "Stopped":
        return JobView(StateType.CANCELLED, "Cancelled", outcome.reason)
    return JobView(StateType.FAILED, "Failed", outcome.reason)


def task_run_name(job: str) -> str:
    """Return the short name of a job's task run, such as train-4n-r2-a2."""
    key = names.parse_job_name(job)
    return job if key is None else run_name(key)


def run_name(key: names.JobKey) -> str:
    """Return the name of the task run of the job with this key."""
    again = f"-a{key.attempt}" if key.attempt > 1 else ""
    return f"train-{key.nodes}n{key.arm}-r{key.repeat}{again}"


class JobRuns:
    """The task runs of a sweep's jobs, as children of the current task run.

    A retried flow run finds them by job name. Nothing is shown outside a flow. Only one thread
    calls show() and close(); callers of the other methods must hold a lock.
    """

    def __init__(
        self, max_attempts: int, timeout_seconds: float | None, clock: Clock | None = None
    ) -> None:
        self._flow_run, self._parent = flow_run.id, task_run.id
        self._max_attempts, self._timeout_seconds = max_attempts, timeout_seconds
        self._task = as_task(_TAG, task_run_name)
        self._task.task_key = _TAG  # the default contains a digest of the code
        self._begun: set[str] = set()
        self._runs: dict[str, UUID] = {}
        self._shown: dict[str, JobView] = {}
        self._wanted: dict[str, JobView] = {}
        self._failures: Counter[str] = Counter()
        self._has_failed = False
        self._settings: SettingsContext | None = None
        self._client: SyncPrefectClient | None = None
        self._opened = ExitStack()
        # The default clock's waits are interrupted by a cancellation.
        self._clock = clock or Clock(wait=threading.Event().wait)
        self._budget = CallBudget(CALLS_PER_SECOND, BURST_CALLS, self._clock)
        self._pauses = intervals(*_PAUSES_SECONDS)
        self._ending = threading.Event()
        self._wait_for_end: Callable[[float], bool]
        self._wait_for_end = self._ending.wait if clock is None else clock.wait
        self._give_up_at, self._has_given_up = math.inf, False

    @property
    def is_ending(self) -> bool:
        """True once no further job will start; final states are then no longer rate-limited."""
        return self._ending.is_set()

    def end(self) -> None:
        """Interrupt the pause after an error, and retry failing calls only for a short time."""
        self._give_up_at = self._clock.monotonic() + _LAST_SECONDS
        self._ending.set()

    def want(self, views: Mapping[str, JobView]) -> None:
        """Set the views to show by job name."""
        if self._flow_run is not None and self._parent is not None:
            self._wanted.update(views)

    def abandon(self, view: JobView) -> bool:
        """Queue this view for every job that has not ended; return True if there is one."""
        left = {name: view for name, last in self._wanted.items() if not last.is_final}
        self._wanted.update(left)
        return bool(left)

    def next_to_show(self) -> tuple[str, JobView] | None:
        """Return a job whose view in Prefect is outdated, or None if all views are up to date.

        Ended jobs come first, except that jobs that ended before they were shown come last, because
        there can be many. Also return None if Prefect did not respond after the sweep ended.
        """
        if self._has_given_up:
            return None
        news = [name for name, view in self._wanted.items() if self._shown.get(name) != view]
        name = min(news, key=lambda name: (self._failures[name], self._rank(name)), default=None)
        return None if name is None else (name, self._wanted[name])

    def forget(self) -> None:
        """Drop all queued views, since the jobs may be watched again."""
        self._wanted.clear()

    @property
    def is_behind(self) -> bool:
        """True if a task run does not yet show the end of its job."""
        return any(
            self._rank(name) == 0 and self._shown.get(name) != view
            for name, view in self._wanted.items()
        )

    def _rank(self, name: str) -> int:
        if not self._wanted[name].is_final:
            return 1
        return 0 if name in self._begun else 2

    def show(self, name: str, view: JobView) -> None:
        """Create or update a job's task run.

        After an error, pause and leave the job queued. Only the first error is logged.
        """
        self._begun.add(name)
        try:
            with self._without_retries():
                self._send(name, view)
        except Exception as error:  # a busy or unreachable server must not fail a sweep
            if not self._has_failed:
                logger.warning("a job can't be shown in Prefect yet, retrying: %s", error)
            self._has_failed = True
            self._failures[name] += 1
            self.close()
            self._pause(next(self._pauses))
        else:
            self._shown[name] = view
            self._failures[name] = 0
            self._pauses = intervals(*_PAUSES_SECONDS)

    def _without_retries(self) -> SettingsContext:
        """Return Prefect's settings without retries, created once: it takes 35 ms of CPU."""
        if self._settings is None:
            current = get_settings_context()
            settings = current.settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: 0})
            self._settings = SettingsContext(profile=current.profile, settings=settings)
        return self._settings

    def _pause(self, seconds: float) -> None:
        if not self.is_ending:
            self._wait_for_end(seconds)
        elif self._clock.monotonic() < self._give_up_at:
            self._clock.sleep(min(seconds, _LAST_PAUSE_SECONDS))
        else:
            self._has_given_up = True

    def _send(self, name: str, view: JobView) -> None:
        state = State(type=view.type, name=view.name, message=view.message or name)
        if self._client is None:  # one for all calls, since opening it takes 20 to 50 ms of CPU
            own = get_client(sync_client=True, httpx_settings={"timeout": _ANSWER_SECONDS})
            self._client = self._opened.enter_context(own)
        if name not in self._runs:
            self._budget.take()
            made = self._client.create_task_run(
                self._task,
                UUID(self._flow_run),
                dynamic_key=name,
                name=task_run_name(name),
                extra_tags=self._tags(name),
                state=state,
                task_inputs={"__parents__": [TaskRunResult(id=UUID(self._parent))]},
            )
            self._runs[name] = made.id
            if made.state is not None and _is_shown(made.state, state):
                return
        if not (self.is_ending and view.is_final):
            self._budget.take()
        self._client.set_task_run_state(self._runs[name], state, force=True)

    def close(self) -> None:
        """Close the connection to Prefect, which show() opens again."""
        self._client = None
        self._opened.close()

    def _tags(self, name: str) -> list[str]:
        key = names.parse_job_name(name)
        attempt = 1 if key is None else key.attempt
        tags = [_TAG, f"attempt {attempt} of {max(attempt, self._max_attempts)}"]
        if self._timeout_seconds is not None:
            tags.append(f"timeout {format_seconds(self._timeout_seconds)}")
        return tags


def _is_shown(found: State, state: State) -> bool:
    """Return True if a task run needs no update, e.g. because an earlier run completed it."""
    if found.type == state.type == StateType.COMPLETED:
        return True
    return (found.type, found.name, found.message) == (state.type, state.name, state.message)


def end_job_runs(run: UUID, view: JobView = UNWATCHED, clock: Clock | None = None) -> None:
    """Set the unfinished task runs of a flow run's jobs to this view once its process has ended.

    A failed update does not prevent the others. All updates together take at most 2 minutes.
    """
    clock = clock or Clock()
    deadline = clock.monotonic() + _ENDING_SECONDS
    with failures_as_warnings("the end of the jobs"), quick_client(_ANSWER_SECONDS, 2) as client:
        for each in _unfinished_runs(client, run):
            if clock.monotonic() > deadline:
                raise TimeoutError(f"Prefect's server was busy for {_ENDING_SECONDS:.0f} s")
            with failures_as_warnings(f"the end of {each.name}"):
                client.set_task_run_state(each.id, State(**view._asdict()), force=True)


def _unfinished_runs(client: SyncPrefectClient, run: UUID) -> list[TaskRun]:
    """Return the unfinished task runs of a flow run's jobs, read in pages of at most 200."""
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    unfinished = TaskRunFilter(
        tags=TaskRunFilterTags(all_=[_TAG]),
        state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_UNFINISHED)),
    )
    found: list[TaskRun] = []
    while page := client.read_task_runs(
        flow_run_filter=of_run, task_run_filter=unfinished, offset=len(found)
    ):
        found += page
    return found
