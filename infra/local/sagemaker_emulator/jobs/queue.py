"""The queue of accepted jobs, which determines when they start or end without starting."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.interfaces import Room
from sagemaker_emulator.jobs.endings import Ending
from sagemaker_emulator.jobs.job import J, Job


@dataclass
class Waiting(Generic[J]):
    """A queued job, with times in Unix seconds."""

    job: J
    not_before: float
    faults: JobFaults
    is_virtual: bool = False
    """True if the job waits for capacity on a virtual clock after its start."""

    def ready_at(self) -> float:
        """Return the time at which the job can start, or infinity if it gets no capacity."""
        return (
            self.not_before if self.is_virtual or self.faults.capacity_error is None else math.inf
        )

    def overdue(self, now: float) -> tuple[float, Ending]:
        """Return when and how the job ends if it has not started by then.

        This happens if it gets no capacity or waits too long. On a virtual clock, the time is
        infinity.
        """
        if self.is_virtual:
            return math.inf, Ending("Stopped")
        waited = self.job.longest_wait(now)
        if self.faults.capacity_error is None:
            return waited
        failed = self.not_before, Ending("Failed", self.faults.capacity_error)
        return min(waited, failed, key=lambda end: end[0])


class SingleJobRoom:
    """A room for a single job of any size."""

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


class SharedRoom:
    """A room that the jobs of several queues enter in order of arrival (thread-safe).

    A job that found no room holds back the jobs that arrived after it, in all queues, until it
    enters or leaves its queue.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._arrivals: dict[str, float] = {}
        """When (in Unix seconds) each job that waits for room arrived."""

    @property
    def most_jobs(self) -> int:
        """The maximum number of jobs that can run in parallel."""
        return self._room.most_jobs

    def fits(self, job: Job) -> bool:
        """Return True if a new job could enter now."""
        with self._lock:
            return not self._arrivals and self._room.fits(job.instance_type, job.instance_count)

    def enter(self, job: Job) -> bool:
        """Reserve capacity for a job, or return False if it must wait for room."""
        with self._lock:
            is_next = job.creation_time <= min(self._arrivals.values(), default=math.inf)
            size = job.instance_type, job.instance_count
            if is_next and self._room.take(job.run_name, *size):
                self._arrivals.pop(job.run_name, None)
                return True
            self._arrivals[job.run_name] = job.creation_time
            return False

    def leave_queue(self, job: Job) -> None:
        """Let later jobs pass a job that no longer waits."""
        with self._lock:
            self._arrivals.pop(job.run_name, None)

    def release(self, job: Job) -> None:
        """Release a job's reservation, if any."""
        self._room.release(job.run_name)


class JobQueue(Generic[J]):
    """Jobs in order of arrival. The queue is not thread-safe, so callers must hold a lock.

    Later jobs can overtake a job that waits for capacity, but not a job that waits for room, since
    a large job could otherwise wait forever.
    """

    def __init__(self, room: SharedRoom) -> None:
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
        """Remove a job, or return False if it is not queued."""
        kept = [waiting for waiting in self._waiting if waiting.job is not job]
        removed = len(kept) < len(self._waiting)
        self._waiting = kept
        if removed:
            self.room.leave_queue(job)
        return removed

    def take_overdue(self, now: float) -> list[tuple[Waiting[J], Ending]]:
        """Remove the jobs that must now end without starting, and return how they end."""
        ends = [(waiting, *waiting.overdue(now)) for waiting in self]
        ended = [(waiting, ending) for waiting, moment, ending in ends if moment <= now]
        for waiting, _ in ended:
            self.remove(waiting.job)
        return ended

    def take_ready(self, now: float) -> Waiting[J] | None:
        """Remove the first job that can start, reserve room for it, and return it.

        Return None if no job can start or the room is full.
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
        self._is_full = not self.room.enter(job)
        if self._is_full:
            return None
        self.remove(job)
        return first

    def next_ready(self) -> float:
        """Return the time at which the next job can start.

        The time is infinity if no queued job will start, or if a job waits for room until another
        job ends.
        """
        if self._is_full:
            return math.inf
        return min((waiting.ready_at() for waiting in self._waiting), default=math.inf)

    def next_overdue(self, now: float) -> float:
        """Return the time at which the next job must end without starting."""
        return min((waiting.overdue(now)[0] for waiting in self._waiting), default=math.inf)
