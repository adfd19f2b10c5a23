"""Follow the logs of running jobs, and merge all nodes' new lines by time into the run's log.

Views get every line, with its origin (nodesweep/events.py). Prefect gets at most 10 lines per job
and poll, in bursts of 20 and at 60 a minute, so that a chatty job does not fill its database;
omitted lines are counted, with a pointer to the whole log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from nodesweep.errors import error_code, is_transient
from nodesweep.events import NODE_LOG, emit
from nodesweep.launch.sagemaker.logs import log_group
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling.outcome.line_kinds import LineKinds, Step, step_of
from nodesweep.scaling.secrets import LogHider

logger = logging.getLogger(NODE_LOG)
MAX_LINES_PER_POLL = 10
LINES_PER_MINUTE = 60.0
BURST_LINES = 20
MAX_LINE_CHARACTERS = 1000
_LATE_MILLISECONDS = 10_000
"""Overlap of two polls in ms, because nodes deliver lines late; duplicates are dropped."""


@dataclass
class _Cursor:
    """The position in a job's log.

    `said` maps the ID of each line since `since_milliseconds` to its time.
    """

    since_milliseconds: int
    lines: CallBudget
    is_location_logged: bool = False
    next_token: str | None = None
    kinds: LineKinds = field(default_factory=LineKinds)
    hiders: dict[str, LogHider] = field(default_factory=dict)
    """The secret filter of each log stream."""
    said: dict[str, int] = field(default_factory=dict)


class LogFollower:
    """Follows the logs of all nodes of each job, and drops a job whose log can't be read."""

    def __init__(self, logs: Any, clock: Clock | None = None) -> None:
        self._logs, self._clock = logs, clock or Clock()
        self._cursors: dict[str, _Cursor] = {}
        self._unreadable: set[str] = set()
        self._stepped: set[str] = set()
        self._last_steps: dict[str, Step] = {}
        self._is_step: Callable[[str], bool] = lambda line: False

    def has_stepped(self, job_name: str) -> bool:
        """Return True if a line read so far reports a step of the job."""
        return job_name in self._stepped

    def last_step(self, job_name: str) -> Step | None:
        """Return the furthest step reported in the job's lines so far; None before the first."""
        return self._last_steps.get(job_name)

    def begin(
        self,
        job_names: Iterable[str],
        since: datetime,
        is_step: Callable[[str], bool] = lambda line: False,
    ) -> None:
        """Follow these jobs from `since` on; those already followed continue where they are.

        `is_step` recognizes the lines that count for has_stepped().
        """
        self._is_step = is_step
        for name in job_names:
            lines = CallBudget(LINES_PER_MINUTE / 60.0, BURST_LINES, self._clock)
            self._cursors.setdefault(name, _Cursor(int(since.timestamp() * 1000), lines))

    def poll(self, job_name: str) -> None:
        """Log a job's new lines: the newest within the limits, and a count of the others.

        Makes one FilterLogEvents call; the next poll reads a further page (1 MB, 10,000 lines).
        """
        if job_name in self._unreadable:
            return
        try:
            lines = sorted(self.new_lines(job_name), key=lambda line: line[0])
        except (BotoCoreError, ClientError) as error:
            if not is_transient(error):
                self._unreadable.add(job_name)
                logger.warning("the log of %s can't be followed: %s", job_name, error)
            return
        if any(self._is_step(text) for _, text in lines):
            self._stepped.add(job_name)
        for _, text in lines:
            self._emit_line(job_name, text)
        shown = self._allowed(job_name, len(lines))
        if shown < len(lines):
            self._log_left_out(job_name, len(lines) - shown)
        for _, text in lines[len(lines) - shown :]:
            cut = len(text) - MAX_LINE_CHARACTERS
            logger.info(
                "%s",
                text if cut <= 0 else f"{text[:MAX_LINE_CHARACTERS]} … {cut} characters left out",
            )

    def _emit_line(self, job_name: str, line: str) -> None:
        """Send a whole line to the views."""
        host, _, text = line.partition(": ")
        kind = self._cursors[job_name].kinds.sort(host, text)
        step = step_of(text) if kind == "program" else None
        if step is not None:
            known = self._last_steps.get(job_name, step)
            self._last_steps[job_name] = Step(max(step.step, known.step), step.of or known.of)
        emit(
            "node-line", text,
            source="log", stage="sweep", job=job_name, host=host, kind=kind, step=step,
        )  # fmt: skip

    def _allowed(self, job_name: str, count: int) -> int:
        """Return how many of `count` new lines may be logged now."""
        budget = self._cursors[job_name].lines
        return sum(budget.try_take() for _ in range(min(count, MAX_LINES_PER_POLL)))

    def _log_left_out(self, job_name: str, count: int) -> None:
        cursor = self._cursors[job_name]
        where = (
            ""
            if cursor.is_location_logged
            else f"; full log: CloudWatch Logs, {log_group(job_name)}, {job_name}/*"
        )
        cursor.is_location_logged = True
        logger.info("%s: … %d lines left out%s", job_name, count, where)

    def new_lines(self, job_name: str) -> Iterator[tuple[int, str]]:
        """Yield (time, "host: text") of each new line of the next page, with secrets masked."""
        cursor, prefix = self._cursors[job_name], f"{job_name}/"
        streams: dict[str, list[dict[str, Any]]] = {}
        for event in self._next_page(cursor, log_group(job_name), prefix):
            # A platform may ignore the prefix.
            if event["logStreamName"].startswith(prefix) and event["eventId"] not in cursor.said:
                cursor.said[event["eventId"]] = event["timestamp"]
                streams.setdefault(event["logStreamName"], []).append(event)
        for stream, events in streams.items():
            hider = cursor.hiders.setdefault(stream, LogHider())
            host = stream.removeprefix(prefix).rsplit("-", 1)[0]
            texts = hider.hide(event["message"].rstrip() for event in events)
            yield from (
                (event["timestamp"], f"{host}: {text}")
                for event, text in zip(events, texts, strict=True)
            )
        if (
            cursor.next_token is None and cursor.said
        ):  # a page token is valid only for an unchanged query
            newest = max(cursor.said.values())
            cursor.since_milliseconds = max(cursor.since_milliseconds, newest - _LATE_MILLISECONDS)
            cursor.said = {
                line: at for line, at in cursor.said.items() if at >= cursor.since_milliseconds
            }

    def has_more(self, job_name: str) -> bool:
        """Return True if a further page of existing lines is ready to be read."""
        return self._cursors[job_name].next_token is not None

    def _next_page(self, cursor: _Cursor, group: str, prefix: str) -> list[dict[str, Any]]:
        token = {"nextToken": cursor.next_token} if cursor.next_token is not None else {}
        try:
            page = self._logs.filter_log_events(
                logGroupName=group,
                logStreamNamePrefix=prefix,
                startTime=cursor.since_milliseconds,
                **token,
            )
        except ClientError as error:
            if error_code(error) == "ResourceNotFoundException":
                # The account's first job creates the group.
                return []
            raise
        cursor.next_token = page.get("nextToken")
        return list(page["events"])
