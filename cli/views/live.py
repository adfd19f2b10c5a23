"""The live view of a run on a terminal: stages, a row per point, one bar over all, the program's
last words. What should stay on the terminal goes above it, as plain lines; at the end the view
takes itself away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.output import escape_control_characters
from cli.views.plain import Quiet, event_lines, write_at_once
from cli.views.state import PointState, RunState
from scaling.formats import format_seconds, format_speedup, format_usd
from scaling.planning.time_left import JobToCome, TimeLeft, left_by_steps, time_left
from tasks.events import Event

REDRAWS_PER_SECOND = 4
_MARKS = {
    "waiting": "·", "running": "▸", "done": "✓", "ended early": "✗", "as recorded": "–",
    "failed": "✗", "stopped": "■",
}  # fmt: skip
_LEAST_ROWS, _MOST_WORDS = 3, 6
_BAR_WIDTH = 12
_MOST_DECISION_ROWS = 4
_STAY = frozenset({
    "stage-ended", "point-ended", "run-log", "count-answered", "sweep-decided", "image-fetched",
})  # fmt: skip
"""Events that stay on the terminal; so do warnings, errors and, at the end, Ctrl-C's words."""


class LiveView:
    """Draws a RunState, which is kept by whoever made it; `show` adds what should stay."""

    def __init__(
        self,
        stream: TextIO,
        state: RunState,
        verbose: bool,
        now: Callable[[], float] = time.time,
        console: Console | None = None,
    ) -> None:
        self._state, self._verbose, self._now = state, verbose, now
        self._quiet = Quiet(verbose)
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
        with self._lock:
            if not (self._stays(event) or (self._verbose and self._quiet.shows(event))):
                return
            seconds = event.time.timestamp() - (self._state.started or event.time.timestamp())
            for line in event_lines(event, seconds, 0, self._state.log_path):
                style = "" if event.level < logging.WARNING else "yellow"
                style = "red" if event.level >= logging.ERROR else style
                self._console.print(Text(line, style), soft_wrap=True)

    def _stays(self, event: Event) -> bool:
        return event.event in _STAY or event.level >= logging.WARNING

    def interrupt(self, words: str, again: str) -> None:
        """Drawn by the view's own thread, a quarter of a second later at most."""
        self._interrupted, self._again = words, again

    def abandon(self, words: str) -> None:
        """Show the cursor, which the view has hidden."""
        write_at_once(self._console.file, f"\x1b[?25hnodesweep: {words}")

    def close(self) -> None:
        self._live.stop()
        if self._interrupted:
            words, self._interrupted = self._interrupted, ""
            self._console.print(Text(f"nodesweep: {words}"), soft_wrap=True)

    def draw(self) -> RenderableType:
        interrupted = f"{self._interrupted}. {self._again}" if self._interrupted else ""
        return Screen(self._state, self._now(), interrupted)


class Screen:
    """The state at one moment, as high and wide as the terminal is."""

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
            top += _points(self._state, self._now, max(_LEAST_ROWS, room - len(words)))
        said = [
            Text(escape_control_characters(line), "dim", no_wrap=True, overflow="ellipsis")
            for line in words
        ]
        yield Group(*top, *said, *bottom)


def _decision(text: str, console: Console, options: ConsoleOptions) -> Text:
    """Why the next jobs are the next and what is known so far, in a few lines; its beginning where
    there is no room for more.
    """
    lines = Text(escape_control_characters(text)).wrap(console, options.max_width)
    shown = list(lines[:_MOST_DECISION_ROWS])
    if len(lines) > len(shown):
        shown[-1].truncate(options.max_width - 1)
        shown[-1].append("…")
    return Text("\n").join(shown)


def _height(console: Console, options: ConsoleOptions, part: RenderableType) -> int:
    return len(console.render_lines(part, options.update(height=None)))


def _stages(state: RunState, now: float) -> Table:
    """A line for each stage: mark, name, time taken, how far its long step is."""
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


