"""Handle SIGTERM and Ctrl-C: the first signal ends the run cleanly, despite later SIGTERMs.

CI systems and service managers send several signals (SIGINT and then SIGTERM, or SIGTERM to the
group and its leader), but a second one must not interrupt the stopping of jobs. Later SIGTERMs are
therefore ignored while the run ends, which has a deadline. A second Ctrl-C exits immediately.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from nodesweep.polling import STOP, Cancelled

_ENDING = b"nodesweep: ending; Ctrl-C again exits at once and leaves the jobs running\n"
_ENDED_AT_ONCE = (
    b"nodesweep: exited at once; jobs may still be running: stop them with `nodesweep stop"
    b" SWEEP_ID`, or continue with --resume\n"
)

_CANCEL = signal.SIGUSR1
"""Signal to the main thread from the thread that detects a cancellation."""


class EndSignals:
    """Handler of a command's SIGINT and SIGTERM; the first one raises KeyboardInterrupt.

    `announce` is called in the signal handler: with False at the first Ctrl-C, with True at the
    second, which ends the process.
    """

    def __init__(self, announce: Callable[[bool], None] | None = None) -> None:
        self._announce = announce or write_ending
        self._interrupted = False
        self.raised = False
        """True once a signal has arrived; KeyboardInterrupt was raised, or will be after `held`."""
        self.held = False
        """True while Prefect's own code runs, which would report an exception as a crash."""
        self.is_shielded = False
        """True while the flow is ending because of a SIGTERM or a cancellation in Prefect."""

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Raise or announce the first signal; end the process at a second Ctrl-C."""
        if signum == signal.SIGINT:
            if self._interrupted:
                self._announce(True)
                os._exit(128 + signum)
            self._interrupted = True
            self._announce(False)
        if not self.raised and not self.is_shielded:
            self.raised = STOP.interrupted = True
            if not self.held:
                raise KeyboardInterrupt

    def release(self) -> None:
        """Let signals raise KeyboardInterrupt again; raise it now if one arrived while `held`."""
        self.held = False
        if self.raised:
            STOP.interrupted = True
            raise KeyboardInterrupt


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer a first Ctrl-C while Prefect starts or ends a flow, until it runs or has ended."""
    signals = signal.getsignal(signal.SIGINT)
    if not isinstance(signals, EndSignals):
        yield
        return
    signals.held = True
    try:
        yield
    finally:
        signals.held = False
    signals.release()


@dataclass
class Ending:
    """State of a flow that can be cancelled or terminated."""

    signals: EndSignals = field(default_factory=EndSignals)
    terminated: bool = False
    """True once a SIGTERM has arrived; Prefect derives the run's state from it."""
    begun: bool = False

    def interrupt(self) -> None:
        """Raise Cancelled in the main thread, which runs the flow; call from any other thread."""
        main = threading.main_thread().ident
        if not self.begun and main is not None and self.is_interruptible:
            signal.pthread_kill(main, _CANCEL)

    is_interruptible: bool = False
    """True if the flow runs in the main thread; otherwise only its waits are interrupted."""


@contextmanager
def first_sigterm_only() -> Iterator[Ending]:
    """Pass only the first SIGTERM to Prefect's handler while a flow runs.

    After a Ctrl-C, or a call of the yielded value's interrupt(), not even the first is passed on.
    Outside the main thread, which alone receives signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Ending()
        return
    command = signal.getsignal(signal.SIGINT)
    signals = command if isinstance(command, EndSignals) else EndSignals()
    ending, was_held = Ending(signals), signals.held
    previous: Any = signal.getsignal(signal.SIGTERM)

    def terminate(signum: int, frame: FrameType | None) -> None:
        ending.terminated = True
        if not ending.begun and not signals.raised:
            ending.begun = signals.is_shielded = STOP.interrupted = True
            _handler_or_interrupt(previous)(signum, frame)

    def cancel(signum: int, frame: FrameType | None) -> None:
        if not ending.begun and not signals.raised:
            ending.begun = signals.is_shielded = True
            raise Cancelled

    _handle_sigterm(terminate, instead_of=previous)
    of_cancel = signal.signal(_CANCEL, cancel)
    ending.is_interruptible = True
    try:
        yield ending
    finally:
        signals.held = was_held
        signals.is_shielded = ending.is_interruptible = False
        signal.signal(_CANCEL, of_cancel)
        if not ending.begun and not signals.raised:
            # otherwise it stays installed while Prefect reports the end of the run
            _handle_sigterm(previous, instead_of=terminate)


def _handle_sigterm(handler: Any, instead_of: Any) -> None:
    """Install a SIGTERM handler; if it replaces Prefect's handler, register it in Prefect as well.

    Prefect's runner asks a run's process if it will treat SIGTERM as a cancellation. The process
    confirms only while the handler in force is prefect.utilities.engine's own; otherwise the run
    becomes Crashed instead of Cancelled (Prefect 3.8, can_ack_control_intent).
    tests/flows/stages/test_signals.py checks it against the installed Prefect.
    """
    engine: Any = sys.modules.get("prefect.utilities.engine")
    if engine is None or engine._prefect_sigterm_handler is not instead_of:
        signal.signal(signal.SIGTERM, handler)
        return
    with engine._prefect_sigterm_bridge_lock:
        signal.signal(signal.SIGTERM, handler)
        engine._prefect_sigterm_handler = handler


def _handler_or_interrupt(previous: Any) -> Callable[[int, FrameType | None], Any]:
    """Return the previous handler, or one that raises KeyboardInterrupt if there was none."""
    if callable(previous):
        return previous

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return interrupt


def write_ending(at_once: bool) -> None:
    """Write to standard error unbuffered; the signal may have arrived in the middle of a line."""
    with suppress(OSError):
        os.write(2, _ENDED_AT_ONCE if at_once else _ENDING)
