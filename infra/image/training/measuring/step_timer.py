"""Times optimizer steps without adding collectives or accelerator synchronizations to them."""

from __future__ import annotations

import time
from typing import Any

from training.measuring.metrics import RankSteps


class Stopwatch:
    """Sums the seconds during which it runs."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds run so far, excluding pauses."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._before + running

    def start(self) -> None:
        """Start, or continue if already running."""
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        """Pause until the next start."""
        self._before, self._since = self.seconds, None


class StepTimer:
    """Times optimizer steps by a clock's marks (HostClock, CudaClock), read after the run.

    A step begins where the previous one ended, or after a pause (evaluation, checkpoint) at its
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
        """Set time zero, right after a barrier of all ranks."""
        self._zero = self._clock.mark()

    def data_requested(self) -> None:
        """Start a step, if this is the first request since the start or a pause."""
        if self._start is None:
            self._start = self._clock.mark()

    def step_ended(self, waited_seconds: float) -> None:
        """End a step; `waited_seconds` is the loader's running total."""
        stop = self._clock.mark()
        self._intervals.append((self._start, stop))
        self._data_wait_seconds.append(waited_seconds - self._waited_before)
        self._start, self._waited_before = stop, waited_seconds

    def paused(self) -> None:
        """Exclude the time until the next request for data."""
        self._start = None

    def restart(self, waited_seconds: float) -> None:
        """Start the next step now; its batch has already been loaded.

        Args:
            waited_seconds: The loader's running total.
        """
        self._start, self._waited_before = self._clock.mark(), waited_seconds

    def read(self) -> RankSteps:
        """Return each step's start and stop times; the accelerator must have been synchronized.

        Times are sums of short intervals, because CUDA's are 32-bit floats of milliseconds, which
        resolve hours only to the millisecond.
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
