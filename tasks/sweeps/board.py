"""Show a running sweep in Prefect's UI: its progress, a table of its attempts, and its jobs."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.runtime import flow_run

from nodesweep.configs.models import SweepConfig
from nodesweep.launch.watch import JobProgress
from nodesweep.polling import utc_now
from nodesweep.scaling import names
from nodesweep.scaling.arms import Arm
from nodesweep.scaling.formats import agree, format_time, format_usd
from nodesweep.scaling.outcome.attainment import soundness
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import PlannedPoint, SweepPlan
from nodesweep.scaling.planning.time_left import CompletedJob, PendingJob, TimeLeft, time_left
from nodesweep.tasks.sweeps.drawing import Drawer, Drawing, Table
from nodesweep.tasks.sweeps.job_runs import (
    STOPPED,
    SUBMITTED,
    UNWATCHED,
    JobRuns,
    ended_view,
    running_view,
)
from nodesweep.tasks.task import failures_as_warnings

logger = logging.getLogger("nodesweep.board")
# Minimum seconds between two versions of the table, in total and per row, because Prefect stores
# each version three times.
_TABLE_SECONDS, _ROW_SECONDS = 20.0, 1.0
_RUNNING_SECONDS = 20.0
"""Minimum seconds between two updates of the running jobs; Prefect keeps only the last one."""
_RUNNING_NAMED = 4
_LAST_SECONDS = 20.0
"""Maximum wait for the final drawing, in seconds."""
_ABANDON_SECONDS = 10.0
"""Maximum wait in seconds after an interrupted sweep; a worker kills the process after 30 s."""
_Point = tuple[str, int, int]
"""(code of the arm, nodes, repeat), as in names.JobKey.point."""


def name_flow_run(name: str) -> None:
    """Rename the flow run; an unreachable server only causes a warning."""
    if flow_run.id is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(flow_run.id), name=name)
    except Exception as error:
        # The sweep continues under its old name, whatever Prefect's client raises.
        logger.warning("the run can't be named %s in Prefect: %s", name, error)


class SweepBoard:
    """A progress artifact, versions of a table artifact, and a task run per job.

    An unreachable server neither fails a job nor delays a poll.
    """

    def __init__(
        self,
        sweep: str,
        plan: SweepPlan,
        config: SweepConfig,
        monotonic: Callable[[], float] = time.monotonic,
        timeout_seconds: float | None = None,
    ) -> None:
        self._sweep, self._plan, self._config = sweep, plan, config
        self._monotonic = monotonic
        self._is_open = config.rules.decides_as_it_goes
        self._begun: dict[str, float] = {}
        self._outcomes: Sequence[JobOutcome] = ()
        self._watched: set[str] = set()
        self._drawer = Drawer(sweep, JobRuns(config.max_attempts, timeout_seconds))
        self._drawn_progress: tuple[float, str] | None = None
        self._drawn_progress_at = -math.inf
        self._drawn_at: float | None = None
        self._drawn_rows = 0

    def show(
        self, outcomes: Sequence[JobOutcome], running: Collection[str] = (), last: bool = False
    ) -> None:
        """Update the progress if its whole percent has changed, and the table at most every 20 s.

        From 20 rows on, the pause between two tables is 1 s per row.

        Args:
            outcomes: every attempt that has ended.
            running: names of the accepted jobs that have not ended.
            last: True to draw both, and wait until they are drawn.
        """
        with failures_as_warnings(f"the progress of {self._sweep}"):
            now = self._monotonic()
            self._show_jobs(outcomes, running)
            self._outcomes = tuple(outcomes)
            self._begun = {name: self._begun.get(name, now) for name in running}
            share = self._share()
            table = self._due_table(now, last)
            is_drawn = self._drawn_progress is not None and int(share) == int(
                self._drawn_progress[0]
            )
            if not is_drawn or table is not None or (last and share < 100):
                self._draw(share, self._words(now, {}, last), now, table)
        if last:
            self._drawer.wait(_LAST_SECONDS)

    def show_running(self, progress_by_job: Mapping[str, JobProgress]) -> None:
        """Update the progress of the running jobs if it has changed, at most every 20 s."""
        with failures_as_warnings(f"the progress of {self._sweep}"):
            self._drawer.show_jobs(
                {job: running_view(each.state) for job, each in progress_by_job.items()}
            )
            now = self._monotonic()
            if now - self._drawn_progress_at < _RUNNING_SECONDS:
                return
            drawn = (self._share(), self._words(now, progress_by_job, last=False))
            if drawn != self._drawn_progress:
                self._draw(*drawn, now)

    def end(self, stopped: bool) -> None:
        """End the task runs of jobs that were stopped or are no longer watched."""
        with failures_as_warnings(f"the end of {self._sweep}"):
            self._drawer.abandon_jobs(STOPPED if stopped else UNWATCHED, _ABANDON_SECONDS)

    def _show_jobs(self, outcomes: Sequence[JobOutcome], running: Collection[str]) -> None:
        """Show newly submitted jobs, and newly ended ones."""
        new = [name for name in running if name not in self._watched]
        self._watched.update(new)
        ended = outcomes[len(self._outcomes) :]
        self._drawer.show_jobs(
            dict.fromkeys(new, SUBMITTED)
            | {each.job_name: ended_view(each, each.job_name in self._watched) for each in ended}
        )

    def _draw(self, share: float, words: str, now: float, table: Table | None = None) -> None:
        self._drawn_progress, self._drawn_progress_at = (share, words), now
        self._drawer.submit(Drawing(share, words, table))

    def _done(self) -> set[_Point]:
        return {_point_of(outcome) for outcome in self._outcomes if outcome.completed}

    def _share(self) -> float:
        """Return the percentage of points done.

        The result is capped at 100, since an earlier run may have completed points that the design
        no longer needs.
        """
        return min(100.0, 100.0 * len(self._done()) / self._config.most_jobs)

    def _due_table(self, now: float, last: bool) -> Table | None:
        rows = len(self._outcomes)
        pause = max(_TABLE_SECONDS, _ROW_SECONDS * rows)
        due = self._drawn_at is None or now - self._drawn_at >= pause
        if not rows or rows == self._drawn_rows or not (last or due):
            return None
        self._drawn_at, self._drawn_rows = now, rows
        smallest = min(point.nodes for point in self._plan.points)
        words = f"Runs of {self._sweep} so far ({_platform_text(self._outcomes)})"
        return Table(words, _rows(self._outcomes, smallest, self._config, tuple(self._plan.by_arm)))

    def _words(self, now: float, progress_by_job: Mapping[str, JobProgress], last: bool) -> str:
        """Return the description: points done, cost so far, expected end and running jobs."""
        done, outcomes = self._done(), self._outcomes
        planned = f"{self._config.most_jobs} points"
        if self._is_open:
            planned = f"at most {planned}"
        verb = agree(len(done), "has", "have")
        words = [f"{len(done)} of {planned} of {self._sweep} {verb} a completed run"]
        got = next((each.instance_type for each in outcomes if each.instance_type), None)
        rates = self._plan.on_type(got).usd_per_hour_by_code
        if None not in rates.values():
            usd = sum(
                each.nodes
                * (each.clocks.billable_seconds or 0)
                * (rates.get(_point_of(each)[0]) or 0.0)
                for each in outcomes
            )
            most = self._plan.cost_bound_usd
            of_most = "" if most is None else f" of at most {format_usd(most)}"
            words.append(f"ended jobs cost {format_usd(usd / 3600)}{of_most}")
        is_over = last or len(done) == self._config.most_jobs
        left = self._left(outcomes, now) if not (self._is_open or is_over) else None
        if left is not None and math.isfinite(left.high_seconds):
            now_utc = utc_now()
            at, by = (
                format_time(now_utc + timedelta(seconds=seconds), now_utc)
                for seconds in (left.seconds, left.high_seconds)
            )
            words.append(f"the last job should end at about {at} UTC, by {by} at the latest")
        if progress_by_job:
            words.append(f"running: {self._running(progress_by_job)}")
        return "; ".join(words)

    def _running(self, progress_by_job: Mapping[str, JobProgress]) -> str:
        """Return a text that names the first few running jobs and counts the others."""
        points = {_planned(point): point for point in self._plan.points}
        texts = []
        for name, progress in list(progress_by_job.items())[:_RUNNING_NAMED]:
            key = names.parse_job_name(name)
            if key is not None and key.point in points:
                texts.append(f"{points[key.point].key.text} ({progress.text})")
        more = len(progress_by_job) - _RUNNING_NAMED
        return ", ".join([*texts, f"{more} more"] if more > 0 else texts)

    def _left(self, outcomes: Sequence[JobOutcome], now: float) -> TimeLeft | None:
        ended = [
            CompletedJob(outcome.nodes, outcome.clocks.submit_to_end_seconds, _point_of(outcome)[0])
            for outcome in outcomes
            if outcome.completed and outcome.clocks.submit_to_end_seconds
        ]
        over = set(map(_point_of, outcomes))
        running = {
            key.point: now - since
            for name, since in self._begun.items()
            if (key := names.parse_job_name(name)) is not None
        }
        to_come = [
            PendingJob(point[1], running.get(point), arm=point[0])
            for point in map(_planned, self._plan.points)
            if point not in over or point in running
        ]
        return time_left(ended, to_come, self._config.max_parallel_jobs)


def _rows(
    outcomes: Sequence[JobOutcome], smallest: int, config: SweepConfig, arms: Sequence[Arm] = ()
) -> list[dict[str, Any]]:
    """Return a row for every attempt.

    The speedup is relative to the arm's least contended completed run at the smallest node count.
    If any train time is projected, each row says whether its time is measured or projected. The
    validation run of a probe sweep has no speedup, because it is measured and its baseline is
    projected.
    """
    ordered = sorted(outcomes, key=lambda each: (*_point_of(each), each.attempt))
    baselines: dict[str, float] = {}
    for each in sorted(ordered, key=soundness, reverse=True):
        if each.nodes == smallest and each.completed and each.clocks.train_seconds:
            baselines.setdefault(_point_of(each)[0], each.clocks.train_seconds)
    rows = [_row(outcome, baselines.get(_point_of(outcome)[0])) for outcome in ordered]
    if arms:
        by_code = {arm.code: arm.name for arm in arms}
        rows = [
            {config.arm_kind: by_code.get(_point_of(outcome)[0]), **row}
            for row, outcome in zip(rows, ordered, strict=True)
        ]
    if any(outcome.projection is not None for outcome in ordered):
        for row, outcome in zip(rows, ordered, strict=True):
            row["train time"] = "measured" if outcome.projection is None else "projected"
            if config.is_validation_run(outcome.repeat):
                row["train time"], row["speedup"] = "measured, validation run", None
    return rows


def _point_of(outcome: JobOutcome) -> _Point:
    key = names.parse_job_name(outcome.job_name)
    return ("", outcome.nodes, outcome.repeat) if key is None else key.point


def _planned(point: PlannedPoint) -> _Point:
    return point.arm.code, point.nodes, point.repeat


def _platform_text(outcomes: Sequence[JobOutcome]) -> str:
    """Return the platform's kind, which must be shown with results from emulated nodes."""
    return f"platform: {outcomes[0].platform_kind}"


def _row(outcome: JobOutcome, baseline: float | None) -> dict[str, Any]:
    """Return a row of the table artifact, with units in names, rounded values and JSON cells."""
    clocks = outcome.clocks
    seconds = clocks.train_seconds if outcome.completed else None
    return {
        "nodes": outcome.nodes,
        "repeat": outcome.repeat,
        "attempt": outcome.attempt,
        "status": outcome.status,
        "train (s)": _rounded(clocks.train_seconds),
        "speedup": round(baseline / seconds, 2) if baseline and seconds else None,
        "billed (s)": _rounded(clocks.billable_seconds),
        "submit to end (s)": _rounded(clocks.submit_to_end_seconds),
        "reason": outcome.reason or "",
        "job": outcome.job_name,
    }


def _rounded(seconds: float | None) -> float | None:
    """Round to 0.1 s, or to 0.01 s below 10 s."""
    return None if seconds is None else round(seconds, 1 if seconds >= 10 else 2)
