"""The live view of a sweep of several instance types."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from cli.views.live import left_of
from cli.views.state import RunState
from tasks.events import Event
from tests.cli.views.test_live import screen

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


def event(name: str, letter: str = "", nodes: int = 1, **facts: Any) -> Event:
    job = f"s-20261124120000-0a1b2c3d-n{nodes}{letter}-r1-a1-abcd" if letter else None
    return Event(
        time=NOW, level=logging.INFO, source="sweep", event=name, text="", stage="sweep", job=job,
        nodes=nodes, facts=facts,
    )  # fmt: skip


def ended(letter: str, nodes: int, seconds: float) -> Event:
    return event(
        "point-ended", letter, nodes, status="Completed", train_seconds=seconds,
        billable_seconds=100, submit_to_end_seconds=120.0, steps=10,
    )  # fmt: skip


def state(price: float | None = 72.0) -> RunState:
    points = [
        {"nodes": nodes, "repeat": 1, "batch": 64, "instance_type": name, "letter": letter,
         "usd_per_hour": usd}
        for nodes in (1, 2)
        for name, letter, usd in (("ml.a", "a", 36.0), ("ml.b", "b", price))
    ]  # fmt: skip
    shown = RunState()
    shown.show(event("stage-begun"))
    shown.show(
        event("sweep-planned", points=points, max_parallel_jobs=1, usd_per_hour=36.0,
              cost_bound_usd=None, on_cancel="stop")
    )  # fmt: skip
    for one in (ended("a", 1, 80.0), ended("b", 1, 40.0), ended("b", 2, 10.0)):
        shown.show(one)
    return shown


def test_each_type_has_its_rows_and_its_own_speedup() -> None:
    text = screen(state(), 0, (100, 30))
    rows = [line.split() for line in text.splitlines() if " ml." in line]
    shown = [(row[1], row[2], row[-1]) for row in rows]
    assert shown[:3] == [("ml.a", "1", "1.0x"), ("ml.b", "1", "1.0x"), ("ml.a", "2", "–")]
    assert shown[3] == ("ml.b", "2", "4.0x")
    assert "instance type" in text


def test_cost_is_each_type_s_and_unknown_where_a_price_is() -> None:
    assert state().cost_so_far_usd(NOW.timestamp()) == 1.0 + 2.0 + 4.0
    assert state(price=None).cost_so_far_usd(NOW.timestamp()) is None


def test_how_fast_another_type_is_nobody_knows() -> None:
    assert left_of(state(), NOW.timestamp()) is None
