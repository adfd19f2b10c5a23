"""The time window in which a job trained, as reported by its program.

Reports show the attainment of the nodes in this window, which excludes, for example, the import of
libraries before training (docs/method.md, "Attainment").
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_METRICS_FILE = "metrics.json"
_MOST_FILE_BYTES = 2**20
_MOST_DEPTH, _MOST_FOLDERS = 3, 200
"""Limits of the search in output folders, which must not delay the end of a job."""
_MOST_LINE_CHARACTERS = 10_000
# The same fields that the report parses (docs/own-code.md, "Lines in the log").
_FIELD = re.compile(
    r"(?:^|[\s;,])(train_seconds|run_start_unix_seconds|step)=([-+]?[0-9.]+(?:[eE][-+]?\d+)?)"
    r"(?=[;,\s]|$)"
)


class TrainWindow:
    """Finds the window of a run. Call `feed` (thread-safe) for every log line, then `of`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first_step_at = math.inf
        self._started_at = math.inf
        self._longest: tuple[float, float] | None = None  # train_seconds, and when it was logged

    def feed(self, line: str, at_unix_seconds: float) -> None:
        """Parse a line that a node logged at `at_unix_seconds`."""
        for name, value in _FIELD.findall(line[:_MOST_LINE_CHARACTERS]):
            if (number := _number(value)) is not None:
                self.note(name, number, at_unix_seconds)

    def note(self, name: str, value: float, at_unix_seconds: float) -> None:
        """Record a value from a log line or a metric definition."""
        with self._lock:
            if name == "train_seconds" and value > 0:
                self._longest = max(self._longest or (0.0, 0.0), (value, at_unix_seconds))
            elif name == "run_start_unix_seconds":
                self._started_at = min(self._started_at, value)
            elif name == "step":
                self._first_step_at = min(self._first_step_at, at_unix_seconds)

    def of(self, output_folders: Iterable[Path]) -> tuple[float, float] | None:
        """Return the start and end of the window in Unix seconds, or None if unknown.

        They come from metrics.json in the output of the nodes or, if it has none, from the log. An
        infinite end means that the window lasts until the nodes end.
        """
        paths = (path for folder in output_folders for path in _metrics_files(folder))
        told = [window for path in paths if (window := _of_file(path))]
        if told:
            return min(told)
        with self._lock:
            if self._longest is not None:
                seconds, ended_at = self._longest
                return ended_at - seconds, ended_at
            start = self._started_at if self._started_at < math.inf else self._first_step_at
            return (start, math.inf) if start < math.inf else None


def _metrics_files(folder: Path) -> list[Path]:
    """Return the metrics.json files at the shallowest level of an output folder that has any.

    Links are not followed.
    """
    level = [str(folder)]
    looked_in = 0
    for _ in range(_MOST_DEPTH + 1):
        found = [path for each in level if os.path.lexists(path := Path(each, _METRICS_FILE))]
        if found:
            return found
        below = []
        for each in level:
            looked_in += 1
            if looked_in > _MOST_FOLDERS:
                return []
            with contextlib.suppress(OSError), os.scandir(each) as entries:
                below += [one.path for one in entries if one.is_dir(follow_symlinks=False)]
        level = sorted(below)
    return []


def _of_file(path: Path) -> tuple[float, float] | None:
    """Return the window in a file, or None if the file is unusable.

    If the file has no start time, the window ends when the file was written.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_FILE_BYTES:
            return None  # reading a pipe could block
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    seconds = _number(content.get("train_seconds"))
    if seconds is None or seconds <= 0:
        return None
    start = _number(content.get("run_start_unix_seconds"))
    if start is None:
        return status.st_mtime - seconds, status.st_mtime
    stop = _number(content.get("run_stop_unix_seconds"))
    return start, max(start + seconds, stop or 0.0)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
