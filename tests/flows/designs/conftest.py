"""Sweeps of every design, whose jobs and tables are not drawn in Prefect's UI."""

from __future__ import annotations

import pytest

from nodesweep.tasks.sweeps.drawing import Drawer


@pytest.fixture(autouse=True)
def nothing_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send Prefect no artifacts and no task runs of jobs, which takes 2 s a sweep.

    tests/tasks/sweeps/test_board.py and tests/flows/test_seen.py test them.
    """
    for name in ("submit", "show_jobs", "abandon_jobs", "wait"):
        monkeypatch.setattr(Drawer, name, lambda *_: None)
