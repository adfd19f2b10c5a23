"""Detects whether a process that you wait for is still making progress.

A busy machine can take ten times as long as an idle machine to start the same program, so waits
are limited by CPU time rather than wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

STILL_SECONDS = 60.0
"""A process that uses no CPU time for this long is considered stuck."""
LONGEST_SECONDS = 900.0
"""Maximum wait, even for a process that uses CPU time endlessly."""
_CPU_TIMES = slice(11, 15)
"""Positions in /proc/<pid>/stat after the command name (fields 14 to 17 in proc(5)).

These are the CPU times of the process and of its children that have ended.
"""


def cpu_ticks(pid: int) -> int:
    """Return the CPU time of a process and its ended children in clock ticks, or 0 if it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(map(int, fields[_CPU_TIMES]))


class Progress:
    """Tracks the progress of processes by their CPU time."""

    def __init__(
        self,
        *pids: int,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[int], int] = cpu_ticks,
    ) -> None:
        self._pids: Sequence[int] = pids
        self._clock, self._cpu = clock, cpu
        self._began = self._moved = clock()
        self._ticks = self._sum()

    def problem(self) -> str | None:
        """Return None while the processes make progress, else why to stop ("after 60 s …")."""
        now, ticks = self._clock(), self._sum()
        if ticks != self._ticks:
            self._ticks, self._moved = ticks, now
        if now - self._moved >= STILL_SECONDS:
            return f"after {STILL_SECONDS:.0f} s without progress"
        if now - self._began >= LONGEST_SECONDS:
            return f"after {LONGEST_SECONDS:.0f} s"
        return None

    def _sum(self) -> int:
        return sum(self._cpu(pid) for pid in self._pids)
