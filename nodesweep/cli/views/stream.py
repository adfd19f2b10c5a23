"""From the loggers below `nodesweep` to whatever shows a run: a live view, plain lines, JSON lines,
and beside each of them the run's own log.

A view is chosen once, by what standard error is: on a terminal the live one; plain lines on a pipe,
in CI (the variable CI) and on a terminal that can't be drawn on (TERM=dumb). NO_COLOR is rich's own
to honour.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, Protocol, TextIO

from nodesweep.cli.own_name import as_typed
from nodesweep.cli.views.json_lines import JsonLines
from nodesweep.cli.views.plain import PlainLines
from nodesweep.cli.views.run_log import RunLog
from nodesweep.cli.views.state import LEAVES_JOBS, RunState
from nodesweep.tasks.events import NODE_LOG, PROGRESS, ROOT, Event, read_event

LogFormat = Literal["auto", "plain", "json"]
_NO = ("", "0", "false", "no")
_OTHERS_WORDS = frozenset({"node-line", "build-line"})
"""Events whose text is a program's."""


class View(Protocol):
    """Shows events as they come, from any thread."""

    def show(self, event: Event) -> None:
        """Show it, or not: that is the view's own matter."""

    def interrupt(self, words: str, again: str) -> None:
        """Ctrl-C: say at once what it does, and what it does `again`; in a signal handler."""

    def abandon(self, words: str) -> None:
        """The process is about to end at once: make the terminal usable and say these words, in a
        signal handler.
        """

    def close(self) -> None:
        """The last event was shown; leave the terminal as it was found."""


@dataclass(frozen=True)
class Look:
    """How a command shows what happens. `go_on` is the command that goes on with its sweep, without
    the sweep's id and --detach; None where it has none.
    """

    log_format: LogFormat = "auto"
    verbose: bool = False
    go_on: str | None = None
    detach: bool = False


def choose_view(
    look: Look, stream: TextIO, state: RunState, environment: Mapping[str, str] = os.environ
) -> View:
    """The view for that stream."""
    if look.log_format == "json":
        return JsonLines(stream, look.verbose)
    if look.log_format == "auto" and is_drawn_on(stream, environment):
        from nodesweep.cli.views.live import LiveView

        return LiveView(stream, state, look.verbose)
    return PlainLines(stream, look.verbose)


def is_drawn_on(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether lines on the stream may be overwritten, and its encoding has what is drawn."""
    return (
        stream.isatty()
        and "utf" in (stream.encoding or "").lower()
        and environment.get("TERM", "") not in ("dumb", "unknown")
        and environment.get("CI", "").lower() in _NO
    )


class EventStream(logging.Handler):
    """Hands every event to the run's log, then to the view."""

    def __init__(self, look: Look, stream: TextIO) -> None:
        super().__init__()
        self.state = RunState(is_detached=look.detach)
        self.view = choose_view(look, stream, self.state)
        self._go_on = look.go_on
        self._run_log = RunLog(self._show)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == NODE_LOG and record.levelno < logging.WARNING:
            return  # a few of a node's lines, for Prefect; node-line events have all
        try:
            self._show(read_event(record))
        except Exception:
            self.handleError(record)

    def _show(self, event: Event) -> None:
        if event.event not in _OTHERS_WORDS:
            event = replace(event, text=as_typed(event.text, self._go_on))
        self._run_log.show(event)
        self.state.show(event)
        self.view.show(event)

    def announce(self, at_once: bool) -> None:
        """Ctrl-C, the first or the second; called in the signal handler."""
        if at_once:
            self.view.abandon(as_typed(self.state.ended_at_once_words(self._go_on)))
            return
        try:
            words, again = self.state.ending_words(self._go_on), self.state.again_words()
        except RuntimeError:  # another thread was at it
            words, again = "ending", LEAVES_JOBS
        self.view.interrupt(words, again)

    def say_end(self, error: BaseException) -> None:
        """After a run that did not end well: where its log is, and how to go on."""
        then = self.state.next_command(self._go_on)
        if isinstance(error, KeyboardInterrupt) and then is not None:
            self._say("go-on", then)
        if self._run_log.path is not None:
            path = self._run_log.path
            self._say("run-log", f"the whole log of this run: {path}", path=str(path))

    def _say(self, event: str, text: str, **facts: str) -> None:
        self._show(Event(datetime.now(UTC), event, text, facts=facts))

    def attach(self) -> None:
        """Become the one reader of all loggers below `nodesweep`."""
        for name, level in ((ROOT, logging.INFO), (PROGRESS, logging.DEBUG)):
            logger = logging.getLogger(name)
            logger.handlers = [self]
            logger.setLevel(level)
            logger.propagate = False

    def detach(self) -> None:
        """Read no more, and let the view and the log end.

        Not close(): logging calls that of every handler whenever it is configured, as Prefect does
        in the middle of a run.
        """
        for name in (ROOT, PROGRESS):
            logger = logging.getLogger(name)
            logger.handlers = [handler for handler in logger.handlers if handler is not self]
        logging.getLogger(PROGRESS).setLevel(logging.NOTSET)
        self.view.close()
        self._run_log.close()
