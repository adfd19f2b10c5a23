"""Routes events from the loggers below `nodesweep` to a view and to the run's log.

The view depends on standard error: the live view on a terminal; plain lines on a pipe, in CI (if
the variable CI is set) and on terminals that cannot be redrawn (TERM=dumb). rich honors NO_COLOR.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, Protocol, TextIO

from nodesweep.cli.command_line import as_typed
from nodesweep.cli.views.json_lines import JsonLines
from nodesweep.cli.views.plain import PlainLines
from nodesweep.cli.views.run_log import RunLog
from nodesweep.cli.views.state import LEAVES_JOBS, RunState
from nodesweep.events import NODE_LOG, PROGRESS, ROOT, Event, read_event

LogFormat = Literal["auto", "plain", "json"]
_NO = ("", "0", "false", "no")
_OTHERS_WORDS = frozenset({"node-line", "build-line"})
"""Events whose text comes from a program."""


class View(Protocol):
    """Shows events as they arrive, from any thread."""

    def show(self, event: Event) -> None:
        """Show the event, unless it is filtered out."""

    def interrupt(self, words: str, again: str) -> None:
        """Report what Ctrl-C does, and what pressing it again does; called in a signal handler."""

    def abandon(self, words: str) -> None:
        """Restore the terminal and report that the process exits; called in a signal handler."""

    def close(self) -> None:
        """Restore the terminal after the last event."""


@dataclass(frozen=True)
class ViewOptions:
    """Options for showing a command's events.

    Attributes:
        resume_command: Command that resumes the sweep, without the sweep's id and --detach; None
            for commands without a sweep.
    """

    log_format: LogFormat = "auto"
    verbose: bool = False
    resume_command: str | None = None
    detach: bool = False


def choose_view(
    options: ViewOptions,
    stream: TextIO,
    state: RunState,
    environment: Mapping[str, str] = os.environ,
) -> View:
    """Return the view of the chosen format; `auto` is a live view if the stream can be redrawn."""
    if options.log_format == "json":
        return JsonLines(stream, options.verbose)
    if options.log_format == "auto" and can_redraw(stream, environment):
        from nodesweep.cli.views.live import LiveView

        return LiveView(stream, state, options.verbose)
    return PlainLines(stream, options.verbose)


def can_redraw(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return True if the stream is a terminal that can be redrawn and that encodes text as UTF."""
    return (
        stream.isatty()
        and "utf" in (stream.encoding or "").lower()
        and environment.get("TERM", "") not in ("dumb", "unknown")
        and environment.get("CI", "").lower() in _NO
    )


class EventStream(logging.Handler):
    """A log handler that passes every event to the run's log, then to the view."""

    def __init__(self, options: ViewOptions, stream: TextIO) -> None:
        super().__init__()
        self.state = RunState(is_detached=options.detach)
        self.view = choose_view(options, stream, self.state)
        self._resume_command = options.resume_command
        self._run_log = RunLog(self._show)

    def emit(self, record: logging.LogRecord) -> None:
        """Show the record's event."""
        if record.name == NODE_LOG and record.levelno < logging.WARNING:
            return  # samples of a node's lines for Prefect; node-line events have all lines
        try:
            self._show(read_event(record))
        except Exception:
            self.handleError(record)

    def _show(self, event: Event) -> None:
        if event.event not in _OTHERS_WORDS:
            event = replace(event, text=as_typed(event.text, self._resume_command))
        self._run_log.show(event)
        self.state.show(event)
        self.view.show(event)

    def announce(self, at_once: bool) -> None:
        """Report the first Ctrl-C, or with `at_once` the second; called in the signal handler."""
        if at_once:
            self.view.abandon(as_typed(self.state.aborted_text(self._resume_command)))
            return
        try:
            words, again = (
                self.state.interrupt_text(self._resume_command),
                self.state.second_interrupt_text(),
            )
        except RuntimeError:  # another thread changed the state
            words, again = "ending", LEAVES_JOBS
        self.view.interrupt(words, again)

    def report_end(self, error: BaseException) -> None:
        """Report where a failed run's log is and, after Ctrl-C, how to resume the run."""
        then = self.state.next_command(self._resume_command)
        if isinstance(error, KeyboardInterrupt) and then is not None:
            self._say("go-on", then)
        if self._run_log.path is not None:
            path = self._run_log.path
            self._say("run-log", f"the full log of this run: {path}", path=str(path))

    def _say(self, event: str, text: str, **facts: str) -> None:
        self._show(Event(datetime.now(UTC), event, text, facts=facts))

    def attach(self) -> None:
        """Replace the handlers of all loggers below `nodesweep`."""
        for name, level in ((ROOT, logging.INFO), (PROGRESS, logging.DEBUG)):
            logger = logging.getLogger(name)
            logger.handlers = [self]
            logger.setLevel(level)
            logger.propagate = False

    def detach(self) -> None:
        """Stop handling events, and close the view and the log.

        This is not named close(), because logging calls close() on every handler when it is
        reconfigured, which Prefect does in the middle of a run.
        """
        for name in (ROOT, PROGRESS):
            logger = logging.getLogger(name)
            logger.handlers = [handler for handler in logger.handlers if handler is not self]
        logging.getLogger(PROGRESS).setLevel(logging.NOTSET)
        self.view.close()
        self._run_log.close()
