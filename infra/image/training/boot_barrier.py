"""Lets the local platform hold a node between boot and run_start.

Importing torch takes most of a minute at a fifth of a core, so the local platform boots nodes
unthrottled: each node writes `ready`, then the platform applies the CPU quota to all nodes and
writes `go`. A node writes `done` when it has nothing left to measure, so that the platform can lift
the quota. AWS does not set SM_BOOT_BARRIER_DIR, so no node waits there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from training.errors import BootBarrierError
from training.files import write_text_atomically

POLL_SECONDS = 0.02
DEADLINE_SECONDS = 300.0


def wait_at_boot_barrier(
    folder: Path,
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Create `folder`/ready, then wait for `folder`/go.

    Raises:
        BootBarrierError: The platform did not write `go` in time.
    """
    write_text_atomically(folder / "ready", "")
    started = clock()
    while not (folder / "go").exists():
        if clock() - started > deadline_seconds:
            raise BootBarrierError(
                f"no file `go` in SM_BOOT_BARRIER_DIR={folder} {deadline_seconds:g} s after"
                " `ready`: another node never became ready,"
                " or the platform that set the variable is gone"
            )
        sleep(POLL_SECONDS)


def report_end_of_measurement(folder: Path) -> None:
    """Create `folder`/done before the exit, which takes seconds at a fifth of a core."""
    write_text_atomically(folder / "done", "")
