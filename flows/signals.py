"""What SIGTERM and Ctrl-C do to a run: the first ends it in order, and none that follows cuts that off by accident.

CI systems and service managers send several (SIGINT, then SIGTERM; or SIGTERM to the group and to its leader). Where
the second one raised, it did so in the middle of stopping the jobs. So a further SIGTERM does nothing while the run
ends, which has its deadlines; a second Ctrl-C is somebody who will not wait: it ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_ENDING = b"nodesweep: ending; Ctrl-C again ends at once and leaves the jobs\n"
_ENDED_AT_ONCE = (
    b"nodesweep: ended at once; jobs may run on: stop them with `nodesweep stop SWEEP_ID`, or go on with --resume\n"
)


class EndSignals:
    """The handler of a command's SIGINT and SIGTERM: the first raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._interrupted = False
        self.raised = False
        self.shielded = False
        """The flow is ending because of a SIGTERM that Prefect got."""

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if self._interrupted:
                _say(_ENDED_AT_ONCE)
                os._exit(128 + signum)
            self._interrupted = True
            _say(_ENDING)
        if not self.raised and not self.shielded:
            self.raised = True
            raise KeyboardInterrupt


@contextmanager
def ended_once() -> Iterator[None]:
    """Inside a flow, where Prefect has a SIGTERM handler of its own: only the first SIGTERM gets through to it.

    None does after a Ctrl-C. Outside the main thread, which gets no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    command = signal.getsignal(signal.SIGINT)
    signals = command if isinstance(command, EndSignals) else EndSignals()
    previous: Any = signal.getsignal(signal.SIGTERM)

    begun = False

    def terminate(signum: int, frame: FrameType | None) -> None:
        nonlocal begun
        if not begun and not signals.raised:
            begun = signals.shielded = True
            _first(previous)(signum, frame)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signals.shielded = False
        if not begun and not signals.raised:  # else it stays, for what Prefect has still to say of the run
            signal.signal(signal.SIGTERM, previous)


def _first(previous: Any) -> Callable[[int, FrameType | None], Any]:
    """What the first SIGTERM does: what it would have done; where that is the system's default, it raises."""
    if callable(previous):
        return previous

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return interrupt


def _say(words: bytes) -> None:
    with suppress(OSError):
        os.write(2, words)
