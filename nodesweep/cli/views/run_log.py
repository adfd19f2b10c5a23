"""The run's log: every event and every line of every node, in one file next to the report.

The file is opened once the sweep has its name; earlier events are buffered. A resumed sweep appends
to it. If it cannot be written, that is reported once and the run continues.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from nodesweep.cli.output import escape_control_characters
from nodesweep.configs.atomic import PRIVATE, make_folder
from nodesweep.events import Event
from nodesweep.scaling import names

MAX_EARLY_EVENTS = 10_000


class RunLog:
    """A view that appends all events to a file; `say` receives events about the log itself."""

    def __init__(self, say: Callable[[Event], None]) -> None:
        self._say = say
        self._early: deque[Event] = deque(maxlen=MAX_EARLY_EVENTS)
        self._file: TextIO | None = None
        self._is_given_up = False
        self.path: Path | None = None
        """None until the sweep has its name, or if the file cannot be written."""

    def show(self, event: Event) -> None:
        """Write the event, or buffer it until the file is open."""
        if self._is_given_up:
            return
        if event.event == "sweep-named" and self._file is None:
            self._open(Path(str(event.facts["folder"])) / names.RUN_LOG)
        if self._file is None:
            self._early.append(event)
            return
        try:
            self._write(self._file, event)
        except (OSError, ValueError) as error:  # e.g. a full disk, or the file was closed
            self._give_up(error)

    def close(self) -> None:
        """Close the file; later events are dropped."""
        if self._file is not None:
            file, self._file, self._is_given_up = self._file, None, True
            file.close()

    def _open(self, path: Path) -> None:
        try:
            make_folder(path.parent)
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
            self._file = os.fdopen(handle, "a", 1, encoding="utf-8", errors="replace")
            self.path = path
            for event in self._early:
                self._write(self._file, event)
        except OSError as error:
            self._give_up(error)
            return
        self._early.clear()
        text = f"the full log of this run: {path}"
        self._say(Event(datetime.now(UTC), "run-log", text, facts={"path": str(path)}))

    def _give_up(self, error: Exception) -> None:
        self._is_given_up, self.path = True, None
        self._early.clear()
        text = f"cannot write the log of this run: {error}"
        self._say(Event(datetime.now(UTC), "run-log", text, level=logging.WARNING))

    @staticmethod
    def _write(file: TextIO, event: Event) -> None:
        host = event.facts.get("host")
        who = f" {event.job} {host}:" if host else ""
        level = logging.getLevelName(event.level)
        begin = f"{event.time.isoformat(timespec='milliseconds')} {level} {event.source}{who} "
        lines = [*event.text.splitlines(), *map(str, event.facts.get("lines") or ())] or [""]
        file.write("".join(f"{begin}{escape_control_characters(line)}\n" for line in lines))
