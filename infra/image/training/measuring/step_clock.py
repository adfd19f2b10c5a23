"""Times a run of optimiser steps without a collective or a wait for the accelerator
in any of them.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from training.measuring.metrics import RankSteps


class HostClock:
    """For a CPU, where the host does the work itself."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds_between(self, start: float, stop: float) -> float:
        return stop - start


class CudaClock:
    """For a GPU, which runs behind the host: events in its own stream,
    read once it has come to a stand-still.
    """

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        return start.elapsed_time(stop) / 1000.0


def clock_for_device() -> HostClock | CudaClock:
    """The clock of the accelerator in use."""
    return CudaClock() if torch.cuda.is_available() else HostClock()


class StepTimer:
    """Times optimiser steps by a clock's marks (HostClock, CudaClock),
    which are read after the run.

    A step lasts from the end of the one before; after a pause (evaluation, checkpoint), from its
    first request for data.
    """

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._intervals: list[tuple[Any, Any]] = []
        self._data_wait_seconds: list[float] = []
        self._start: Any = None
        self._waited_before = 0.0

    def data_requested(self) -> None:
        """The loop asks for a batch: the first request after the start or a pause starts a step."""
        if self._start is None:
            self._start = self._clock.mark()

    def step_ended(self, waited_seconds: float) -> None:
        """The optimiser has stepped; `waited_seconds` is the loader's running total."""
        stop = self._clock.mark()
        self._intervals.append((self._start, stop))
        self._data_wait_seconds.append(waited_seconds - self._waited_before)
        self._start, self._waited_before = stop, waited_seconds

    def paused(self) -> None:
        """What follows, up to the next request for data, is no step's time."""
        self._start = None

    def restart(self, waited_seconds: float) -> None:
        """The next step starts now, its batch at hand;
        `waited_seconds` is the loader's running total.
        """
        self._start, self._waited_before = self._clock.mark(), waited_seconds

    def read(self) -> RankSteps:
        """Seconds per step; the accelerator must have been synchronised."""
        seconds = [self._clock.seconds_between(start, stop) for start, stop in self._intervals]
        return RankSteps(seconds, self._data_wait_seconds)
