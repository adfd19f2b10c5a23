"""A machine-wide lock (per network namespace) that lets only one engine at a time run jobs.

Jobs rendezvous on port 7777 and share the cores. The lock is an abstract Unix socket because that
has the same scope as the port, needs no folder that all users can write, and is released when its
holder ends.
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


class SharedSlot:
    """The machine's training slot, which one process holds until its last job releases it."""

    def __init__(self, address: str = _ADDRESS) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._jobs = 0
        self._socket: socket.socket | None = None

    def take(self) -> bool:
        """Take the slot for a job, or return False if another process holds it."""
        with self._lock:
            self._socket = self._socket or _bound(self._address)
            self._jobs += self._socket is not None
            return self._socket is not None

    def release(self) -> None:
        """Release the slot for a job. The slot is free once no job holds it."""
        with self._lock:
            self._jobs -= 1
            if self._jobs == 0 and self._socket is not None:
                self._socket.close()
                self._socket = None


@contextmanager
def training_slot(
    stop: threading.Event, deadline: float, on_wait: Callable[[], None], address: str = _ADDRESS
) -> Iterator[bool]:
    """Hold the slot for a job. Yield False if `stop` is set, or the deadline passes, first.

    The deadline is a time of the monotonic clock.
    """
    slot = SharedSlot(address)
    is_held = wait_for(slot.take, stop, deadline, on_wait)
    try:
        yield is_held
    finally:
        if is_held:
            slot.release()


def wait_for(
    take: Callable[[], bool], stop: threading.Event, deadline: float, on_wait: Callable[[], None]
) -> bool:
    """Call `take` until it returns True. Return False once `stop` is set or the deadline passes.

    The deadline is a time of the monotonic clock. Unless `stop` is set, `take` is called once more
    after it, so that a delayed caller still gets a resource that is free. `on_wait` is called once
    if the first attempt fails.
    """
    pause_seconds = 0.05
    has_waited = False
    while not stop.is_set():
        is_last = time.monotonic() >= deadline
        if take():
            return True
        if not has_waited:
            on_wait()
            has_waited = True
        if is_last:
            return False
        stop.wait(pause_seconds * random.uniform(0.5, 1.0))
        pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
    return False


def _bound(address: str) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(address)
    except OSError:
        lock.close()
        return None
    return lock
