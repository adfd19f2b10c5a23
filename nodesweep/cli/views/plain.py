"""One line per event, for a pipe, CI and a terminal that can't be drawn on: no control characters.

    [  12.3 s] sweep    job 1/4: 1 x ml.local.small, repeat 1

Of a node's log only what the program says, at most 20 lines at once and 60 a minute of a job; all
of it is in the run's log. With `verbose`, everything.
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
from nodesweep.tasks.events import Event
from nodesweep.tasks.polling import CallBudget, Clock

LINES_PER_MINUTE, BURST_LINES = 60.0, 20
PROGRESS_SECONDS = 10.0
"""Between two lines on how far a long step is."""
_OVER = frozenset({"Completed", "Failed", "Stopping", "Stopped"})
_NEVER_ALONE = frozenset({"stage-begun", "sweep-named", "sweep-recorded", "build-ended"})
"""Events that a reader of lines learns from the next line anyway."""


class Quiet:
    """Which events are shown one by one."""

    def __init__(self, verbose: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._verbose, self._monotonic = verbose, monotonic
        self._budgets: dict[str, CallBudget] = {}
        self._left_out: dict[str, int] = {}
        self._progress_at: dict[str, float] = {}

    def shows(self, event: Event) -> bool:
        """Whether this event is shown."""
        if self._verbose:
            return True
        if event.event == "node-line":
            return self._shows_line(event)
        if event.event == "progress":
            return self._shows_progress(event)
        return event.event not in _NEVER_ALONE and event.event != "build-line"

    def left_out(self, event: Event) -> int:
        """How many of the program's lines of this job were not shown since the last one that was;
        asked once.
        """
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
        what, now = str(event.facts.get("what")), self._monotonic()
        if now - self._progress_at.setdefault(what, now) < PROGRESS_SECONDS:
            return False
        self._progress_at[what] = now
        return True


class PlainLines:
    """Shows a run as lines of text on a stream."""

    def __init__(
        self, stream: TextIO, verbose: bool, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._monotonic, self._started = stream, monotonic, monotonic()
        self._quiet = Quiet(verbose, monotonic)
        self._log_path: str | None = None
        self._lock = threading.RLock()

    def show(self, event: Event) -> None:
        with self._lock:
            if not self._quiet.shows(event):
                return
            seconds = self._monotonic() - self._started
            self._log_path = event.facts.get("path") or self._log_path
            left_out = self._quiet.left_out(event)
            for line in event_lines(event, seconds, left_out, self._log_path):
                print(line, file=self._stream, flush=True)

    def interrupt(self, words: str, again: str) -> None:
        write_at_once(self._stream, f"nodesweep: {words}. {again}")

    def abandon(self, words: str) -> None:
        """The terminal was never touched."""
        write_at_once(self._stream, f"nodesweep: {words}")

    def close(self) -> None:
        """Nothing is left to tidy up."""


def write_at_once(stream: IO[str], line: str) -> None:
    """A line in a signal handler: past the stream's buffer, which may be in use."""
    with suppress(OSError, ValueError):  # nobody reads; a stream that is no file
        os.write(stream.fileno(), f"{line}\n".encode(errors="replace"))


def event_lines(
    event: Event, seconds: float, left_out: int = 0, log_path: str | None = None
) -> Iterator[str]:
    """The event in lines, each of them safe on a terminal."""
    begin = f"[{seconds:6.1f} s] {event.source:<8} "
    if left_out:
        yield f"{begin}… {left_out} lines of {short_name(event.job)} left out"
    first, *rest = (escape_control_characters(line) for line in _texts(event))
    yield begin + first
    yield from (f"    {line}" for line in rest)
    if event.event == "point-ended" and event.facts.get("status") != "Completed" and log_path:
        yield f"    the whole log of this run: {log_path}"


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
    """Of a job that waits for its nodes: until when it may. A reader of lines may sit anywhere, so
    that is UTC.
    """
    wait_until = event.facts.get("wait_until")
    if event.event != "job-state" or wait_until is None or event.facts["state"] in _OVER:
        return ""
    until = datetime.fromtimestamp(wait_until, UTC)
    day = "" if until.date() == event.time.astimezone(UTC).date() else f"{until:%Y-%m-%d} "
    return f", waits at most till {day}{until:%H:%M} UTC"


def short_name(job: str | None) -> str:
    """n4-r1-a1 of a job's whole name, which begins with its sweep's."""
    from nodesweep.scaling import names

    return (names.short_job_name(job) if job else None) or str(job or "")
