"""Times a run of optimiser steps without a collective or a wait for the accelerator
in any of them.
"""

from __future__ import annotations

import time
from typing import Any

from training.measuring.metrics import RankSteps


class Stopwatch:
    """Adds up the seconds while it runs."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """How long the timer has run so far, its stops left out."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._before + running

    def start(self) -> None:
        """Go on, where it does not already."""
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        """Stand still until the next start."""
        self._before, self._since = self.seconds, None


class StepTimer:
    """Times optimiser steps by a clock's marks (HostClock, CudaClock),
    which are read after the run.

    A step lasts from the end of the one before; after a pause (evaluation, checkpoint), from its
    first request for data.
    """

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._zero: Any = None
        self._intervals: list[tuple[Any, Any]] = []
        self._data_wait_seconds: list[float] = []
        self._start: Any = None
        self._waited_before = 0.0

    def begin(self) -> None:
        """All ranks are at this line together: their marks count from here."""
        self._zero = self._clock.mark()

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
        """When each step started and stopped; the accelerator must have been synchronised.

        Added up from short intervals: CUDA's are 32-bit numbers of milliseconds, which tell hours
        to the millisecond only.
        """
        at, last = 0.0, self._zero
        starts, stops = [], []
        for start, stop in self._intervals:
            at += 0.0 if start is last else self._clock.seconds_between(last, start)
            starts.append(at)
            at += self._clock.seconds_between(start, stop)
            stops.append(at)
            last = stop
        return RankSteps(starts, stops, self._data_wait_seconds)
