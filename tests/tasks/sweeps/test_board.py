"""The artifacts of a running sweep, against calls that only record."""

from __future__ import annotations

from typing import Any

import pytest

import tasks.sweeps.board
from scaling.outcome.outcome import Clocks, JobOutcome
from tasks.sweeps.board import SweepBoard
from tests.scaling.conftest import projection


def outcome(nodes: int, status: str = "Completed", **more: Any) -> JobOutcome:
    return JobOutcome(
        nodes=nodes, repeat=1, attempt=1, job_name=f"job-{nodes}", status=status,
        platform_kind="emulated",
        clocks=Clocks(train_seconds=80.0 / nodes), **more,
    )  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        tasks.sweeps.board,
        "create_progress_artifact",
        lambda progress, **_: made.append(("new", progress)) or "id",
    )
    monkeypatch.setattr(
        tasks.sweeps.board,
        "update_progress_artifact",
        lambda artifact, progress: made.append((artifact, progress)),
    )
    monkeypatch.setattr(
        tasks.sweeps.board,
        "create_table_artifact",
        lambda table, description, **_: made.append((description, table)),
    )
    return made


def test_the_progress_counts_points_and_the_table_holds_every_attempt(
    calls: list[tuple[str, Any]],
) -> None:
    board = SweepBoard("s", 4, monotonic=lambda: 0.0)
    board.show([])
    board.show([outcome(2), outcome(1, "Failed", reason="boom")])
    assert calls[:2] == [("new", 0.0), ("id", 25.0)]
    description, table = calls[2]
    assert "emulated" in description
    assert [(row["nodes"], row["train (s)"], row["reason"]) for row in table] == [
        (1, 80.0, "boom"),
        (2, 40.0, ""),
    ]


def test_projected_times_are_called_so(calls: list[tuple[str, Any]]) -> None:
    probed = [outcome(1, projection=projection(80.0)), outcome(2)]
    SweepBoard("s", 4, monotonic=lambda: 0.0).show(probed)
    SweepBoard("s", 4, monotonic=lambda: 0.0).show([outcome(1), outcome(2)])
    assert [row["train time"] for row in calls[1][1]] == ["projected", "measured"]
    assert [row.get("train time") for row in calls[3][1]] == [None, None]


def test_seconds_are_rounded_to_what_a_person_reads(calls: list[tuple[str, Any]]) -> None:
    board = SweepBoard("s", 4, monotonic=lambda: 0.0)
    board.show([outcome(3), outcome(16)])
    assert [row["train (s)"] for row in calls[1][1]] == [26.7, 5.0]
    assert [row["billed (s)"] for row in calls[1][1]] == [None, None], "unknown"


def test_the_table_is_drawn_at_most_every_20_seconds_and_at_the_end(
    calls: list[tuple[str, Any]],
) -> None:
    now = iter([0.0, 5.0, 21.0, 22.0])
    board = SweepBoard("s", 9, monotonic=lambda: next(now))
    for count in (1, 2, 3):
        board.show([outcome(nodes) for nodes in range(1, count + 1)])
    board.show([outcome(nodes) for nodes in range(1, 5)], last=True)
    assert [len(table) for _, table in calls if isinstance(table, list)] == [1, 3, 4]


def test_a_thousand_points_are_few_artifacts(calls: list[tuple[str, Any]]) -> None:
    """One each 0.15 s, as on a simulated platform: Prefect keeps every version of both
    artifacts.
    """
    now = iter(0.15 * place for place in range(1002))
    board = SweepBoard("s", 1000, monotonic=lambda: next(now))
    rows = [outcome(nodes) for nodes in range(1, 1001)]
    for count in range(1, 1001):
        board.show(rows[:count])
    board.show(rows, last=True)
    tables = [len(table) for _, table in calls if isinstance(table, list)]
    assert len(tables) <= 5 and tables[-1] == 1000
    shown = [share for artifact, share in calls if artifact == "id"]
    assert shown[-1] == 100.0 and len(shown) <= 100


def test_a_server_that_does_not_answer_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("no server")

    monkeypatch.setattr(tasks.sweeps.board, "create_progress_artifact", refuse)
    SweepBoard("s", 1).show([outcome(1)])
    assert "can't be shown in Prefect: no server" in caplog.text
