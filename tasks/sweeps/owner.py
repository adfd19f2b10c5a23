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
from typing import Any

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
    ended: bool = False

    @property
    def age_seconds(self) -> float:
        """Age of the heartbeat in seconds when it was read."""
        return (self.read_at - self.written_at).total_seconds()

    @property
    def is_alive(self) -> bool:
        """True if a run seems to own the sweep, or to be submitting its jobs before leaving it."""
        return not self.ended and self.age_seconds <= _LOST_SECONDS


class SweepOwner:
    """The run that owns a sweep, or that submits its jobs and leaves them running (`detached`).

    After leave(), no heartbeat, not even a concurrent one, makes the sweep owned again.
    """

    def __init__(self, store: Store, sweep: str, detached: bool = False) -> None:
        self._store, self._sweep = store, sweep
        self._writing, self._left, self._detached = threading.Lock(), False, detached

    def begin(self) -> None:
        """Write the first heartbeat; unlike later ones, it raises the store's errors."""
        self._write(self._store, left_running=self._detached, ended=False)

    def write_heartbeat(self, ended: bool = False) -> None:
        """Write a heartbeat; errors are only logged, since the next one follows soon.

        Args:
            ended: The run has submitted all jobs, so nobody has to wait until it is silent.
        """
        try:
            with self._writing:
                if not self._left:
                    store = self._store.quick()
                    self._write(store, left_running=self._detached, ended=ended)
        except (
            Exception
        ) as error:  # if the heartbeat thread died, the reaper would stop a healthy sweep
            logger.warning("the heartbeat of %s can't be written: %s", self._sweep, error)

    def leave(self) -> None:
        """Leave the sweep's jobs running without an owner on purpose; the reaper spares them."""
        self._left = True
        waited = self._writing.acquire(timeout=_LONGEST_WRITE_SECONDS)
        try:
            self._write(self._store, left_running=True, ended=True)
        finally:
            if waited:
                self._writing.release()

    def _write(self, store: Store, left_running: bool, ended: bool) -> None:
        told = {"sweep_id": self._sweep, "left_running": left_running, "ended": ended}
        body = names.pretty_json(told)
        store.put(names.owner_key(store.prefix, self._sweep), body)


@contextmanager
def owned(store: Store, sweep: str, detached: bool = False) -> Iterator[SweepOwner]:
    """Write a heartbeat every minute inside the block; a failed one only causes a warning.

    If the run is detached, the reaper spares the sweep's jobs, so the first heartbeat is written
    before the block begins, and raises the store's errors. Only such a run says when it has ended:
    others go on, by another owner or with the report, or share the sweep with a run that does.
    """
    over = threading.Event()
    owner = SweepOwner(store, sweep, detached)
    if detached:
        owner.begin()

    def heartbeat() -> None:
        while True:
            owner.write_heartbeat()
            if over.wait(HEARTBEAT_SECONDS):
                break
        if detached:
            owner.write_heartbeat(ended=True)

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
    heartbeat = _parsed(found.body)
    left_running = heartbeat.get("left_running")
    if not isinstance(left_running, bool):
        logger.warning(
            "%s is damaged and does not count as a heartbeat of %s", store.uri(key), sweep
        )
        return None
    # `ended` is newer than `left_running`, which was written last until then
    ended = heartbeat.get("ended", left_running) is True
    return Heartbeat(found.written_at, found.read_at, left_running, ended)


def _parsed(body: bytes) -> dict[str, Any]:
    """Return what SweepOwner wrote; empty if the body is something else."""
    try:
        heartbeat = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return heartbeat if isinstance(heartbeat, dict) else {}
