"""Follow the logs of running jobs, and merge all nodes' new lines by time into the run's log.

Views get every line, with its origin (nodesweep/events.py). Prefect gets at most 10 lines per job
and poll, in bursts of 20 and at 60 a minute, so that a chatty job does not fill its database.
Omitted lines are counted, with a pointer to the full log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from nodesweep.errors import CALL_ERRORS, is_transient
from nodesweep.events import NODE_LOG, emit
from nodesweep.launch.protocol import JobLog
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling.outcome.line_kinds import LineKinds, Step, step_of

logger = logging.getLogger(NODE_LOG)
MAX_LINES_PER_POLL = 10
LINES_PER_MINUTE = 60.0
BURST_LINES = 20
MAX_LINE_CHARACTERS = 1000


@dataclass
class _Followed:
    """A job's log, with the state of following it."""

    log: JobLog
    lines: CallBudget
    is_location_logged: bool = False
    kinds: LineKinds = field(default_factory=LineKinds)


class LogFollower:
    """Follows the logs of all nodes of each job, except for jobs whose log can't be read."""

    def __init__(
        self, open_log: Callable[[str, datetime], JobLog], clock: Clock | None = None
    ) -> None:
        self._open_log, self._clock = open_log, clock or Clock()
        self._followed: dict[str, _Followed] = {}
        self._unreadable: set[str] = set()
        self._stepped: set[str] = set()
        self._last_steps: dict[str, Step] = {}
        self._is_step: Callable[[str], bool] = lambda line: False

    def has_stepped(self, job_name: str) -> bool:
        """Return True if a line read so far reports a step of the job."""
        return job_name in self._stepped

    def last_step(self, job_name: str) -> Step | None:
        """Return the furthest step reported in the job's lines so far, or None before the first."""
        return self._last_steps.get(job_name)

    def begin(
        self,
        job_names: Iterable[str],
        since: datetime,
        is_step: Callable[[str], bool] = lambda line: False,
    ) -> None:
        """Follow these jobs from `since` on; jobs already followed continue where they are.

        `is_step` recognizes the lines that count for has_stepped().
        """
        self._is_step = is_step
        for name in job_names:
            if name not in self._followed:
                lines = CallBudget(LINES_PER_MINUTE / 60.0, BURST_LINES, self._clock)
                self._followed[name] = _Followed(self._open_log(name, since), lines)

    def poll(self, job_name: str) -> None:
        """Log the newest of a job's new lines within the limits, and the number of other lines.

        This makes one call; the next poll reads further lines.
        """
        if job_name in self._unreadable:
            return
        try:
            new_lines = self._followed[job_name].log.new_lines()
            lines = sorted(new_lines, key=lambda line: line[0])
        except CALL_ERRORS as error:
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
        kind = self._followed[job_name].kinds.sort(host, text)
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
        budget = self._followed[job_name].lines
        return sum(budget.try_take() for _ in range(min(count, MAX_LINES_PER_POLL)))

    def _log_left_out(self, job_name: str, count: int) -> None:
        job = self._followed[job_name]
        where = "" if job.is_location_logged else f"; full log: {job.log.location}"
        job.is_location_logged = True
        logger.info("%s: … %d lines left out%s", job_name, count, where)
