"""The queue of accepted jobs: when each may begin, and when it must end without having begun."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.interfaces import Room
from sagemaker_emulator.jobs.endings import Ending
from sagemaker_emulator.jobs.job import J


@dataclass
class Waiting(Generic[J]):
    """A queued job. Times are in Unix seconds."""

    job: J
    not_before: float
    faults: JobFaults
    is_virtual: bool = False
    """True if the job waits for capacity on a virtual clock after it has begun."""

    def ready_at(self) -> float:
        """Return the time at which the job may begin; infinity if it gets no capacity here."""
        return (
            self.not_before if self.is_virtual or self.faults.capacity_error is None else math.inf
        )

    def overdue(self, now: float) -> tuple[float, Ending]:
        """Return the time and the ending of the job if it has not begun by then.

        The job then either got no capacity or waited too long. The time is infinity on a virtual
        clock.
        """
        if self.is_virtual:
            return math.inf, Ending("Stopped")
        waited = self.job.longest_wait(now)
        if self.faults.capacity_error is None:
            return waited
        failed = self.not_before, Ending("Failed", self.faults.capacity_error)
        return min(waited, failed, key=lambda end: end[0])


class SingleJobRoom:
    """Room for a single job of any size."""

    most_jobs = 1

    def __init__(self) -> None:
        self._holder: str | None = None

    def fits(self, instance_type: str, instance_count: int) -> bool:
        return self._holder is None

    def take(self, job_name: str, instance_type: str, instance_count: int) -> bool:
        if self._holder is not None:
            return False
        self._holder = job_name
        return True

    def release(self, job_name: str) -> None:
        if self._holder == job_name:
            self._holder = None


class JobQueue(Generic[J]):
    """Jobs in order of arrival; not thread-safe, so the queue's owner must hold a lock.

    A job that waits for capacity lets later jobs pass. A job that waits for room does not, because
    a large job might otherwise wait forever.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self._waiting: list[Waiting[J]] = []
        self._is_full = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting[J]]:
        return iter(list(self._waiting))

    def append(self, waiting: Waiting[J]) -> None:
        self._waiting.append(waiting)

    def remove(self, job: J) -> bool:
        """Remove a job; return False if it is not queued."""
        kept = [waiting for waiting in self._waiting if waiting.job is not job]
        removed = len(kept) < len(self._waiting)
        self._waiting = kept
        return removed

    def take_overdue(self, now: float) -> list[tuple[Waiting[J], Ending]]:
        """Remove the jobs that end without having begun, and return them with their endings."""
        ends = [(waiting, *waiting.overdue(now)) for waiting in self]
        ended = [(waiting, ending) for waiting, moment, ending in ends if moment <= now]
        for waiting, _ in ended:
            self.remove(waiting.job)
        return ended

    def take_ready(self, now: float) -> Waiting[J] | None:
        """Reserve room for the first job that may begin and remove it.

        Returns:
            None if no job may begin or the room is full.
        """
        first = next(
            (
                waiting
                for waiting in self._waiting
                if waiting.ready_at() <= now < waiting.overdue(now)[0]
            ),
            None,
        )
        if first is None:
            self._is_full = False
            return None
        job = first.job
        self._is_full = not self.room.take(job.run_name, job.instance_type, job.instance_count)
        if self._is_full:
            return None
        self.remove(job)
        return first

    def next_ready(self) -> float:
        """Return the time at which the next job may begin.

        The time is infinity if no queued job will begin, or if a job waits for room until another
        job ends.
        """
        if self._is_full:
            return math.inf
        return min((waiting.ready_at() for waiting in self._waiting), default=math.inf)

    def next_overdue(self, now: float) -> float:
        """Return the time at which the next job must end without having begun."""
        return min((waiting.overdue(now)[0] for waiting in self._waiting), default=math.inf)
