"""The processes that own a platform, with one empty file each in the state folder.

The run that starts the platform is its first owner, and a run that finds it running joins; the
platform ends with its last owner.
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
    """Remove owners left over from a platform that has ended."""
    shutil.rmtree(state_dir / _FOLDER, ignore_errors=True)


def add_owner(state_dir: Path, pid: int) -> bool:
    """Add a process as an owner; return False if it is an owner already or has ended."""
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
    """Remove a process from the owners, if it is one of them."""
    ticks = start_ticks(pid)
    if ticks is not None:
        _file_of(state_dir, pid, ticks).unlink(missing_ok=True)


def living_owners(state_dir: Path) -> list[int]:
    """Return the process ids of the owners that have not ended."""
    found = [path.name.partition("-") for path in (state_dir / _FOLDER).glob("*-*")]
    return sorted(int(pid) for pid, _, ticks in found if start_ticks(int(pid)) == int(ticks))


def is_abandoned(state_dir: Path) -> bool:
    """Return True if the platform had owners and all have ended, so that it is about to end."""
    return (state_dir / _FOLDER).exists() and not living_owners(state_dir)


def watch_owners(
    state_dir: Path, on_last_death: Callable[[], None], poll_seconds: float = POLL_SECONDS
) -> None:
    """Call `on_last_death` from a thread as soon as no owner is alive."""

    def watch() -> None:
        never_set = threading.Event()
        while living_owners(state_dir):
            never_set.wait(poll_seconds)
        on_last_death()

    threading.Thread(target=watch, name="owners", daemon=True).start()


def _file_of(state_dir: Path, pid: int, ticks: int) -> Path:
    return state_dir / _FOLDER / f"{pid}-{ticks}"
