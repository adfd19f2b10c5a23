"""One JSON object per event, for programs: `nodesweep run --log-format json`.

Every object has time (ISO 8601, UTC), stage, event, level, source, job, nodes and text, null where
there is none; what else an event has (tasks/events.py) stands beside them. Which events there are
is as in plain lines.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from nodesweep.cli.views.plain import Quiet, write_at_once
from nodesweep.tasks.events import Event


class JsonLines:
    """JSON lines on a stream."""

    def __init__(
        self, stream: TextIO, verbose: bool, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._quiet = Quiet(verbose, monotonic)
        self._lock = threading.RLock()

    def show(self, event: Event) -> None:
        with self._lock:
            if not self._quiet.shows(event):
                return
            left_out = self._quiet.left_out(event)
            more = {"lines_left_out": left_out} if left_out else {}
            print(json_line(event, **more), file=self._stream, flush=True)

    def interrupt(self, words: str, again: str) -> None:
        self._say_at_once("interrupted", f"{words}. {again}")

    def abandon(self, words: str) -> None:
        """The terminal was never touched."""
        self._say_at_once("ended-at-once", words)

    def _say_at_once(self, event: str, words: str) -> None:
        line = json_line(Event(datetime.now(UTC), event, words, level=logging.WARNING))
        write_at_once(self._stream, line)

    def close(self) -> None:
        """Nothing is left to tidy up."""


def line_of_command(event: str, text: str, is_error: bool, facts: Mapping[str, Any]) -> str:
    """A line that is the command's own."""
    level = logging.ERROR if is_error else logging.INFO
    return json_line(Event(datetime.now(UTC), event, text, level=level, facts=facts))


def json_line(event: Event, **more: Any) -> str:
    """The event as one line of ASCII."""
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
