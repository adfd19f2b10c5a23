"""What a build says while it runs: its new lines in the run's log, a few at a time, and the last
ones for an error.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable

from scaling.secrets import LogHider

LAST_LINES = 20
MAX_LINES_AT_ONCE = 10


class BuildOutput:
    """Lines of one build, as they come."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._hider = LogHider()
        self._last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)

    def add(self, lines: Iterable[str]) -> None:
        """Log what is new since the last call: the last few lines, and how many were left out."""
        new = self._hider.hide(line for line in lines if line.strip())
        self._last.extend(new)
        left_out = len(new) - MAX_LINES_AT_ONCE
        if left_out > 0:
            self._logger.info("build: … %d lines left out", left_out)
        for line in new[-MAX_LINES_AT_ONCE:]:
            self._logger.info("build: %s", line)

    def tail(self) -> str:
        """The last lines, indented and each after a line break; empty where nothing was said."""
        return "".join(f"\n    {line}" for line in self._last)
