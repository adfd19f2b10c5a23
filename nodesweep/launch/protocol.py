"""The interface of a backend that runs jobs; one contract suite tests every launcher.

tests/nodesweep/launch/test_contract.py runs it against the local platform, a Slurm cluster and a
launcher in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from nodesweep.scaling.job import JobSpec, JobStatus

STOPPING_SECONDS = 300.0
"""Maximum seconds to wait for a job to end after it was asked to stop.

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
    """Returns the sweep in the job's tag, or None without one; it may call the backend."""


class JobLog(Protocol):
    """Reads each line of all nodes of a job once, and remembers its position."""

    @property
    def location(self) -> str:
        """A description of where the full log is."""

    @property
    def has_more(self) -> bool:
        """True if more lines can be read right away."""

    def new_lines(self) -> Iterable[tuple[int, str]]:
        """Make one call, and yield (Unix ms, "node: text") of new lines, with secrets masked."""


class Launcher(Protocol):
    """Starts jobs, reports on them and stops them; a job is identified by its name.

    Calls raise one of nodesweep.errors.CALL_ERRORS when the backend can't be reached.
    """

    def render(self, spec: JobSpec) -> Mapping[str, Any]:
        """Return the job's request without calls to the backend; see scaling.job.Render."""

    def submit(self, spec: JobSpec) -> JobStatus:
        """Start the job, or adopt the existing one of that name, whoever started it.

        Raises:
            JobRefused: the backend refuses the job, or a job of that name has a different spec.
            QuotaReached: not enough nodes are free.
        """

    def status(self, job_name: str) -> JobStatus | None:
        """Return the job's status, or None if there is no such job."""

    def describe(
        self, job_names: Iterable[str], take: Callable[[], None] = lambda: None
    ) -> Mapping[str, JobStatus]:
        """Return the status of each given job that exists, by name.

        `take` is called before each call to the backend, and limits the rate of calls.
        """

    def logs(self, job_name: str, since: datetime) -> JobLog:
        """Return a reader for the lines that the job's nodes write from `since` on."""

    def stop(self, job_name: str) -> bool:
        """Ask the job to stop, without waiting; return True if it was still running."""

    def release(self, job_name: str) -> None:
        """Release the nodes that are kept for an ended job; see JobStatus.retention."""

    def jobs_of(self, sweep: str) -> Sequence[JobStatus]:
        """Return the sweep's jobs, oldest first; a status may have only a name and a state."""

    def held(self) -> Iterable[HeldJob]:
        """Return the queued and running jobs, then ended jobs whose nodes are kept, oldest first.

        This includes the jobs of other sweeps, and possibly of other programs.
        """
