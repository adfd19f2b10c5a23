"""The live view of a run on a terminal: stages, a row per point, a progress bar and recent lines.

Lines that should stay are printed above it; at the end the view removes itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nodesweep.cli.output import escape_control_characters
from nodesweep.cli.views.plain import EventFilter, event_lines, write_unbuffered
from nodesweep.cli.views.state import PointState, RunState
from nodesweep.events import Event
from nodesweep.scaling.formats import format_seconds, format_speedup, format_time, format_usd
from nodesweep.scaling.planning.time_left import (
    ArmCount,
    CompletedJob,
    PendingJob,
    TimeLeft,
    left_by_steps,
    time_left,
)

REDRAWS_PER_SECOND = 4
_MARKS = {
    "waiting": "·", "running": "▸", "done": "✓", "ended early": "✗", "as recorded": "–",
    "failed": "✗", "stopped": "■", "left out": "–",
}  # fmt: skip
_LEAST_ROWS, _MOST_WORDS = 3, 6
_BAR_WIDTH = 12
_LEAST_BAR_WIDTH = 8
_MOST_DECISION_ROWS = 4
_HEADINGS = ("", "nodes", "repeat", "state", "progress", "T", "speedup")
_PROGRESS = _HEADINGS.index("progress")
_STAY = frozenset({
    "stage-ended", "point-ended", "run-log", "count-answered", "sweep-decided", "image-fetched",
})  # fmt: skip
"""Events that stay on the terminal, like warnings, errors and, at the end, Ctrl-C's message."""


class LiveView:
    """A view that draws a RunState kept by the caller, and prints events that should stay."""

    def __init__(
        self,
        stream: TextIO,
        state: RunState,
        verbose: bool,
        now: Callable[[], float] = time.time,
        console: Console | None = None,
    ) -> None:
        self._state, self._verbose, self._now = state, verbose, now
        self._filter = EventFilter(verbose)
        self._interrupted = self._again = ""
        self._lock = threading.RLock()
        self._console = console or Console(file=stream, stderr=True)
        self._live = Live(
            get_renderable=self.draw,
            console=self._console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def show(self, event: Event) -> None:
        """Print the event above the view if it should stay."""
        with self._lock:
            if not (self._is_persistent(event) or (self._verbose and self._filter.shows(event))):
                return
            seconds = event.time.timestamp() - (self._state.started or event.time.timestamp())
            for line in event_lines(event, seconds, 0, self._state.log_path):
                style = "" if event.level < logging.WARNING else "yellow"
                style = "red" if event.level >= logging.ERROR else style
                self._console.print(Text(line, style), soft_wrap=True)

    def _is_persistent(self, event: Event) -> bool:
        return event.event in _STAY or event.level >= logging.WARNING

    def interrupt(self, words: str, again: str) -> None:
        """Show Ctrl-C's message; the view's thread draws it within a quarter of a second."""
        self._interrupted, self._again = words, again

    def abandon(self, words: str) -> None:
        """Show the cursor, which the view has hidden, and a last message."""
        write_unbuffered(self._console.file, f"\x1b[?25hnodesweep: {words}")

    def close(self) -> None:
        """Remove the view, and leave Ctrl-C's message on the terminal."""
        self._live.stop()
        if self._interrupted:
            words, self._interrupted = self._interrupted, ""
            self._console.print(Text(f"nodesweep: {words}"), soft_wrap=True)

    def draw(self) -> RenderableType:
        """Return the current screen."""
        interrupted = f"{self._interrupted}. {self._again}" if self._interrupted else ""
        return Screen(self._state, self._now(), interrupted)


class Screen:
    """The state at one moment, fitted to the terminal's height and width."""

    def __init__(self, state: RunState, now: float, interrupted: str = "") -> None:
        self._state, self._now, self._interrupted = state, now, interrupted

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        height = (options.height or console.size.height) - 1
        top: list[RenderableType] = [_stages(self._state, self._now)]
        bottom: list[RenderableType] = []
        if self._state.decision and self._state.stages["sweep"].state == "running":
            bottom.append(_decision(self._state.decision, console, options))
        if self._state.stages["preflight"].begun is None and self._state.note:
            bottom.append(Text(escape_control_characters(self._state.note), "dim"))
        if waits := _why_jobs_wait(self._state):
            bottom.append(Text(waits, "dim", no_wrap=True, overflow="ellipsis"))
        if self._state.points:
            bottom.append(_total(self._state, self._now, options.max_width))
        if self._interrupted:
            bottom.append(Text(f"nodesweep: {self._interrupted}", "bold yellow"))
        used = sum(_height(console, options, part) for part in (*top, *bottom))
        rows = self._state.points
        room = max(_LEAST_ROWS, height - used - 2)
        words = list(self._state.recent)[-max(0, min(_MOST_WORDS, room - len(rows) - 2)) :]
        if room - len(rows) - 2 < 1:
            words = []
        if rows:
            max_rows = max(_LEAST_ROWS, room - len(words))
            top += _points(self._state, self._now, max_rows, options.max_width)
        recent = [
            Text(escape_control_characters(line), "dim", no_wrap=True, overflow="ellipsis")
            for line in words
        ]
        yield Group(*top, *recent, *bottom)


def _why_jobs_wait(state: RunState) -> str:
    """Return why jobs wait, e.g. "Pending: another training job runs"; "" if unknown."""
    waiting = (each for each in state.points if each.runs and each.trains_since is None)
    reason = next(((each.state, each.why) for each in waiting if each.why), None)
    return "" if reason is None else escape_control_characters(": ".join(reason))


def _decision(text: str, console: Console, options: ConsoleOptions) -> Text:
    """Return the reason for the next jobs and the results so far, truncated to a few lines."""
    lines = Text(escape_control_characters(text)).wrap(console, options.max_width)
    shown = list(lines[:_MOST_DECISION_ROWS])
    if len(lines) > len(shown):
        shown[-1].truncate(options.max_width - 1)
        shown[-1].append("…")
    return Text("\n").join(shown)


def _height(console: Console, options: ConsoleOptions, part: RenderableType) -> int:
    return len(console.render_lines(part, options.update(height=None)))


def _stages(state: RunState, now: float) -> Table:
    """Return a table with the mark, name, duration and progress of each stage."""
    table = Table.grid(padding=(0, 2))
    for column in ("left", "left", "right", "left"):
        table.add_column(justify=column, no_wrap=True, overflow="ellipsis")
    for name, stage in state.stages.items():
        seconds = stage.seconds
        if stage.state == "running" and stage.begun is not None:
            seconds = float(round(now - stage.begun)) if now - stage.begun >= 1 else None
        words = stage.note or ("" if stage.state in ("done", "running") else stage.state)
        table.add_row(
            _MARKS[stage.state],
            name,
            "" if seconds is None else format_seconds(seconds),
            escape_control_characters(words),
        )
    return table


def _points(state: RunState, now: float, room: int, width: int) -> list[RenderableType]:
    """Return a table of as many points as fit: running points first, then ended ones."""
    points = state.points
    shown = points
    if len(points) > room:
        order = sorted(range(len(points)), key=lambda at: (_urgency(points[at]), at))
        indices = sorted(order[: room - 1])
        shown = [points[at] for at in indices]
    has_arms = any(point.arm for point in points)
    rows = [_cells(point, state, now, has_arms) for point in shown]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    least = {"state": 12, "progress": 18}
    if has_arms:  # names of types are long; progress gets the remaining width
        least = {"progress": max(8, min(18, width - _others_width(rows)))}
    for heading in _HEADINGS:
        table.add_column(
            heading,
            justify="right" if heading in ("repeat", "T", "speedup") else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=least.get(heading),
            max_width=least.get(heading) if has_arms else None,
        )
    if not has_arms:
        table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*row)
    left_out = len(points) - len(shown)
    return [table, *([Text(f"… {left_out} more points", "dim")] if left_out else [])]


