"""Write a heartbeat to the store every minute while a run owns a sweep.

It distinguishes a running sweep from an abandoned one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from nodesweep.launch.store import Store
from nodesweep.scaling import names

logger = logging.getLogger("nodesweep.owner")
HEARTBEAT_SECONDS = 60.0
_LOST_SECONDS = 2.5 * HEARTBEAT_SECONDS
_LONGEST_WRITE_SECONDS = 90.0  # 3 tries of 25 s, and boto3's pauses


@dataclass(frozen=True)
class Heartbeat:
    """An owner's last heartbeat, and the store's time when it was read."""

    written_at: datetime
    read_at: datetime
    left_running: bool

    @property
    def age_seconds(self) -> float:
        """Age of the heartbeat in seconds when it was read."""
        return (self.read_at - self.written_at).total_seconds()

    @property
    def is_alive(self) -> bool:
        """True if a run seems to own the sweep."""
        return not self.left_running and self.age_seconds <= _LOST_SECONDS


class SweepOwner:
    """The run that owns a sweep.

    After leave(), no heartbeat, not even a concurrent one, makes the sweep owned again.
    """

    def __init__(self, store: Store, sweep: str) -> None:
        self._store, self._sweep = store, sweep
        self._writing, self._left = threading.Lock(), False

    def write_heartbeat(self) -> None:
        """Write a heartbeat; errors are only logged, since the next one follows soon."""
        try:
            with self._writing:
                if not self._left:
                    _write(self._store.quick(), self._sweep, left_running=False)
        except (
            Exception
        ) as error:  # if the heartbeat thread died, the reaper would stop a healthy sweep
            logger.warning("the heartbeat of %s can't be written: %s", self._sweep, error)

    def leave(self) -> None:
        """Leave the sweep's jobs running without an owner on purpose; the reaper spares them."""
        self._left = True
        waited = self._writing.acquire(timeout=_LONGEST_WRITE_SECONDS)
        try:
            _write(self._store, self._sweep, left_running=True)
        finally:
            if waited:
                self._writing.release()


@contextmanager
def owned(store: Store, sweep: str) -> Iterator[SweepOwner]:
    """Write a heartbeat every minute inside the block; a failed one only causes a warning."""
    over = threading.Event()
    owner = SweepOwner(store, sweep)

    def heartbeat() -> None:
        while True:
            owner.write_heartbeat()
            if over.wait(HEARTBEAT_SECONDS):
                return

    thread = threading.Thread(target=heartbeat, name=f"owner-{sweep}", daemon=True)
    thread.start()
    try:
        yield owner
    finally:
        over.set()
        thread.join(timeout=5)


def read_heartbeat(store: Store, sweep: str) -> Heartbeat | None:
    """Return the last heartbeat, or None if there is none or it is unreadable.

    An unreadable one is logged as a warning. `written_at` and `read_at` are times of the store's
    clock.
    """
    key = names.owner_key(store.prefix, sweep)
    found = store.read(key)
    if found is None:
        return None
    left_running = _left_running(found.body)
    if left_running is None:
        logger.warning(
            "%s is damaged and does not count as a heartbeat of %s", store.uri(key), sweep
        )
        return None
    return Heartbeat(found.written_at, found.read_at, left_running)


def _left_running(body: bytes) -> bool | None:
    """Return the value that _write() wrote, or None if the body has none."""
    try:
        heartbeat = json.loads(body)
    except (ValueError, RecursionError):
        return None
    left_running = heartbeat.get("left_running") if isinstance(heartbeat, dict) else None
    return left_running if isinstance(left_running, bool) else None


def _write(store: Store, sweep: str, left_running: bool) -> None:
    body = names.pretty_json({"sweep_id": sweep, "left_running": left_running})
    store.put(names.owner_key(store.prefix, sweep), body)