def _points(state: RunState, now: float, room: int) -> list[RenderableType]:
    """As many points as there is room for: those that run, then those that ended last, then those
    that come next.
    """
    points = state.points
    shown = points
    if len(points) > room:
        order = sorted(range(len(points)), key=lambda at: (_urgency(points[at]), at))
        kept = sorted(order[: room - 1])
        shown = [points[at] for at in kept]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    has_types = any(point.instance_type is not None for point in points)
    if has_types:
        table.add_column("instance type", no_wrap=True)
    for heading in ("nodes", "repeat"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, overflow="ellipsis", min_width=12)
    table.add_column("progress", no_wrap=True, overflow="ellipsis", min_width=18)
    for heading in ("T", "speedup"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in shown:
        baseline = _baseline(state, point.instance_type)
        table.add_row(
            _MARKS.get(point.state, "▸"),
            *([point.instance_type or ""] if has_types else []),
            str(point.nodes),
            "check" if point.kind == "check" else str(point.repeat),
            escape_control_characters(point.state),
            _progress(point, now),
            f"{format_seconds(point.train_seconds)}{' projected' if point.is_projected else ''}",
            format_speedup(_speedup(point, baseline)),
        )
    left_out = len(points) - len(shown)
    return [table, *([Text(f"… {left_out} more points", "dim")] if left_out else [])]


def _speedup(point: PointState, baseline: float | None) -> float | None:
    """Of a check none: it is a whole run, and what it would be compared with is projected."""
    if point.kind == "check" or not baseline or not point.train_seconds:
        return None
    return baseline / point.train_seconds


def _urgency(point: PointState) -> int:
    return 0 if point.runs else 2 if point.state == "waiting" else 1


def _baseline(state: RunState, instance_type: str | None) -> float | None:
    """T of the smallest node count of that type, of its first repeat that is done."""
    smallest = min((point.nodes for point in state.points), default=0)
    return next(
        (
            point.train_seconds
            for point in state.points
            if point.nodes == smallest
            and point.instance_type == instance_type
            and point.train_seconds
            and point.kind != "check"
        ),
        None,
    )


def _progress(point: PointState, now: float) -> str:
    """Steps where the program tells them; else since when it trains, or until when it may wait."""
    if not point.runs:
        of = f" of {point.steps}" if point.whole_run_seconds and point.steps else ""
        return "" if point.step is None else f"{point.step}{of} steps"
    if point.step is not None:
        if point.kind == "probe":  # of how many says nothing of its end
            return f"step {point.step}, ends early"
        if not point.steps:
            return f"step {point.step}"
        full = min(_BAR_WIDTH, round(_BAR_WIDTH * point.step / point.steps))
        return f"{'█' * full}{'░' * (_BAR_WIDTH - full)} {point.step}/{point.steps}"
    since = (
        "" if point.begun is None else f"for {format_seconds(round(max(0.0, now - point.begun)))}"
    )
    if point.trains_since is None and point.wait_until is not None:
        # local time: it is a person who reads it
        until = datetime.fromtimestamp(point.wait_until).astimezone()
        return f"{since}, at most till {until:%H:%M}"
    return since


def left_of(state: RunState, now: float) -> TimeLeft | None:
    """How long the points that are not done still take, the check of a probe sweep among them
    before it is decided where that is; of several instance types nobody knows how fast one is by
    another.
    """
    if any(point.instance_type is not None for point in state.points):
        return None
    done = [point for point in state.points if point.state == "done" and point.job_seconds]
    ended = [(point.nodes, point.job_seconds or 0.0) for point in done if point.kind != "check"]
    foretold = [(point.nodes, point.whole_run_seconds) for point in done if point.whole_run_seconds]
    to_come = [
        JobToCome(
            point.nodes,
            now - point.begun if point.runs and point.begun is not None else None,
            _left_by_steps(point, now),
            point.kind == "check",
        )
        for point in state.points
        if point.runs or point.state == "waiting"
    ]
    if _awaits_check(state):
        smallest, *others = sorted({point.nodes for point in state.points})
        to_come.append(JobToCome(smallest, is_check=True, or_at=tuple(others)))
    return time_left(ended, to_come, state.max_parallel_jobs, foretold)


def _awaits_check(state: RunState) -> bool:
    """Whether probes still run or wait, of which one at least has told how long a whole job takes:
    then a check will follow.
    """
    return (
        any(point.whole_run_seconds for point in state.points)
        and any(point.runs or point.state == "waiting" for point in state.points)
        and not any(point.kind == "check" for point in state.points)
    )


def _left_by_steps(point: PointState, now: float) -> float | None:
    """Of a probe nothing: it ends when its step time is known."""
    if point.kind == "probe" or point.trains_since is None or not point.runs:
        return None
    if not point.step or not point.steps:
        return None
    return left_by_steps(now - point.trains_since, point.step, point.steps)


def _total(state: RunState, now: float, width: int) -> Table:
    """The bar over all points, time left, cost."""
    over = sum(point.state in ("done", "failed", "stopped") for point in state.points)
    left = left_of(state, now)
    begun = state.stages["sweep"].begun or now
    elapsed = max(0.0, now - begun)
    share = over / len(state.points)
    if left is not None:
        share = elapsed / (elapsed + left.seconds) if elapsed + left.seconds else 1.0
    planned = len(state.points) + _awaits_check(state)
    words = [f"{over}/{planned} points", _left_words(left)]
    cost = state.cost_so_far_usd(now)
    if cost is not None:
        most = f" of at most {format_usd(state.cost_bound_usd)}" if state.cost_bound_usd else ""
        words.append(f"{format_usd(cost)}{most}")
    text = "  ".join(words)
    if state.design == "sequential":  # only what it has asked for so far is known
        most = f", at most {state.most_jobs}"
        text = (
            text.replace(" points", f" points{most}", 1) if len(text + most) + 12 < width else text
        )
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(total=1.0, completed=share, width=max(8, min(60, width - len(text) - 4)))
    table.add_row(bar, text)
    return table


def _left_words(left: TimeLeft | None) -> str:
    if left is None:
        return "time left: not known yet"
    low, high = (format_seconds(round(of)) for of in (left.low_seconds, left.high_seconds))
    if left.high_seconds < 1:
        return "about to end"
    return f"{format_seconds(round(left.seconds))} left ({low} to {high})"
