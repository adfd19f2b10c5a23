"""Waiting with a deadline: the clock every wait reads, and intervals that back off with jitter."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

STOP = threading.Event()
"""Set when the run is being cancelled; worker threads, which Prefect never interrupts, wait on it."""


class Cancelled(BaseException):
    """The run was cancelled while a worker thread waited; not an Exception, so that nothing retries it."""


@dataclass
class Clock:
    """Time as the tasks see it; tests hand in one that only counts."""

    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[float], bool] = field(default=STOP.wait)

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise Cancelled at once when the run is being cancelled."""
        if self.wait(seconds):
            raise Cancelled


def intervals(
    first_seconds: float, longest_seconds: float, factor: float = 1.3, jitter: float = 0.2
) -> Iterator[float]:
    """first, then x factor up to longest, each ± jitter so that many watchers don't call in step."""
    current = first_seconds
    while True:
        yield current * random.uniform(1 - jitter, 1 + jitter)
        current = min(current * factor, longest_seconds)
