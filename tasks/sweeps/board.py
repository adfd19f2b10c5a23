"""What a person sees of a running sweep in Prefect's UI: how far it is,
and a table that fills as points end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.runtime import flow_run

from scaling.outcome.outcome import JobOutcome

logger = logging.getLogger("nodesweep.board")
# Between two versions of the table, at least, and for each of its rows:
# Prefect keeps every version three times.
_TABLE_SECONDS, _ROW_SECONDS = 20.0, 1.0


def name_flow_run(name: str) -> None:
    """Give the flow run this name; a server that does not answer is a warning."""
    if flow_run.id is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(flow_run.id), name=name)
    except Exception as error:
        # whatever Prefect's client raises; the sweep goes on under the name it has
        logger.warning("the run can't be named %s in Prefect: %s", name, error)


class SweepBoard:
    """A progress artifact and versions of a table artifact;
    a server that does not answer costs no job.
    """

    def __init__(
        self, sweep: str, planned_points: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._sweep, self._planned, self._monotonic = sweep, planned_points, monotonic
        self._progress: Any = None
        self._drawn_at: float | None = None
        self._drawn_rows = 0
        self._shown_per_cent = 0

    def show(self, outcomes: Sequence[JobOutcome], last: bool = False) -> None:
        """Draw it anew: progress by whole per cents, the table every 20 s or 1 s for each row,
        and the `last` time.
        """
        try:
            self._show(outcomes, last)
        except Exception as error:
            # whatever Prefect's client raises; the sweep goes on, its report shows it all
            logger.warning("the progress of %s can't be shown in Prefect: %s", self._sweep, error)

    def _show(self, outcomes: Sequence[JobOutcome], last: bool) -> None:
        done = len({(outcome.nodes, outcome.repeat) for outcome in outcomes if outcome.completed})
        share = 100.0 * done / self._planned
        if self._progress is None:
            description = f"Points of {self._sweep} with a completed run, of {self._planned}"
            self._progress = create_progress_artifact(
                progress=share, key="sweep-progress", description=description
            )
        elif int(share) != self._shown_per_cent:
            update_progress_artifact(self._progress, progress=share)
        self._shown_per_cent = int(share)
        now = self._monotonic()
        pause = max(_TABLE_SECONDS, _ROW_SECONDS * len(outcomes))
        due = self._drawn_at is None or now - self._drawn_at >= pause
        if outcomes and len(outcomes) != self._drawn_rows and (last or due):
            self._drawn_at, self._drawn_rows = now, len(outcomes)
            create_table_artifact(
                table=_rows(outcomes),
                key="sweep-points",
                description=f"Runs of {self._sweep} so far ({_kind(outcomes)})",
            )


def _rows(outcomes: Sequence[JobOutcome]) -> list[dict[str, Any]]:
    """One per attempt; where a time is projected, each says whether its own is."""
    ordered = _in_order(outcomes)
    rows = [_row(outcome) for outcome in ordered]
    if any(outcome.projection is not None for outcome in ordered):
        for row, outcome in zip(rows, ordered, strict=True):
            row["train time"] = "measured" if outcome.projection is None else "projected"
    return rows


def _in_order(outcomes: Sequence[JobOutcome]) -> list[JobOutcome]:
    return sorted(outcomes, key=lambda outcome: (outcome.nodes, outcome.repeat, outcome.attempt))


def _kind(outcomes: Sequence[JobOutcome]) -> str:
    """No emulated number without its platform."""
    return f"platform: {outcomes[0].platform_kind}"


def _row(outcome: JobOutcome) -> dict[str, Any]:
    """Names with their units, rounded to what a person reads; a table artifact's cells are JSON."""
    clocks = outcome.clocks
    return {
        "nodes": outcome.nodes,
        "repeat": outcome.repeat,
        "attempt": outcome.attempt,
        "status": outcome.status,
        "train (s)": _rounded(clocks.train_seconds),
        "billed (s)": _rounded(clocks.billable_seconds),
        "submit to end (s)": _rounded(clocks.submit_to_end_seconds),
        "reason": outcome.reason or "",
        "job": outcome.job_name,
    }


def _rounded(seconds: float | None) -> float | None:
    """To a tenth of a second, below 10 s to a hundredth."""
    return None if seconds is None else round(seconds, 1 if seconds >= 10 else 2)
