"""A sweep's two Prefect artifacts, drawn in a separate thread."""

from __future__ import annotations

import contextvars
import logging
import threading
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

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
    """A background worker that draws a sweep's artifacts, one drawing at a time.

    Prefect's client waits up to a minute for a busy server, and polls of the jobs must not wait for
    that. Only the newest pending drawing is drawn.
    """

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep
        self._lock = threading.Lock()
        self._waiting: Drawing | None = None
        self._thread: threading.Thread | None = None
        self._progress: Any = None

    def submit(self, drawing: Drawing) -> None:
        """Queue a drawing, which replaces a pending one."""
        with self._lock:
            if self._waiting is not None and drawing.table is None:
                drawing = replace(drawing, table=self._waiting.table)
            self._waiting = drawing
            if self._thread is None:
                run = contextvars.copy_context().run  # Prefect's client reads the flow's context
                self._thread = threading.Thread(
                    target=run, args=(self._draw_all,), name="sweep-board", daemon=True
                )
                self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until everything is drawn, for at most `seconds`."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
            if thread.is_alive():
                logger.warning(
                    "Prefect did not accept the last state of %s within %.0f s; the report contains"
                    " it",
                    self._sweep,
                    seconds,
                )

    def _draw_all(self) -> None:
        while True:
            with self._lock:
                drawing, self._waiting = self._waiting, None
                if drawing is None:
                    self._thread = None
                    return
            with failures_as_warnings(f"the progress of {self._sweep}"):
                self._draw(drawing)

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
