"""What of the platform's state is not on disk, or was found damaged there: one ledger for all of
its parts, and what the next command reads of it.

A change that can't be written (a full disk) fails the call that made it, which
infra/local/api/front.py answers. The change itself stays in the server's memory, is written once
there is room, and at the latest tried again when the server ends.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FILE = "not-kept.json"
_FILE_BYTES = 4096
_MOST_NAMES = 20

logger = logging.getLogger(__name__.removeprefix("nodesweep."))


class NotKept(Exception):
    """A change is not on disk; the message says which one and why."""


class Ledger:
    """Which changes are not on disk, and which files of it were damaged at the start.
    Every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._damaged: list[str] = []

    @contextmanager
    def keeping(self, what: str) -> Iterator[None]:
        """Inside, `what` is written. Raises NotKept in place of an OSError,
        and remembers it until it is written.
        """
        try:
            yield
        except OSError as error:
            self.note(what, error.strerror or str(error))
            raise NotKept(f"{what} can't be kept: {error.strerror or error}") from error
        self.forget(what)

    def note(self, what: str, reason: str) -> None:
        """`what` is not on disk, for this reason."""
        logger.error("%s is not kept: %s", what, reason)
        with self._lock:
            self._reasons[what] = reason

    def forget(self, what: str) -> None:
        """`what` is on disk, or is no more."""
        with self._lock:
            self._reasons.pop(what, None)

    def not_kept(self) -> list[str]:
        """What is not on disk, each with its reason; of many the first, and how many more."""
        with self._lock:
            lines = [f"{what}: {reason}" for what, reason in sorted(self._reasons.items())]
        further = len(lines) - _MOST_NAMES
        return lines if further <= 0 else [*lines[:_MOST_NAMES], f"and {further} more"]

    def note_damaged(self, message: str) -> None:
        """A file of the last server can't be used; the message names it and the remedy."""
        with self._lock:
            if message in self._damaged:
                return
            self._damaged.append(message)
        logger.error("%s", message)

    def damaged(self) -> list[str]:
        """What was found damaged; of much the first, and how much more."""
        with self._lock:
            lines, further = self._damaged[:_MOST_NAMES], len(self._damaged) - _MOST_NAMES
        return lines if further <= 0 else [*lines, f"and {further} more, see server.log"]


def begin(state_dir: Path) -> None:
    """Leave a file that only an end at which everything was kept removes; its place on disk is
    taken beforehand.
    """
    (state_dir / _FILE).write_bytes(b" " * _FILE_BYTES)


def end(state_dir: Path, ledger: Ledger) -> None:
    """Remove that file, or write into it what is not kept: neither needs room on the disk."""
    lines = ledger.not_kept()
    if not lines:
        (state_dir / _FILE).unlink(missing_ok=True)
        return
    while len(body := json.dumps(lines).encode()) > _FILE_BYTES:
        lines.pop()
    with (state_dir / _FILE).open("r+b") as file:
        file.write(body.ljust(_FILE_BYTES))


def lost(state_dir: Path) -> list[str]:
    """What the folder's last server, which has ended, did not keep."""
    try:
        body = (state_dir / _FILE).read_bytes().strip()
    except FileNotFoundError:
        return []
    if not body:
        return ["the server was killed: what it had not written down is not known"]
    try:
        lines = json.loads(body)
    except ValueError:
        lines = None
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return lines
    return [f"{state_dir / _FILE} is damaged: what the last server did not keep is not known"]
