"""Draw a sweep's Prefect artifacts and the task runs of its jobs in a separate thread."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from nodesweep.tasks.sweeps.job_runs import JobRuns, JobView
from nodesweep.tasks.task import failures_as_warnings

logger = logging.getLogger("nodesweep.board")


class Table(NamedTuple):
    """The table's description and its rows."""

    words: str
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Drawing:
    """The progress in percent with its description, and the table if it is due."""

    share: float
    words: str
    table: Table | None


class Drawer:
    """A background worker that draws a sweep's artifacts and its jobs' task runs, one at a time.

    Prefect's client waits up to a minute for a busy server, which must not delay the polls of the
    jobs. Only the newest pending drawing is drawn, before any changes of jobs.
    """

    def __init__(self, sweep: str, jobs: JobRuns) -> None:
        self._sweep, self._jobs = sweep, jobs
        self._lock = threading.Condition()
        self._waiting: Drawing | None = None
        self._is_drawing = False
        self._thread: threading.Thread | None = None
        self._progress: Any = None

    def submit(self, drawing: Drawing) -> None:
        """Queue a drawing, which replaces a pending one."""
        with self._lock:
            if self._waiting is not None and drawing.table is None:
                drawing = replace(drawing, table=self._waiting.table)
            self._waiting = drawing
            self._start()

    def show_jobs(self, views: Mapping[str, JobView]) -> None:
        """Queue changed views by job name."""
        with self._lock:
            self._jobs.want(views)
            self._start()

    def abandon_jobs(self, view: JobView, seconds: float) -> None:
        """Show this view for all jobs that have not ended, and wait at most `seconds`.

        Changes that are still pending are dropped, because this process may watch the jobs again.
        """
        with self._lock:
            if not self._jobs.abandon(view):
                self._end()
                return
            self._start()
        self.wait(seconds)
        with self._lock:
            self._jobs.forget()

    def _start(self) -> None:
        if self._thread is None:
            run = contextvars.copy_context().run  # Prefect's client reads the flow's context
            self._thread = threading.Thread(
                target=run, args=(self._draw_all,), name="sweep-board", daemon=True
            )
            self._thread.start()
        self._lock.notify_all()

    def _end(self) -> None:
        """End the thread once nothing is left to draw, or if Prefect does not respond for a while.

        The next drawing starts a new thread.
        """
        self._jobs.end()
        self._lock.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until the newest drawing and the ends of the jobs are drawn."""
        with self._lock:
            self._end()
            if not self._lock.wait_for(self._is_drawn, seconds):
                logger.warning(
                    "Prefect did not accept the last state of %s within %.0f s; the report contains"
                    " it",
                    self._sweep,
                    seconds,
                )

    def _is_drawn(self) -> bool:
        return not (self._is_drawing or self._waiting is not None or self._jobs.is_behind)

    def _draw_all(self) -> None:
        while True:
            with self._lock:
                drawing, self._waiting = self._waiting, None
                self._is_drawing = drawing is not None
                job = self._jobs.next_to_show()
                self._lock.notify_all()
                if drawing is None and job is None:
                    if self._jobs.is_ending:
                        self._jobs.close()
                        self._thread = None
                        return
                    self._lock.wait()
            if drawing is not None:
                with failures_as_warnings(f"the progress of {self._sweep}"):
                    self._draw(drawing)
            elif job is not None:
                self._jobs.show(*job)

    def _draw(self, drawing: Drawing) -> None:
        if self._progress is None:
            self._progress = create_progress_artifact(
                progress=drawing.share, key="sweep-progress", description=drawing.words
            )
        else:
            update_progress_artifact(
                self._progress, progress=drawing.share, description=drawing.words
            )
        if drawing.table is not None:
            create_table_artifact(
                table=drawing.table.rows, key="sweep-points", description=drawing.table.words
            )
