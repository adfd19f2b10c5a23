"""Detects that a process has ended, even if its pid was reused."""

from __future__ import annotations

from pathlib import Path

_STATE, _START_TIME = 0, 19
"""Positions in /proc/<pid>/stat after the command name (fields 3 and 22 in proc(5))."""


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot.

    Return None if the process has ended or is a zombie.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in "ZX" else int(fields[_START_TIME])
