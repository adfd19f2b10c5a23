"""A thread that writes changed state to disk soon after the change, and at the latest when it is closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

DEBOUNCE_SECONDS = 0.2
"""A burst of uploads becomes a few passes; a killed server loses what changed in the last pass."""

_CLOSE_DEADLINE_SECONDS = 60.0

logger = logging.getLogger(__name__)


class Flusher:
    """Calls `flush` in its own thread after `wake`; a failed flush is logged and tried again at the next wake."""

    def __init__(self, name: str, flush: Callable[[], None], debounce_seconds: float = DEBOUNCE_SECONDS) -> None:
        self._flush = flush
        self._debounce_seconds = debounce_seconds
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """Flush what is left and end the thread."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_DEADLINE_SECONDS)

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait()
            closing = self._closed.wait(self._debounce_seconds)
            self._wake.clear()
            try:
                self._flush()
            except Exception:
                logger.exception("%s: a snapshot failed; the next change tries again", self._thread.name)
