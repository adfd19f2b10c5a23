"""A thread that calls a function at intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator


class PeriodicThread:
    """Calls `work` after each of the pauses until `stop` is called."""

    def __init__(
        self, name: str, work: Callable[[], None], pauses_seconds: Iterator[float]
    ) -> None:
        self._work = work
        self._pauses_seconds = pauses_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_over(self) -> bool:
        """True once `stop` was called, even if the thread was never started."""
        return self._over.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop calling `work`, and wait until a running call has ended."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(next(self._pauses_seconds)):
            self._work()
