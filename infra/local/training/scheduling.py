"""The queue of accepted jobs: which may begin when, and which is to end without having begun."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from infra.local.faults.injector import JobFaults
from infra.local.training.record import TrainingJob


@dataclass
class Waiting:
    """A job that waits. Times are Unix seconds."""

    job: TrainingJob
    not_before: float
    faults: JobFaults
    is_virtual: bool = False
    """Its waits pass on a virtual clock, once it has begun."""

    def ready_at(self) -> float:
        """When it may begin; never if no capacity is to come."""
        return self.not_before if self.is_virtual or self.faults.capacity_error is None else math.inf

    def overdue_at(self) -> float:
        """When it ends unbegun."""
        if self.is_virtual:
            return math.inf
        no_capacity = math.inf if self.faults.capacity_error is None else self.not_before
        return min(no_capacity, self.job.wait_deadline)

    def unbegun_status(self, now: float) -> str:
        """How it ends then."""
        return "MaxWaitTimeExceeded" if self.job.wait_deadline <= now else "Failed"


class JobQueue:
    """Jobs in the order they came; one that has to wait lets those after it pass. Not locked: its owner is."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(list(self._waiting))

    def append(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)

    def remove(self, job: TrainingJob) -> bool:
        """Take a job out; False where it doesn't wait."""
        kept = [waiting for waiting in self._waiting if waiting.job is not job]
        removed = len(kept) < len(self._waiting)
        self._waiting = kept
        return removed

    def take_overdue(self, now: float) -> list[tuple[Waiting, str]]:
        """Jobs that end unbegun, with the status they end in: no capacity came, or MaxWaitTimeInSeconds is over."""
        ended = [(waiting, waiting.unbegun_status(now)) for waiting in self if waiting.overdue_at() <= now]
        for waiting, _ in ended:
            self.remove(waiting.job)
        return ended

    def take_ready(self, now: float) -> Waiting | None:
        """The first job that may begin, None where none may."""
        for waiting in self._waiting:
            if waiting.ready_at() <= now < waiting.overdue_at():
                self.remove(waiting.job)
                return waiting
        return None

    def next_ready(self) -> float:
        """When the next job may begin; never where none waits for that."""
        return min((waiting.ready_at() for waiting in self._waiting), default=math.inf)

    def next_overdue(self) -> float:
        """When the next job is to end unbegun."""
        return min((waiting.overdue_at() for waiting in self._waiting), default=math.inf)
