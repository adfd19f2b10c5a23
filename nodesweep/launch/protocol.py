"""The interface of a backend that runs jobs; one contract suite tests every launcher.

tests/nodesweep/launch/test_contract.py runs it against SageMaker on the local platform, and against
a launcher in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from nodesweep.scaling.job import JobSpec, JobStatus

STOPPING_SECONDS = 300.0
"""Seconds that a job may take to end after it was asked to stop; then it is given up on.

SageMaker kills a stopped job after 120 s and then uploads its output (API reference,
StopTrainingJob, StopProcessingJob).
"""


class HeldJob(NamedTuple):
    """A queued or running job, or one whose nodes are still held, as the backend lists it."""

    name: str
    age_seconds: float
    """Seconds since the backend accepted it, by the backend's clock."""
    is_running: bool
    read_tag: Callable[[], str | None]
    """Returns the sweep that the job is tagged with; None without a tag. May call the backend."""


class JobLog(Protocol):
    """Reads the lines of all nodes of a job, each once; it remembers where it stopped."""

    @property
    def location(self) -> str:
        """The place of the whole log, in words."""

    @property
    def has_more(self) -> bool:
        """True if further lines that exist already are ready to be read."""

    def new_lines(self) -> Iterable[tuple[int, str]]:
        """Make one call, and yield (Unix ms, "node: text") of new lines, with secrets masked."""


class Launcher(Protocol):
    """Starts jobs, reports on them and stops them. A job's name alone identifies it.

    Calls raise one of nodesweep.errors.CALL_ERRORS when the backend can't be reached.
    """

    def render(self, spec: JobSpec) -> Mapping[str, Any]:
        """Return the job's request, without calling anything; see nodesweep.scaling.job.Render."""

    def submit(self, spec: JobSpec) -> JobStatus:
        """Start the job, or adopt the existing one of that name, whoever started it.

        Raises:
            JobRefused: the backend refuses the job, or one of that name has a different spec.
            QuotaReached: there are no nodes left for it now.
        """

    def status(self, job_name: str) -> JobStatus | None:
        """Return the job's status; None if the backend does not know it."""

    def describe(
        self, job_names: Iterable[str], take: Callable[[], None] = lambda: None
    ) -> Mapping[str, JobStatus]:
        """Return the status of each of these jobs that the backend knows.

        `take` is called before each call of the backend, to wait for its turn.
        """

    def logs(self, job_name: str, since: datetime) -> JobLog:
        """Return a reader of the lines that the job's nodes write from `since` on."""

    def stop(self, job_name: str) -> bool:
        """Ask the job to stop, and return True if it was still running; it ends some time later."""

    def release(self, job_name: str) -> None:
        """Give back the nodes that are kept for an ended job; see JobStatus.retention."""

    def jobs_of(self, sweep: str) -> Sequence[JobStatus]:
        """Return the sweep's jobs, oldest first; a status may have only a name and a state."""

    def held(self) -> Iterable[HeldJob]:
        """Return the jobs that wait or run, then those whose nodes are kept; the oldest first.

        Includes other sweeps' jobs and possibly other programs'.
        """
