"""Clocks for waits, poll intervals with backoff and jitter, and a rate limit for calls."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any


class StopSignal:
    """The signal that the run is being cancelled.

    Worker threads wait on it, because Prefect never interrupts them.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.interrupted = False
        """True once a signal has raised its exception in the main thread.

        Code there can swallow the exception (Python prints "Exception ignored in" and continues),
        so the next wait ends too. A signal handler sets this instead of calling set(), whose lock
        the main thread may hold.
        """
        self.cancelled = False
        """True once Prefect's server has reported that a user cancelled or suspended the run."""
        self.timed_out = False
        """True once the run's time limit has passed."""
        self.suspended: Any = None
        """Prefect's state of a suspended run, which is needed to resume it; None if not suspended.
        """
        self.cause: BaseException | None = None
        """The exception that ended a cancelled run: first from a task, then from the flow."""

    def set(self) -> None:
        """End every current and future wait."""
        self._event.set()

    def clear(self) -> None:
        """Reset for a new run: waits take their full time again."""
        self._event.clear()
        self.interrupted = self.cancelled = self.timed_out = False
        self.suspended = self.cause = None

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds`; return True as soon as the run is being cancelled."""
        return self.interrupted or self._event.wait(seconds) or self.interrupted


STOP = StopSignal()

# Includes the time while the machine is suspended, unlike time.monotonic(): Linux's CLOCK_BOOTTIME,
# and macOS's CLOCK_MONOTONIC.
_ALWAYS_RUNNING: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BEGAN_AT, _BEGAN_SECONDS = datetime.now(UTC), time.clock_gettime(_ALWAYS_RUNNING)


def utc_now() -> datetime:
    """Return the UTC time, measured from the process's start by a clock that suspend does not stop.

    Changes to the system clock therefore do not affect deadlines.
    """
    return _BEGAN_AT + timedelta(seconds=time.clock_gettime(_ALWAYS_RUNNING) - _BEGAN_SECONDS)


class Cancelled(BaseException):
    """The run was cancelled while a worker thread waited.

    It is not an Exception, so that nothing retries it.
    """


@dataclass
class Clock:
    """Source of time for tasks; tests pass a fake clock.

    `monotonic`, for pauses and short timeouts, stops while the machine is suspended; `now`, for
    comparison with the platform's times, does not.
    """

    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[float], bool] = field(default=STOP.wait)
    now: Callable[[], datetime] = utc_now

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`.

        Raises:
            Cancelled: immediately, if the run is being cancelled.
        """
        if self.wait(seconds):
            raise Cancelled


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


ENDING_CLOCK = Clock(wait=_sleep)
"""Clock for waits that a cancellation must not end, such as the wait for stopping jobs."""


class Progress:
    """Logs a state when it changes, and every 15 s while it lasts.

    A long wait must not look like a hang.
    """

    STILL_SECONDS = 15.0

    def __init__(self, name: str, logger: logging.Logger, clock: Clock) -> None:
        self._name, self._logger, self._clock = name, logger, clock
        self._state: str | None = None
        self._since = self._logged_at = clock.monotonic()

    def note(
        self, state: str, details: str = "", extra: Mapping[str, object] | None = None
    ) -> bool:
        """Log the state if it is new or due again; return True if it is new.

        Args:
            state: the current state.
            details: shown in parentheses when the state is new.
            extra: the log record's `extra` when the state is new.
        """
        now = self._clock.monotonic()
        changed = state != self._state
        if changed:
            self._state, self._since = state, now
            words = f" ({details})" if details else ""
            self._logger.info("%s: %s%s", self._name, state, words, extra=extra)
        elif now - self._logged_at >= self.STILL_SECONDS:
            self._logger.info("%s: still %s (%.0f s)", self._name, state, now - self._since)
        else:
            return False
        self._logged_at = now
        return changed


def intervals(
    first_seconds: float, longest_seconds: float, factor: float = 1.3, jitter: float = 0.2
) -> Iterator[float]:
    """Yield `first_seconds`, then pauses that grow by `factor` up to `longest_seconds`.

    Each pause varies by up to the fraction `jitter`, so that many watchers do not poll in lockstep.
    """
    current = first_seconds
    while True:
        yield current * random.uniform(1 - jitter, 1 + jitter)
        current = min(current * factor, longest_seconds)


class CallBudget:
    """A token bucket: at most `burst` + t x `calls_per_second` calls in any t seconds.

    All users of the bucket share its calls. If `calls_per_second` is None, there is no limit.
    Retries within boto3 are not counted, because its adaptive mode throttles them.
    """

    def __init__(self, calls_per_second: float | None, burst: int, clock: Clock) -> None:
        self._calls_per_second, self._burst, self._clock = calls_per_second, burst, clock
        self._left, self._at = float(burst), clock.monotonic()
        self._lock = threading.Lock()

    def take(self) -> None:
        """Wait until the budget allows a call.

        Raises:
            Cancelled: the run is being cancelled.
        """
        if self._calls_per_second is None:
            return
        with self._lock:
            self._refill(self._calls_per_second)
            self._left -= 1
            missing = -self._left
        if missing > 0:
            self._clock.sleep(missing / self._calls_per_second)

    def try_take(self, spare: int = 0) -> bool:
        """Take a call without waiting; return False if fewer than `spare` calls would be left."""
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
