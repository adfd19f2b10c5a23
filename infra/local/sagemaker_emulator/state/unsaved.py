"""Records which state is unsaved or damaged, for `status`, `stop` and `leave`.

If a change cannot be written because the disk is full, the API call that made the change fails
(api/front.py). The change stays in memory and is written once the disk has space, at the latest
when the server ends.
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

logger = logging.getLogger(__name__)


class NotSaved(Exception):
    """A change could not be written to disk, for the reason in the message."""


class Ledger:
    """Lists unsaved changes, and files that were damaged at startup (thread-safe)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._damaged: list[str] = []

    @contextmanager
    def tracking(self, what: str) -> Iterator[None]:
        """Track whether a `with` block writes `what`.

        Raises:
            NotSaved: On an OSError. `what` remains in the list until it is written.
        """
        try:
            yield
        except OSError as error:
            self.note(what, error.strerror or str(error))
            raise NotSaved(f"{what} can't be saved: {error.strerror or error}") from error
        self.forget(what)

    def note(self, what: str, reason: str) -> None:
        """Record that `what` is unsaved, and why."""
        logger.error("%s is not saved: %s", what, reason)
        with self._lock:
            self._reasons[what] = reason

    def forget(self, what: str) -> None:
        """Record that `what` is saved or no longer exists."""
        with self._lock:
            self._reasons.pop(what, None)

    def unsaved(self) -> list[str]:
        """Return a line for each unsaved change and its reason, truncated if there are many."""
        with self._lock:
            lines = [f"{what}: {reason}" for what, reason in sorted(self._reasons.items())]
        further = len(lines) - _MOST_NAMES
        return lines if further <= 0 else [*lines[:_MOST_NAMES], f"and {further} more"]

    def note_damaged(self, message: str) -> None:
        """Record a message with the path and the remedy of a damaged file."""
        with self._lock:
            if message in self._damaged:
                return
            self._damaged.append(message)
        logger.error("%s", message)

    def damaged(self) -> list[str]:
        """Return the messages about damaged files, truncated if there are many."""
        with self._lock:
            lines, further = self._damaged[:_MOST_NAMES], len(self._damaged) - _MOST_NAMES
        return lines if further <= 0 else [*lines, f"and {further} more, see server.log"]


def begin(state_dir: Path) -> None:
    """Create a file that is only removed if all state is saved when the server ends.

    The file reserves the disk space that end() can need.
    """
    (state_dir / _FILE).write_bytes(b" " * _FILE_BYTES)


def end(state_dir: Path, ledger: Ledger) -> None:
    """Remove the file that begin() created, or write the unsaved changes to it.

    Neither needs disk space.
    """
    lines = ledger.unsaved()
    if not lines:
        (state_dir / _FILE).unlink(missing_ok=True)
        return
    while len(body := json.dumps(lines).encode()) > _FILE_BYTES:
        lines.pop()
    with (state_dir / _FILE).open("r+b") as file:
        file.write(body.ljust(_FILE_BYTES))


def lost(state_dir: Path) -> list[str]:
    """Return the changes that the last server of a folder did not save before it ended."""
    try:
        body = (state_dir / _FILE).read_bytes().strip()
    except FileNotFoundError:
        return []
    if not body:
        return ["the server was killed, so its unsaved changes are unknown"]
    try:
        lines = json.loads(body)
    except ValueError:
        lines = None
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return lines
    return [f"{state_dir / _FILE} is damaged, so the server's unsaved changes are unknown"]
