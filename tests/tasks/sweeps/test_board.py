"""The artifacts of a running sweep, with recorded calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import nodesweep.tasks.sweeps.board
import nodesweep.tasks.sweeps.drawing
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from nodesweep.configs.models import SweepConfig
from nodesweep.launch.watch import JobProgress
from nodesweep.scaling.arms import Arm
from nodesweep.scaling.outcome.line_kinds import Step
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.planning.plan import PlannedPoint, SweepPlan
from nodesweep.tasks.sweeps.board import SweepBoard
from nodesweep.tasks.sweeps.drawing import Drawer, Drawing
from nodesweep.tasks.sweeps.job_runs import JobView
from tests.nodesweep.scaling.conftest import projection

ONLY, A, B = Arm("", "ml.a"), Arm("a", "ml.a"), Arm("b", "ml.b")


def outcome(nodes: int, status: str = "Completed", **more: Any) -> JobOutcome:
    return JobOutcome(
        nodes=nodes, repeat=1, attempt=1, job_name=f"job-{nodes}", status=status,
        platform_kind="emulated",
        clocks=Clocks(train_seconds=80.0 / nodes), **more,
    )  # fmt: skip


def board_of(
    points: int, monotonic: Callable[[], float] = lambda: 0.0, repeats: int = 1, **plan: Any
) -> SweepBoard:
    """Return the board of a sweep with one simultaneous job for each node count from 1 on."""
    planned = [
        PlannedPoint(nodes, 1, nodes - 1, 0, nodes, *[None] * 4, arm=ONLY)
        for nodes in range(1, points + 1)
    ]
    facts = {"cost_bound_usd": None, "cost_bound_reason": "", "usd_per_hour": None} | plan
    return SweepBoard(
        "s",
        SweepPlan(tuple(planned), 1, **facts),
        SweepConfig(
            node_counts=list(range(1, points // repeats + 1)),
            repeats=repeats,
            max_parallel_jobs=points,
        ),
        monotonic,
    )


@pytest.fixture
def told() -> list[str]:
    """Return the progress as text."""
    return []


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = []
    ask = Drawer.submit

    def ask_and_wait(drawer: Drawer, drawing: Drawing) -> None:
        ask(drawer, drawing)
        drawer.wait(HANG_SECONDS)

    monkeypatch.setattr(Drawer, "submit", ask_and_wait)
    monkeypatch.setattr(
        nodesweep.tasks.sweeps.drawing,
        "create_progress_artifact",
        lambda progress, description, **_: (
            made.append(("new", progress)) or told.append(description) or "id"
        ),
    )
    monkeypatch.setattr(
        nodesweep.tasks.sweeps.drawing,
        "update_progress_artifact",
        lambda artifact, progress, description: (
            made.append((artifact, progress)) or told.append(description)
        ),
    )
    monkeypatch.setattr(
        nodesweep.tasks.sweeps.drawing,
        "create_table_artifact",
        lambda table, description, **_: made.append((description, table)),
    )
    return made


def test_the_progress_counts_points_and_the_table_holds_every_attempt(
    calls: list[tuple[str, Any]],
) -> None:
    board = board_of(4)
    board.show([])
    board.show([outcome(2), outcome(1, "Failed", reason="boom")])
    assert calls[:2] == [("new", 0.0), ("id", 25.0)]
    description, table = calls[2]
    assert "emulated" in description
    assert [(row["nodes"], row["train (s)"], row["reason"]) for row in table] == [
        (1, 80.0, "boom"),
        (2, 40.0, ""),
    ]


def test_the_check_has_no_speedup_over_what_is_projected(
    calls: list[tuple[str, Any]], snapshot: SnapshotAssertion
) -> None:
    config = SweepConfig(node_counts=[1, 2], repeats=1, design="probe")
    plan = SweepPlan(
        tuple(PlannedPoint(n, 1, n, 0, n, *[None] * 4, arm=ONLY) for n in (1, 2)), 1, None, "", 0
    )
    check = replace(outcome(2), repeat=2)
    probed = [outcome(nodes, projection=projection(80.0)) for nodes in (1, 2)]
    SweepBoard("s", plan, config).show([*probed, check], last=True)
    table = calls[-1][1]
    assert [row["train time"] for row in table] == snapshot
    assert [row["speedup"] for row in table] == [1.0, 2.0, None]


def test_the_speedup_is_over_a_baseline_that_was_not_contended(
    calls: list[tuple[str, Any]],
) -> None:
    contended = replace(
        outcome(1), clocks=Clocks(train_seconds=100.0), utilisation={"attained_percent": 80.0}
    )
    board_of(2).show([contended, replace(outcome(1), attempt=2), outcome(2)])
    assert [row["speedup"] for row in calls[-1][1]] == [0.8, 1.0, 2.0]


def test_points_that_the_design_asks_for_no_more_are_no_more_than_all(
    calls: list[tuple[str, Any]],
) -> None:
    board_of(2).show([outcome(1), outcome(2), outcome(4)])
    assert calls[0] == ("new", 100.0)


def test_projected_times_are_called_so(calls: list[tuple[str, Any]]) -> None:
    probed = [outcome(1, projection=projection(80.0)), outcome(2)]
    board_of(4).show(probed)
    board_of(4).show([outcome(1), outcome(2)])
    assert [row["train time"] for row in calls[1][1]] == ["projected", "measured"]
    assert [row.get("train time") for row in calls[3][1]] == [None, None]


def test_the_progress_says_what_the_terminal_does_of_cost_and_end(
    calls: list[tuple[str, Any]],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    """A job of one node took 100 s; one of two has run for 20 s, and takes 50 to 100 s, give or
    take 10%, by the geometric mean 71 s.
    """
    noon = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
    monkeypatch.setattr(nodesweep.tasks.sweeps.board, "utc_now", lambda: noon)
    now = iter([0.0, 0.0, 20.0, 90.0])
    board = board_of(2, lambda: next(now), usd_per_hour=36.0, cost_bound_usd=5.0)
    board.show([])
    running = ["s-20261124120000-0a1b2c3d-n2-r1-a1-abcd"]
    board.show([], running)
    one = replace(
        outcome(1),
        clocks=Clocks(train_seconds=80.0, billable_seconds=100, submit_to_end_seconds=100.0),
    )
    board.show([one], running)
    board.show([one, outcome(2)], last=True)
    assert told == snapshot
    assert [row["speedup"] for row in calls[-1][1]] == [1.0, 2.0]


def test_ended_jobs_cost_what_the_selected_fallback_type_costs(
    calls: list[tuple[str, Any]], told: list[str]
) -> None:
    prices = {"ml.a": 36.0, "ml.b": 72.0}
    board = board_of(2, lambda: 0.0, usd_per_hour=72.0, usd_per_hour_by_type=prices)
    billed = Clocks(train_seconds=80.0, billable_seconds=100)
    none = replace(outcome(1), clocks=Clocks(), instance_type=None)
    board.show([none, replace(outcome(1), clocks=billed, instance_type="ml.a")])
    assert "ended jobs cost $1.00" in told[-1]


def test_seconds_are_rounded_to_what_a_person_reads(calls: list[tuple[str, Any]]) -> None:
    board = board_of(4)
    board.show([outcome(3), outcome(16)])
    assert [row["train (s)"] for row in calls[1][1]] == [26.7, 5.0]
    assert [row["billed (s)"] for row in calls[1][1]] == [None, None], "unknown"


def test_the_table_is_drawn_at_most_every_20_seconds_and_at_the_end(
    calls: list[tuple[str, Any]],
) -> None:
    now = iter([0.0, 5.0, 21.0, 22.0])
    board = board_of(9, lambda: next(now))
    for count in (1, 2, 3):
        board.show([outcome(nodes) for nodes in range(1, count + 1)])
    board.show([outcome(nodes) for nodes in range(1, 5)], last=True)
    assert [len(table) for _, table in calls if isinstance(table, list)] == [1, 3, 4]


def test_a_thousand_points_are_few_artifacts(calls: list[tuple[str, Any]]) -> None:
    """One each 0.15 s, as on a simulated platform: Prefect keeps every version of both
    artifacts.
    """
    now = iter(0.15 * place for place in range(1002))
    board = board_of(1000, lambda: next(now), repeats=2)
    rows = [outcome(nodes) for nodes in range(1, 1001)]
    for count in range(1, 1001):
        board.show(rows[:count])
    board.show(rows, last=True)
    tables = [len(table) for _, table in calls if isinstance(table, list)]
    assert len(tables) <= 5 and tables[-1] == 1000
    shown = [share for artifact, share in calls if artifact == "id"]
    assert shown[-1] == 100.0 and len(shown) <= 100 + len(tables)


def test_a_server_that_does_not_answer_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("no server")

    monkeypatch.setattr(nodesweep.tasks.sweeps.drawing, "create_progress_artifact", refuse)
    board_of(1).show([outcome(1)], last=True)
    assert caplog.messages == snapshot


def test_a_mistake_in_what_is_shown_costs_no_sweep(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no such letter")

    monkeypatch.setattr(SweepBoard, "_words", fail)
    board = board_of(1)
    board.show([outcome(1)], last=True)
    board.show_running({"job": JobProgress("Training")})
    assert caplog.text.count("Prefect: no such letter") == 2


def test_a_server_that_hangs_holds_nobody_up_and_gets_the_newest_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    taken, is_back, drawn = threading.Event(), threading.Event(), list[Any]()
    monkeypatch.setattr(
        nodesweep.tasks.sweeps.drawing,
        "create_progress_artifact",
        lambda **_: taken.set() or (is_back.wait(HANG_SECONDS) and "id"),
    )
    monkeypatch.setattr(
        nodesweep.tasks.sweeps.drawing,
        "update_progress_artifact",
        lambda artifact, progress, description: drawn.append(progress),
    )
    monkeypatch.setattr(
        nodesweep.tasks.sweeps.drawing,
        "create_table_artifact",
        lambda table, **_: drawn.append(len(table)),
    )
    monkeypatch.setattr(nodesweep.tasks.sweeps.board, "_LAST_SECONDS", 0.05)
    board = board_of(4)
    board.show([])
    assert taken.wait(HANG_SECONDS)
    board.show([outcome(1), outcome(2)])
    board.show([outcome(1), outcome(2), outcome(3)])
    board.show([outcome(nodes) for nodes in (1, 2, 3)], last=True)
    assert caplog.messages == snapshot
    is_back.set()
    board._drawer.wait(HANG_SECONDS)
    assert drawn == [75.0, 3], "one drawing, though the last asked for no table"


def test_the_words_say_how_running_jobs_stand_every_20_seconds(
    calls: list[tuple[str, Any]], told: list[str], snapshot: SnapshotAssertion
) -> None:
    now = iter([0.0, 5.0, 20.0, 40.0, 60.0])
    board = board_of(6, lambda: next(now))
    board.show([])
    job = "s-20261124120000-0a1b2c3d-n{}-r1-a1-abcd"
    board.show_running({job.format(1): JobProgress("Pending")})  # too soon after the first word
    standings = {job.format(1): JobProgress("Training", Step(7, 350))}
    board.show_running(standings)
    board.show_running(standings)  # nothing new
    more = {job.format(nodes): JobProgress("Training", Step(nodes, None)) for nodes in range(1, 7)}
    board.show_running(more)
    assert [words.partition("; running: ")[2] for words in told] == snapshot
    assert [share for _, share in calls] == [0.0, 0.0, 0.0]


def test_several_instance_types_have_a_column_their_own_speedup_and_price(
    calls: list[tuple[str, Any]], told: list[str], snapshot: SnapshotAssertion
) -> None:
    point = PlannedPoint(1, 1, 0, 0, 1, *[None] * 4, arm=ONLY)
    own = SweepPlan((point,), 1, None, "", 36.0)
    by_arm = {A: own, B: replace(own, usd_per_hour=72.0)}
    plan = SweepPlan((point,), 1, None, "", 36.0, by_arm)
    config = SweepConfig(node_counts=(1, 2), repeats=1, instance_types=("ml.a", "ml.b"))
    board = SweepBoard("s", plan, config, lambda: 0.0)
    ran = [
        replace(
            outcome(nodes, instance_type=arm.name),
            job_name=f"s-20261124120000-0a1b2c3d-n{nodes}{arm.code}-r1-a1-abcd",
            clocks=Clocks(train_seconds=seconds, billable_seconds=100),
        )
        for arm, nodes, seconds in ((B, 1, 40.0), (A, 1, 80.0), (B, 2, 10.0))
    ]
    board.show(ran)
    assert [(row["instance type"], row["speedup"]) for row in calls[-1][1]] == [
        ("ml.a", 1.0),
        ("ml.b", 1.0),
        ("ml.b", 4.0),
    ]
    # 100 s at 36 USD/h, 100 s at 72 and twice 100 s at 72
    assert told == snapshot


@pytest.mark.parametrize("hour", [12, 23])
def test_the_last_job_of_several_types_ends_by_what_each_type_takes_itself(
    calls: list[tuple[str, Any]],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
    hour: int,
) -> None:
    """One node of a took 1,000 s, one of b 600 s: two of a take 500 to 1,000 s, two of b 300 to
    600; of b nothing is known before.
    """
    now = datetime(2026, 11, 24, hour, 40, tzinfo=UTC)
    monkeypatch.setattr(nodesweep.tasks.sweeps.board, "utc_now", lambda: now)
    points = tuple(
        PlannedPoint(nodes, 1, 0, 0, nodes, *[None] * 4, arm=arm)
        for nodes in (1, 2)
        for arm in (A, B)
    )
    own = SweepPlan(points, 1, None, "", None)
    plan = SweepPlan(points, 1, None, "", None, {A: own, B: own})
    config = SweepConfig(node_counts=(1, 2), repeats=1, instance_types=("ml.a", "ml.b"))
    board = SweepBoard("s", plan, config, lambda: 0.0)
    ran = [
        replace(
            outcome(1, instance_type=arm.name),
            job_name=f"s-20261124120000-0a1b2c3d-n1{arm.code}-r1-a1-abcd",
            clocks=Clocks(train_seconds=seconds - 50, submit_to_end_seconds=seconds),
        )
        for arm, seconds in ((A, 1000.0), (B, 600.0))
    ]
    board.show(ran[:1])
    board.show(ran)
    # the second: 707 + 424 s, and 1.1 x (1,000 + 600) at the latest
    assert told == snapshot


def test_jobs_are_shown_once_submitted_in_every_phase_and_once_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[dict[str, str]] = []

    def note(_: Drawer, views: Mapping[str, JobView]) -> None:
        shown.append({name: view.name for name, view in views.items()})

    monkeypatch.setattr(Drawer, "show_jobs", note)
    monkeypatch.setattr(Drawer, "submit", lambda *_: None)
    board = board_of(4)
    board.show([outcome(4)], ["job-1", "job-2"])
    board.show_running({"job-1": JobProgress("Training", Step(7, 350))})
    board.show_running({"job-1": JobProgress("Training", Step(8, 350))})
    board.show([outcome(4), outcome(1, "Failed", reason="boom")], ["job-2"])
    assert shown == [
        {"job-1": "Submitted", "job-2": "Submitted", "job-4": "Cached"},
        {"job-1": "Running"},
        {"job-1": "Running"},
        {"job-1": "Failed"},
    ]


@pytest.mark.parametrize(("stopped", "name"), [(True, "Cancelled"), (False, "Unwatched")])
def test_jobs_that_outlive_the_sweep_are_no_longer_shown_as_running(
    monkeypatch: pytest.MonkeyPatch, stopped: bool, name: str
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(Drawer, "abandon_jobs", lambda _, view, seconds: ended.append(view.name))
    board_of(1).end(stopped)
    assert ended == [name]
