"""The processes that own a platform, as empty files in the state folder.

The run that starts the platform is its first owner, and a run that finds it running joins. The
platform stops when its last owner ends.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from sagemaker_emulator.process_identity import start_ticks

POLL_SECONDS = 0.5
_FOLDER = "owners"


def forget_owners(state_dir: Path) -> None:
    """Remove the owners of an earlier platform."""
    shutil.rmtree(state_dir / _FOLDER, ignore_errors=True)


def add_owner(state_dir: Path, pid: int) -> bool:
    """Add a process as an owner, or return False if it already is an owner or has ended."""
    ticks = start_ticks(pid)
    if ticks is None:
        return False
    path = _file_of(state_dir, pid, ticks)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def remove_owner(state_dir: Path, pid: int) -> None:
    """Remove a process from the owners, if it is an owner."""
    ticks = start_ticks(pid)
    if ticks is not None:
        _file_of(state_dir, pid, ticks).unlink(missing_ok=True)


def living_owners(state_dir: Path) -> list[int]:
    """Return the process ids of the owners that have not ended."""
    found = [path.name.partition("-") for path in (state_dir / _FOLDER).glob("*-*")]
    return sorted(int(pid) for pid, _, ticks in found if start_ticks(int(pid)) == int(ticks))


def is_abandoned(state_dir: Path) -> bool:
    """Return True if all of the platform's owners have ended, so it is about to stop."""
    return (state_dir / _FOLDER).exists() and not living_owners(state_dir)


def watch_owners(
    state_dir: Path, on_last_death: Callable[[], None], poll_seconds: float = POLL_SECONDS
) -> None:
    """Call `on_last_death` in a thread as soon as no owner is alive."""

    def watch() -> None:
        never_set = threading.Event()
        while living_owners(state_dir):
            never_set.wait(poll_seconds)
        on_last_death()

    threading.Thread(target=watch, name="owners", daemon=True).start()


def _file_of(state_dir: Path, pid: int, ticks: int) -> Path:
    return state_dir / _FOLDER / f"{pid}-{ticks}"
