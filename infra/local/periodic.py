"""A thread that does the same again and again while a job trains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator


class PeriodicThread:
    """Calls `work` after each of the pauses (seconds) from `start` to `stop`,
    which waits for a call that is on.
    """

    def __init__(
        self, name: str, work: Callable[[], None], pauses_seconds: Iterator[float]
    ) -> None:
        self._work = work
        self._pauses_seconds = pauses_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether it has been stopped, also where it never started."""
        return self._over.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No further call; one that never started has nothing to wait for."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(next(self._pauses_seconds)):
            self._work()
