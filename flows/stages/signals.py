"""What SIGTERM and Ctrl-C do to a run: the first ends it in order,
and none that follows cuts that off by accident.

CI systems and service managers send several (SIGINT, then SIGTERM; or SIGTERM to the group and to
its leader). Where the second one raised, it did so in the middle of stopping the jobs. So a further
SIGTERM does nothing while the run ends, which has its deadlines; a second Ctrl-C is somebody who
will not wait: it ends the process at once.
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

from nodesweep.tasks.polling import STOP, Cancelled

_ENDING = b"nodesweep: ending; Ctrl-C again ends at once and leaves the jobs\n"
_ENDED_AT_ONCE = (
    b"nodesweep: ended at once; jobs may run on: stop them with `nodesweep stop SWEEP_ID`, or go on"
    b" with --resume\n"
)

_CANCEL = signal.SIGUSR1
"""What the thread that hears of a cancel sends to the main thread."""


class EndSignals:
    """The handler of a command's SIGINT and SIGTERM: the first raises KeyboardInterrupt.

    `announce` says at a Ctrl-C that the run ends; with True, at the second one, that it has ended
    at once. It is called in the signal handler.
    """

    def __init__(self, announce: Callable[[bool], None] | None = None) -> None:
        self._announce = announce or say_ending
        self._interrupted = False
        self.raised = False
        """The first has come; once `held` is over, what it raises is due."""
        self.held = False
        """Prefect's own code runs, which would take what is raised for a crash of the run."""
        self.shielded = False
        """The flow is ending because of a SIGTERM that Prefect got."""

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if self._interrupted:
                self._announce(True)
                os._exit(128 + signum)
            self._interrupted = True
            self._announce(False)
        if not self.raised and not self.shielded:
            self.raised = STOP.interrupted = True
            if not self.held:
                raise KeyboardInterrupt

    def release(self) -> None:
        """Raise KeyboardInterrupt from now on, and at once where a signal came while `held`."""
        self.held = False
        if self.raised:
            STOP.interrupted = True
            raise KeyboardInterrupt


@contextmanager
def held_for_prefect() -> Iterator[None]:
    """Inside, where Prefect begins and ends a command's flow, a first Ctrl-C is raised in the flow
    alone, or in the end.
    """
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
    """What ends a flow from outside."""

    signals: EndSignals = field(default_factory=EndSignals)
    terminated: bool = False
    """A SIGTERM has come, of which Prefect makes the run's state."""
    begun: bool = False

    def interrupt(self) -> None:
        """Raise Cancelled in the main thread, which runs the flow; any other thread may call."""
        main = threading.main_thread().ident
        if not self.begun and main is not None and self.hears:
            signal.pthread_kill(main, _CANCEL)

    hears: bool = False
    """Whether the flow runs in the main thread; else only its waits end."""


@contextmanager
def ended_once() -> Iterator[Ending]:
    """Inside a flow, where Prefect has a SIGTERM handler of its own:
    only the first SIGTERM gets through to it.

    None does after a Ctrl-C, or after an interrupt() of what this yields. Outside the main thread,
    which gets no signals, this does nothing.
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
            ending.begun = signals.shielded = STOP.interrupted = True
            _first(previous)(signum, frame)

    def cancel(signum: int, frame: FrameType | None) -> None:
        if not ending.begun and not signals.raised:
            ending.begun = signals.shielded = True
            raise Cancelled

    _handle_sigterm(terminate, instead_of=previous)
    of_cancel = signal.signal(_CANCEL, cancel)
    ending.hears = True
    try:
        yield ending
    finally:
        signals.held = was_held
        signals.shielded = ending.hears = False
        signal.signal(_CANCEL, of_cancel)
        if not ending.begun and not signals.raised:
            # else it stays, for what Prefect has still to say of the run
            _handle_sigterm(previous, instead_of=terminate)


def _handle_sigterm(handler: Any, instead_of: Any) -> None:
    """Install a handler; where the former is the one by which Prefect knows that it hears a
    cancellation, as that one.

    Prefect's runner asks a run's process whether its SIGTERM will be understood as a cancellation.
    The process says so while the handler in force is prefect.utilities.engine's own, and a run that
    does not is Crashed in place of Cancelled (Prefect 3.8, can_ack_control_intent).
    tests/flows/stages/test_signals.py holds it against the installed Prefect.
    """
    engine: Any = sys.modules.get("prefect.utilities.engine")
    if engine is None or engine._prefect_sigterm_handler is not instead_of:
        signal.signal(signal.SIGTERM, handler)
        return
    with engine._prefect_sigterm_bridge_lock:
        signal.signal(signal.SIGTERM, handler)
        engine._prefect_sigterm_handler = handler


def _first(previous: Any) -> Callable[[int, FrameType | None], Any]:
    """What the first SIGTERM does: what it would have done;
    where that is the system's default, it raises.
    """
    if callable(previous):
        return previous

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return interrupt


def say_ending(at_once: bool) -> None:
    """On standard error, past any buffer: the signal may have come in the middle of a line."""
    with suppress(OSError):
        os.write(2, _ENDED_AT_ONCE if at_once else _ENDING)
