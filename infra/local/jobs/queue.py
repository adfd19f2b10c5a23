"""The queue of accepted jobs: which may begin when, and which is to end without having begun."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from nodesweep.infra.local.faults.injector import JobFaults
from nodesweep.infra.local.interfaces import Room
from nodesweep.infra.local.jobs.endings import Ending
from nodesweep.infra.local.jobs.job import J


@dataclass
class Waiting(Generic[J]):
    """A job that waits. Times are Unix seconds."""

    job: J
    not_before: float
    faults: JobFaults
    is_virtual: bool = False
    """Its waits pass on a virtual clock, once it has begun."""

    def ready_at(self) -> float:
        """When it may begin; never if no capacity is to come."""
        return (
            self.not_before if self.is_virtual or self.faults.capacity_error is None else math.inf
        )

    def overdue(self, now: float) -> tuple[float, Ending]:
        """When it ends unbegun, and how: no capacity came, or it has waited for too long."""
        if self.is_virtual:
            return math.inf, Ending("Stopped")
        waited = self.job.longest_wait(now)
        if self.faults.capacity_error is None:
            return waited
        failed = self.not_before, Ending("Failed", self.faults.capacity_error)
        return min(waited, failed, key=lambda end: end[0])


class OneJob:
    """Room for a single job, whatever it needs."""

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

    def give_back(self, job_name: str) -> None:
        if self._holder == job_name:
            self._holder = None


class JobQueue(Generic[J]):
    """Jobs in the order they came. One that waits for capacity lets those after it pass; one that
    waits for room does not, since a large job would wait for ever. Not locked: its owner is.
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
        """Take a job out; False where it doesn't wait."""
        kept = [waiting for waiting in self._waiting if waiting.job is not job]
        removed = len(kept) < len(self._waiting)
        self._waiting = kept
        return removed

    def take_overdue(self, now: float) -> list[tuple[Waiting[J], Ending]]:
        """Jobs that end unbegun, and how."""
        ends = [(waiting, *waiting.overdue(now)) for waiting in self]
        ended = [(waiting, ending) for waiting, moment, ending in ends if moment <= now]
        for waiting, _ in ended:
            self.remove(waiting.job)
        return ended

    def take_ready(self, now: float) -> Waiting[J] | None:
        """The first job that may begin, with room taken for it;
        None where none may, or there is no room for it.
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
        """When the next job may begin; never where none waits for that, or for room, which whoever
        ends a job tells.
        """
        if self._is_full:
            return math.inf
        return min((waiting.ready_at() for waiting in self._waiting), default=math.inf)

    def next_overdue(self, now: float) -> float:
        """When the next job is to end unbegun."""
        return min((waiting.overdue(now)[0] for waiting in self._waiting), default=math.inf)
