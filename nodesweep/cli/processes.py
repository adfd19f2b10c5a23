"""Identify a process despite reuse of its PID, and detect whether it makes progress.

A busy machine takes ten times as long as an idle one to start the same program, so the length of a
wait depends on CPU time rather than on the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

STILL_SECONDS = 60.0
"""A process that uses no CPU time for this long is considered stuck."""
LONGEST_SECONDS = 900.0
"""Limit of every wait, even for a process that computes endlessly."""
_STATE, _CPU_TIMES, _START_TIME = 0, slice(11, 15), 19
"""Positions in /proc/<pid>/stat after the command name: fields 3, 14 to 17 and 22 of proc(5)."""


def _fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot.

    It distinguishes a process from a later one with the same PID. The result is None if the process
    has ended or is a zombie.
    """
    fields = _fields(pid)
    return None if not fields or fields[_STATE] in "ZX" else int(fields[_START_TIME])


def cpu_ticks(pid: int) -> int:
    """Return the CPU time of a process and its ended children, in clock ticks; 0 after its end."""
    return sum(map(int, _fields(pid)[_CPU_TIMES]))


class Progress:
    """Tracks the progress of processes since this object was created."""

    def __init__(
        self,
        *pids: int,
        still_seconds: float | None = None,
        longest_seconds: float = LONGEST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[int], float] = cpu_ticks,
    ) -> None:
        self._pids, self._clock, self._cpu = pids, clock, cpu
        self._still_seconds = STILL_SECONDS if still_seconds is None else still_seconds
        self._longest_seconds = longest_seconds
        self._began = self._moved = clock()
        self._ticks = self._sum()

    def problem(self) -> str | None:
        """Return the reason to stop waiting, or None while the processes make progress."""
        now, ticks = self._clock(), self._sum()
        if ticks != self._ticks:
            self._ticks, self._moved = ticks, now
        if now - self._moved >= self._still_seconds:
            return f"after {self._still_seconds:.0f} s without progress"
        if now - self._began >= self._longest_seconds:
            return f"after {self._longest_seconds:.0f} s"
        return None

    def _sum(self) -> float:
        return sum(self._cpu(pid) for pid in self._pids)
