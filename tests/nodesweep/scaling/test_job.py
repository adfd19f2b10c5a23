"""Times that follow from a job's status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nodesweep.scaling.job import JobStatus, PhaseVisit

STARTED = datetime(2026, 1, 2, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return STARTED + timedelta(seconds=seconds)


def test_phases_are_summed_over_their_visits_and_open_ones_left_out() -> None:
    visits = (
        PhaseVisit("Training", STARTED, later(3)),
        PhaseVisit("Training", later(5), later(9)),
        PhaseVisit("Uploading", later(9), None),
        PhaseVisit("Lost", None, later(9)),
    )
    assert JobStatus("j", "running", visits=visits).phase_seconds == {"Training": 7.0}


@pytest.mark.parametrize(
    ("created", "ended", "changed", "seconds"),
    [(0, 80, 90, 80.0), (0, None, 90, 90.0), (0, None, None, None), (None, 80, 90, None)],
)
def test_the_end_is_that_of_the_job_or_its_last_change(
    created: float | None, ended: float | None, changed: float | None, seconds: float | None
) -> None:
    created_at, ended_at, changed_at = (
        None if at is None else later(at) for at in (created, ended, changed)
    )
    job = JobStatus(
        "j", "completed", created_at=created_at, ended_at=ended_at, changed_at=changed_at
    )
    assert job.seconds_to_end == seconds
