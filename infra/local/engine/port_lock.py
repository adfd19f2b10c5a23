"""One training job at a time per machine (per network namespace): they all meet on port 7777 and share the cores.

An abstract Unix socket is the lock: it has exactly the reach of the port, needs no folder that all users may write, and
is free again the moment its holder is gone, however it went.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ADDRESS = "\0nodesweep-training-job-on-port-7777"
_LONGEST_PAUSE_SECONDS = 1.0


@contextmanager
def training_slot(
    stop: threading.Event, deadline: float, on_wait: Callable[[], None], address: str = _ADDRESS
) -> Iterator[bool]:
    """Hold the machine's training slot. Gives False where a stop or the deadline (monotonic) came first."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        yield _wait_for(lock, stop, deadline, on_wait, address)
    finally:
        lock.close()


def _wait_for(
    lock: socket.socket, stop: threading.Event, deadline: float, on_wait: Callable[[], None], address: str
) -> bool:
    pause_seconds = 0.05
    told = False
    while not stop.is_set() and time.monotonic() < deadline:
        try:
            lock.bind(address)
            return True
        except OSError:
            if not told:
                on_wait()
                told = True
            stop.wait(pause_seconds * random.uniform(0.5, 1.0))
            pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
    return False
