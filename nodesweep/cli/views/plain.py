"""One line per event, for pipes, CI and basic terminals; without control characters.

    [  12.3 s] sweep    job 1/4: 1 x ml.local.small, repeat 1

Only the program's lines of a node's log are shown, at most 20 at once and 60 a minute per job; the
run's log has all lines. With `verbose`, everything is shown.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import IO, TextIO

from nodesweep.cli.output import escape_control_characters
from nodesweep.events import Event
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling.formats import format_time

LINES_PER_MINUTE, BURST_LINES = 60.0, 20
PROGRESS_SECONDS = 10.0
"""Minimum time between two progress lines of a long step."""
_OVER = frozenset({"Completed", "Failed", "Stopping", "Stopped"})
_NEVER_ALONE = frozenset({"stage-begun", "sweep-named", "sweep-recorded", "build-ended"})
"""Events that are not shown, because the next event's line includes the information."""


class EventFilter:
    """Selects the events that a view prints as lines."""

    def __init__(self, verbose: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._verbose, self._monotonic = verbose, monotonic
        self._budgets: dict[str, CallBudget] = {}
        self._left_out: dict[str, int] = {}
        self._progress_at: dict[str, float] = {}

    def shows(self, event: Event) -> bool:
        """Return True if the event is shown."""
        if self._verbose:
            return True
        if event.event == "node-line":
            return self._shows_line(event)
        if event.event == "progress":
            return self._shows_progress(event)
        return event.event not in _NEVER_ALONE and event.event != "build-line"

    def left_out(self, event: Event) -> int:
        """Return the number of the job's lines dropped since the last one shown, and reset it."""
        return self._left_out.pop(event.job or "", 0)

    def _shows_line(self, event: Event) -> bool:
        if event.facts.get("kind") != "program" or not event.text.strip():
            return False
        job = event.job or ""
        clock = Clock(monotonic=self._monotonic)
        budget = self._budgets.setdefault(
            job, CallBudget(LINES_PER_MINUTE / 60.0, BURST_LINES, clock)
        )
        if budget.try_take():
            return True
        self._left_out[job] = self._left_out.get(job, 0) + 1
        return False

    def _shows_progress(self, event: Event) -> bool:
        step, now = str(event.facts.get("what")), self._monotonic()
        if now - self._progress_at.setdefault(step, now) < PROGRESS_SECONDS:
            return False
        self._progress_at[step] = now
        return True


class PlainLines:
    """A view that writes lines of text to a stream."""

    def __init__(
        self, stream: TextIO, verbose: bool, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._monotonic, self._started = stream, monotonic, monotonic()
        self._filter = EventFilter(verbose, monotonic)
        self._log_path: str | None = None
        self._lock = threading.RLock()

    def show(self, event: Event) -> None:
        """Write the event, unless it is filtered out."""
        with self._lock:
            if not self._filter.shows(event):
                return
            seconds = self._monotonic() - self._started
            self._log_path = event.facts.get("path") or self._log_path
            left_out = self._filter.left_out(event)
            for line in event_lines(event, seconds, left_out, self._log_path):
                print(line, file=self._stream, flush=True)

    def interrupt(self, words: str, again: str) -> None:
        """Report Ctrl-C, bypassing the stream's buffer."""
        write_unbuffered(self._stream, f"nodesweep: {words}. {again}")

    def abandon(self, words: str) -> None:
        """Report that the process exits immediately."""
        write_unbuffered(self._stream, f"nodesweep: {words}")

    def close(self) -> None:
        """Do nothing, since the stream belongs to the caller."""


def write_unbuffered(stream: IO[str], line: str) -> None:
    """Write a line from a signal handler, bypassing the stream's buffer, which may be in use."""
    with suppress(OSError, ValueError):  # the reader is gone, or the stream is not a file
        os.write(stream.fileno(), f"{line}\n".encode(errors="replace"))


def event_lines(
    event: Event, seconds: float, left_out: int = 0, log_path: str | None = None
) -> Iterator[str]:
    """Yield the event's lines, each of them safe to print on a terminal."""
    begin = f"[{seconds:6.1f} s] {event.source:<8} "
    if left_out:
        yield f"{begin}… {left_out} lines of {short_name(event.job)} left out"
    first, *rest = (escape_control_characters(line) for line in _texts(event))
    yield begin + first
    yield from (f"    {line}" for line in rest)
    if event.event == "point-ended" and event.facts.get("status") != "Completed" and log_path:
        yield f"    the full log of this run: {log_path}"


def _texts(event: Event) -> Iterator[str]:
    if event.event == "node-line":
        yield f"{short_name(event.job)} {event.facts.get('host')}: {event.text}"
        return
    level = (
        "" if event.level < logging.WARNING else f"{logging.getLevelName(event.level).lower()}: "
    )
    yield from f"{level}{event.text}{_until(event)}".splitlines() or [""]
    if event.event == "point-ended":
        yield from (str(line) for line in event.facts.get("lines") or ())


def _until(event: Event) -> str:
    """Return a waiting job's deadline as text, in UTC, since readers can be in any time zone."""
    wait_until = event.facts.get("wait_until")
    if event.event != "job-state" or wait_until is None or event.facts["state"] in _OVER:
        return ""
    until = datetime.fromtimestamp(wait_until, UTC)
    return f", waits until {format_time(until, event.time.astimezone(UTC))} UTC at the latest"


def short_name(job: str | None) -> str:
    """Return the part of a job's name after its sweep's name, e.g. n4-r1-a1."""
    from nodesweep.scaling import names

    key = names.parse_job_name(job) if job else None
    return str(job or "") if key is None else key.text
