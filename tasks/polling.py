"""Waiting: the clock every wait reads, intervals that back off with jitter,
and a budget of calls.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any


class StopSign:
    """Whether the run is being cancelled. Worker threads, which Prefect never interrupts, wait on
    it.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.interrupted = False
        """A signal has raised its exception in the main thread. What runs there at that moment may
        swallow it (Python prints "Exception ignored in" and goes on), so the next wait ends too. A
        signal handler sets this in place of calling set(), whose lock the main thread may hold.
        """
        self.cancelled = False
        """Prefect's server has said that somebody cancels or suspends the run."""
        self.suspended: Any = None
        """Prefect's state of a suspended run, which a resume goes on from; None: nobody has."""
        self.cause: BaseException | None = None
        """What ended the first task of the run that a cancel ended; then, the run itself."""

    def set(self) -> None:
        """End every wait, present and to come."""
        self._event.set()

    def clear(self) -> None:
        """A new run begins: waits last as long as asked for again."""
        self._event.clear()
        self.interrupted = self.cancelled = False
        self.suspended = self.cause = None

    def wait(self, seconds: float) -> bool:
        """Wait; True, at once, when the run is being cancelled."""
        return self.interrupted or self._event.wait(seconds) or self.interrupted


STOP = StopSign()

_BEGAN_AT, _BEGAN_MONOTONIC = datetime.now(UTC), time.monotonic()


def utc_now() -> datetime:
    """The date and time, counted on from the start of this process: a clock that is set meanwhile
    moves no deadline.
    """
    return _BEGAN_AT + timedelta(seconds=time.monotonic() - _BEGAN_MONOTONIC)


class Cancelled(BaseException):
    """The run was cancelled while a worker thread waited;
    not an Exception, so that nothing retries it.
    """


@dataclass
class Clock:
    """Time as the tasks see it; tests hand in one that only counts."""

    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[float], bool] = field(default=STOP.wait)
    now: Callable[[], datetime] = utc_now

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise Cancelled at once when the run is being cancelled."""
        if self.wait(seconds):
            raise Cancelled


class Progress:
    """Says a state when it changes, and every 15 s that it is still so:
    a long wait must not look like a hang.
    """

    STILL_SECONDS = 15.0

    def __init__(self, what: str, logger: logging.Logger, clock: Clock) -> None:
        self._what, self._logger, self._clock = what, logger, clock
        self._state: str | None = None
        self._since = self._said = clock.monotonic()

    def note(
        self, state: str, details: str = "", extra: Mapping[str, object] | None = None
    ) -> bool:
        """True where the state is a new one. `extra`: that of the log record of a new state."""
        now = self._clock.monotonic()
        changed = state != self._state
        if changed:
            self._state, self._since = state, now
            words = f" ({details})" if details else ""
            self._logger.info("%s: %s%s", self._what, state, words, extra=extra)
        elif now - self._said >= self.STILL_SECONDS:
            self._logger.info("%s: still %s (%.0f s)", self._what, state, now - self._since)
        else:
            return False
        self._said = now
        return changed


def intervals(
    first_seconds: float, longest_seconds: float, factor: float = 1.3, jitter: float = 0.2
) -> Iterator[float]:
    """first, then x factor up to longest,
    each ± jitter so that many watchers don't call in step.
    """
    current = first_seconds
    while True:
        yield current * random.uniform(1 - jitter, 1 + jitter)
        current = min(current * factor, longest_seconds)


class CallBudget:
    """A token bucket: over any t seconds at most `burst` + t x `calls_per_second` calls,
    whoever shares it.

    With None any number of calls. Retries inside boto3 come on top; its adaptive mode slows those
    by itself.
    """

    def __init__(self, calls_per_second: float | None, burst: int, clock: Clock) -> None:
        self._calls_per_second, self._burst, self._clock = calls_per_second, burst, clock
        self._left, self._at = float(burst), clock.monotonic()
        self._lock = threading.Lock()

    def take(self) -> None:
        """Wait for a call's turn; raises Cancelled when the run is being cancelled meanwhile."""
        if self._calls_per_second is None:
            return
        with self._lock:
            self._refill(self._calls_per_second)
            self._left -= 1
            missing = -self._left
        if missing > 0:
            self._clock.sleep(missing / self._calls_per_second)

    def try_take(self, spare: int = 0) -> bool:
        """Take a call where that leaves at least `spare`; never waits."""
        if self._calls_per_second is None:
            return True
        with self._lock:
            self._refill(self._calls_per_second)
            if self._left < 1 + spare:
                return False
            self._left -= 1
            return True

    def _refill(self, calls_per_second: float) -> None:
        now = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * calls_per_second)
        self._at = now
