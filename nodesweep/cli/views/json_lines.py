"""One JSON object per event, for programs: `nodesweep run --log-format json`.

Every object has time (ISO 8601, UTC), stage, event, level, source, job, nodes and text, null if
absent, plus the event's own facts (nodesweep/events.py). The events are the same as in plain lines.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from nodesweep.cli.views.plain import EventFilter, write_unbuffered
from nodesweep.events import Event


class JsonLines:
    """A view that writes JSON lines to a stream."""

    def __init__(
        self, stream: TextIO, verbose: bool, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._filter = EventFilter(verbose, monotonic)
        self._lock = threading.RLock()

    def show(self, event: Event) -> None:
        """Write the event, unless it is filtered out."""
        with self._lock:
            if not self._filter.shows(event):
                return
            left_out = self._filter.left_out(event)
            more = {"lines_left_out": left_out} if left_out else {}
            print(json_line(event, **more), file=self._stream, flush=True)

    def interrupt(self, words: str, again: str) -> None:
        """Report Ctrl-C, bypassing the stream's buffer."""
        self._write_now("interrupted", f"{words}. {again}")

    def abandon(self, words: str) -> None:
        """Report that the process exits immediately."""
        self._write_now("ended-at-once", words)

    def _write_now(self, event: str, words: str) -> None:
        line = json_line(Event(datetime.now(UTC), event, words, level=logging.WARNING))
        write_unbuffered(self._stream, line)

    def close(self) -> None:
        """Do nothing, since the stream belongs to the caller."""


def line_of_command(event: str, text: str, is_error: bool, facts: Mapping[str, Any]) -> str:
    """Return a message of the command itself as a JSON line."""
    level = logging.ERROR if is_error else logging.INFO
    return json_line(Event(datetime.now(UTC), event, text, level=level, facts=facts))


def json_line(event: Event, **more: Any) -> str:
    """Return the event as one line of ASCII."""
    known = {
        "time": event.time.isoformat(timespec="milliseconds"),
        "stage": event.stage,
        "event": event.event,
        "level": logging.getLevelName(event.level).lower(),
        "source": event.source,
        "job": event.job,
        "nodes": event.nodes,
        "text": event.text,
    }
    facts = {name: value for name, value in event.facts.items() if name not in known}
    return json.dumps({**known, **facts, **more}, default=str)
