"""Limit the time of a run; after that, its jobs end as if the run had been cancelled.

Prefect's own flow timeout is the same for every run of a flow. It looks like any other error to the
run, which would therefore leave its jobs running.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.exceptions import CancelledRun

from nodesweep.errors import RunTimedOut
from nodesweep.polling import STOP, Cancelled


@contextmanager
def deadline(hours: float | None) -> Iterator[None]:
    """Interrupt all waits in the block after this many hours; None means no limit.

    Raises:
        RunTimedOut: The time has passed.
    """
    if hours is None:
        yield
        return

    def end() -> None:
        STOP.timed_out = True  # before the waits end, because they read it
        STOP.set()

    timer = threading.Timer(min(hours * 3600, threading.TIMEOUT_MAX), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (Cancelled, CancelledRun) as error:  # the latter from the result of a submitted task
        if not STOP.timed_out:
            raise
        raise RunTimedOut(
            f"the run took longer than timeout_hours ({hours:g}) and was cancelled;"
            " retry the flow run, or raise timeout_hours"
        ) from error
    finally:
        timer.cancel()