def _cells(point: PointState, state: RunState, now: float, has_arms: bool) -> list[str]:
    """Return a row's cells; with several arms, the state is "projected" to save space."""
    seconds, shown_state = format_seconds(point.train_seconds), point.state
    if point.is_projected and has_arms:
        shown_state = "projected" if point.state == "done" else point.state
    elif point.is_projected:
        seconds += " projected"
    return [
        _MARKS.get(point.state, "▸"),
        point.place or str(point.nodes),
        "check" if point.is_validation_run else str(point.repeat),
        escape_control_characters(shown_state),
        _progress(point, now),
        seconds,
        format_speedup(_speedup(point, _baseline(state, point.arm))),
    ]


def _others_width(rows: Sequence[Sequence[str]]) -> int:
    """Return the width of all columns but progress, with their padding."""
    columns = [list(column) for column in zip(_HEADINGS, *rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    return sum(widths) - widths[_PROGRESS] + 2 * len(widths)


def _speedup(point: PointState, baseline: float | None) -> float | None:
    """Return the speedup; None for a validation run, since its baseline is only projected."""
    if point.is_validation_run or not baseline or not point.train_seconds:
        return None
    return baseline / point.train_seconds


def _urgency(point: PointState) -> int:
    return 0 if point.runs else 2 if point.state == "waiting" else 1


def _baseline(state: RunState, arm: str) -> float | None:
    """Return the train time of the first completed repeat at the arm's smallest node count."""
    smallest = min((point.nodes for point in state.points), default=0)
    return next(
        (
            point.train_seconds
            for point in state.points
            if point.nodes == smallest
            and point.arm == arm
            and point.train_seconds
            and not point.is_validation_run
        ),
        None,
    )


def _progress(point: PointState, now: float) -> str:
    """Return the steps if the program reports them, otherwise the time in the current state."""
    if not point.runs:
        of = f" of {point.steps}" if point.whole_run_seconds and point.steps else ""
        return "" if point.step is None else f"{point.step}{of} steps"
    if point.step is not None:
        if point.ends_early:  # it ends before its last step
            return f"step {point.step}, ends early"
        if not point.steps:
            return f"step {point.step}"
        full = min(_BAR_WIDTH, round(_BAR_WIDTH * point.step / point.steps))
        return f"{'█' * full}{'░' * (_BAR_WIDTH - full)} {point.step}/{point.steps}"
    since = (
        "" if point.begun is None else f"for {format_seconds(round(max(0.0, now - point.begun)))}"
    )
    if point.trains_since is None and point.wait_until is not None:
        # local time, because the reader is at this terminal
        until = format_time(datetime.fromtimestamp(point.wait_until), datetime.fromtimestamp(now))
        return f"{since}, at most until {until}"
    return since


def left_of(state: RunState, now: float) -> TimeLeft | None:
    """Return the time left for all unfinished points, estimated per arm.

    The estimate includes probes that may be requested later, and the validation run of a probe
    sweep even before its node count is decided.
    """
    done = [point for point in state.points if point.state == "done" and point.job_seconds]
    ended = [
        CompletedJob(point.nodes, point.job_seconds or 0.0, point.arm)
        for point in done
        if not point.is_validation_run
    ]
    foretold = [
        CompletedJob(point.nodes, point.whole_run_seconds, point.arm)
        for point in done
        if point.whole_run_seconds
    ]
    to_come = [
        PendingJob(
            point.nodes,
            now - point.begun if point.runs and point.begun is not None else None,
            _left_by_steps(point, now),
            point.is_validation_run,
            arm=point.arm,
            may_be_dropped=point.may_be_dropped,
        )
        for point in (*state.points, *state.later)
        if point.runs or point.state == "waiting"
    ]
    if _is_awaiting_validation(state):
        smallest, *others = sorted({ArmCount(point.nodes, point.arm) for point in state.points})
        to_come.append(
            PendingJob(
                smallest.nodes,
                is_validation_run=True,
                or_at=tuple(others),
                arm=smallest.arm,
            )
        )
    return time_left(ended, to_come, state.max_parallel_jobs, foretold)


def _is_awaiting_validation(state: RunState) -> bool:
    """Return True if a validation run will follow the probes that are running or waiting.

    At least one probe must have projected the duration of a whole job.
    """
    return (
        state.rules.validates
        and any(point.whole_run_seconds for point in state.points)
        and any(point.runs or point.state == "waiting" for point in state.points)
        and not any(point.is_validation_run for point in state.points)
    )


def _left_by_steps(point: PointState, now: float) -> float | None:
    """Estimate the remaining seconds from steps; None if unknown, as for a probe."""
    if point.ends_early or point.trains_since is None or not point.runs:
        return None
    if not point.step or not point.steps:
        return None
    return left_by_steps(now - point.trains_since, point.step, point.steps)


def _total(state: RunState, now: float, width: int) -> Table:
    """Return the overall progress bar, time left and cost; the cost wraps if space is short."""
    over = sum(point.is_over for point in state.points)
    left = left_of(state, now)
    begun = state.stages["sweep"].begun or now
    elapsed = max(0.0, now - begun)
    most = _most_points(state)
    share = over / (most or len(state.points))
    if left is not None and math.isfinite(left.high_seconds):
        share = elapsed / (elapsed + left.seconds) if elapsed + left.seconds else 1.0
    planned = len(state.points) + _is_awaiting_validation(state)
    words, left_words = f"{over}/{planned} points", _left_words(left)
    cost = _cost_words(state, now)
    if most is not None and len(f"{words}, at most {most}  {left_words}") + 12 < width:
        words += f", at most {most}"
    words = f"{words}  {left_words}"
    lines = [words] if cost is None else [words, cost]
    if cost is not None and len(f"{words}  {cost}") + _LEAST_BAR_WIDTH + 2 <= width:
        lines = [f"{words}  {cost}"]
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True, overflow="ellipsis")
    longest = max(map(len, lines))
    bar_width = max(_LEAST_BAR_WIDTH, min(60, width - longest - 4))
    bar = ProgressBar(total=1.0, completed=share, width=bar_width)
    for number, text in enumerate(lines):
        table.add_row(bar if number == 0 else "", text)
    return table


def _most_points(state: RunState) -> int | None:
    """Return the maximum number of points, if the planned ones may not be all."""
    if state.rules.repeats_as_needed:
        return state.most_jobs
    if state.later:
        return len(state.points) + len(state.later) + 1  # the validation run
    return None


def _cost_words(state: RunState, now: float) -> str | None:
    cost = state.cost_so_far_usd(now)
    if cost is None:
        return None
    most = f" of at most {format_usd(state.cost_bound_usd)}" if state.cost_bound_usd else ""
    return f"{format_usd(cost)}{most}"


def _left_words(left: TimeLeft | None) -> str:
    if left is None:
        return "time left: not yet known"
    low = format_seconds(round(left.low_seconds))
    if math.isinf(left.high_seconds):  # for at least one type, no job has ended yet
        return f"at least {low} left"
    if left.high_seconds < 1:
        return "about to end"
    high = format_seconds(round(left.high_seconds))
    return f"{format_seconds(round(left.seconds))} left ({low} to {high})"
