"""Tells a live process from a dead one whose number was given to another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

OWNER_POLL_SECONDS = 0.5
_STATE, _START_TIME = 0, 19
"""Positions in /proc/<pid>/stat after the command name: fields 3 and 22 of proc(5)."""


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None where it has ended, even if nobody has reaped it yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in "ZX" else int(fields[_START_TIME])


def watch_owner(pid: int, on_death: Callable[[], None], poll_seconds: float = OWNER_POLL_SECONDS) -> None:
    """Call `on_death` from a thread once the process has ended, however it ended; at once if it already has."""
    began = start_ticks(pid)

    def watch() -> None:
        never_set = threading.Event()
        while began is not None and start_ticks(pid) == began:
            never_set.wait(poll_seconds)
        on_death()

    threading.Thread(target=watch, name=f"owner-{pid}", daemon=True).start()
