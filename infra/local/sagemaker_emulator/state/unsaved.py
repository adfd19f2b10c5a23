"""The ledger of state that is not on disk or was found damaged, for `status`, `stop` and `leave`.

If a change cannot be written (full disk), the API call that made the change fails (api/front.py).
The change stays in the server's memory and is written once the disk has space, at the latest when
the server ends.
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
    """A change is not on disk; the message gives the change and the reason."""


class Ledger:
    """The changes that are not on disk, and the files found damaged at startup; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._damaged: list[str] = []

    @contextmanager
    def tracking(self, what: str) -> Iterator[None]:
        """Track the writing of `what` in a `with` block.

        Raises:
            NotSaved: On an OSError; `what` is remembered until it is written.
        """
        try:
            yield
        except OSError as error:
            self.note(what, error.strerror or str(error))
            raise NotSaved(f"{what} can't be saved: {error.strerror or error}") from error
        self.forget(what)

    def note(self, what: str, reason: str) -> None:
        """Record that `what` is not on disk, and why."""
        logger.error("%s is not saved: %s", what, reason)
        with self._lock:
            self._reasons[what] = reason

    def forget(self, what: str) -> None:
        """Record that `what` is on disk, or no longer exists."""
        with self._lock:
            self._reasons.pop(what, None)

    def unsaved(self) -> list[str]:
        """Return a line with the reason for each unsaved change; a long list is truncated."""
        with self._lock:
            lines = [f"{what}: {reason}" for what, reason in sorted(self._reasons.items())]
        further = len(lines) - _MOST_NAMES
        return lines if further <= 0 else [*lines[:_MOST_NAMES], f"and {further} more"]

    def note_damaged(self, message: str) -> None:
        """Record an unusable file of an earlier server; the message gives path and remedy."""
        with self._lock:
            if message in self._damaged:
                return
            self._damaged.append(message)
        logger.error("%s", message)

    def damaged(self) -> list[str]:
        """Return the messages about damaged files; a long list is truncated."""
        with self._lock:
            lines, further = self._damaged[:_MOST_NAMES], len(self._damaged) - _MOST_NAMES
        return lines if further <= 0 else [*lines, f"and {further} more, see server.log"]


def begin(state_dir: Path) -> None:
    """Create a file that is removed only if all state is saved when the server ends.

    The file reserves the space on disk that end() may need.
    """
    (state_dir / _FILE).write_bytes(b" " * _FILE_BYTES)


def end(state_dir: Path, ledger: Ledger) -> None:
    """Remove the file of begin(), or list the unsaved changes in it; neither needs disk space."""
    lines = ledger.unsaved()
    if not lines:
        (state_dir / _FILE).unlink(missing_ok=True)
        return
    while len(body := json.dumps(lines).encode()) > _FILE_BYTES:
        lines.pop()
    with (state_dir / _FILE).open("r+b") as file:
        file.write(body.ljust(_FILE_BYTES))


def lost(state_dir: Path) -> list[str]:
    """Return the changes that the folder's last server, which has ended, did not save."""
    try:
        body = (state_dir / _FILE).read_bytes().strip()
    except FileNotFoundError:
        return []
    if not body:
        return ["the server was killed, so what it had not saved is unknown"]
    try:
        lines = json.loads(body)
    except ValueError:
        lines = None
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return lines
    return [f"{state_dir / _FILE} is damaged, so what the last server did not save is unknown"]
