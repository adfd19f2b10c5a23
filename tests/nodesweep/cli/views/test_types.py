"""The live view of a sweep of several instance types."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodesweep.cli.views.live import left_of
from nodesweep.cli.views.state import RunState
from nodesweep.events import Event
from nodesweep.scaling.planning.time_left import TimeLeft
from tests.nodesweep.cli.views.recorded import BEGAN, of_types, points_of_types, probes_of_types
from tests.nodesweep.cli.views.test_live import screen, state_of

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


def event(name: str, arm: str = "", nodes: int = 1, **facts: Any) -> Event:
    job = f"s-20261124120000-0a1b2c3d-n{nodes}{arm}-r1-a1-abcd" if arm else None
    return Event(
        time=NOW, level=logging.INFO, source="sweep", event=name, text="", stage="sweep", job=job,
        nodes=nodes, facts=facts,
    )  # fmt: skip


def ended(arm: str, nodes: int, seconds: float) -> Event:
    return event(
        "point-ended", arm, nodes, status="Completed", train_seconds=seconds,
        billable_seconds=100, submit_to_end_seconds=120.0, steps=10,
    )  # fmt: skip


def state(price: float | None = 72.0, shown: RunState | None = None) -> RunState:
    points = [
        {"nodes": nodes, "repeat": 1, "batch": 64, "place": f"{nodes} x {name}", "arm": arm,
         "usd_per_hour": usd}
        for nodes in (1, 2)
        for name, arm, usd in (("ml.a", "a", 36.0), ("ml.b", "b", price))
    ]  # fmt: skip
    shown = shown or RunState()
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
    shown = [(row[3], row[1], row[-1]) for row in rows]
    assert shown[:3] == [("ml.a", "1", "1.0x"), ("ml.b", "1", "1.0x"), ("ml.a", "2", "–")]
    assert shown[3] == ("ml.b", "2", "4.0x")
    assert "2 x ml.b" in text


def test_cost_is_each_type_s_and_unknown_where_a_price_is() -> None:
    assert state().cost_so_far_usd(NOW.timestamp()) == 1.0 + 2.0 + 4.0
    # a flow that continues the sweep in the same command reports its jobs again
    assert state(shown=state()).cost_so_far_usd(NOW.timestamp()) == 1.0 + 2.0 + 4.0
    assert state(price=None).cost_so_far_usd(NOW.timestamp()) is None


def test_cost_is_that_of_the_fallback_type_that_the_first_job_got() -> None:
    """Before it is known, that of the most expensive; an attempt that got none changes nothing."""
    points = [{"nodes": nodes, "repeat": 1, "batch": 64} for nodes in (1, 2)]
    shown = RunState()
    shown.show(event("stage-begun"))
    shown.show(
        event("sweep-planned", points=points, max_parallel_jobs=1, usd_per_hour=72.0,
              usd_per_hour_by_type={"ml.a": 36.0, "ml.b": 72.0}, cost_bound_usd=None,
              on_cancel="stop")
    )  # fmt: skip
    for got, price, so_far in ((None, 72.0, 2.0), ("ml.a", 36.0, 3.0)):
        end = ended("", 1, 80.0)
        job = "s-20261124120000-0a1b2c3d-n1-r1-a1-abcd"
        shown.show(replace(end, job=job, facts={**end.facts, "instance_type": got}))
        assert shown.usd_per_hour == price
        assert shown.cost_so_far_usd(NOW.timestamp()) == so_far


def left_at(events: Iterable[Event], second: float) -> TimeLeft | None:
    return left_of(state_of(events), BEGAN.timestamp() + second)


def test_time_left_is_of_what_each_type_took_itself() -> None:
    """2 of a have run 10 s of 20 to 40; to come are 2 of b, then all four again: 1 of a takes 40 s,
    2 take 20 to 40, 1 of b takes 18, 2 take 9 to 18.
    """
    left = left_at([one for one in of_types() if one.event != "node-line"], 90)
    assert left is not None
    assert left.low_seconds == pytest.approx(0.9 * (20 + 9 + 40 + 20 + 18 + 9) - 10)
    assert left.high_seconds == pytest.approx(1.1 * (40 + 18 + 40 + 40 + 18 + 18) - 10)


def test_a_type_that_has_no_job_yet_leaves_open_how_long_it_takes_at_most() -> None:
    quiet = [one for one in of_types() if one.event != "node-line"]
    first = [one for one in quiet if "-n1b-" not in (one.job or "")]
    left = left_at(first, 90)
    assert left is not None and left.high_seconds == math.inf
    assert left.low_seconds == pytest.approx(0.9 * (20 + 40 + 20) - 10)
    assert "1 min 2 s" in screen(state_of(first), 90, (80, 24))


def test_passes_that_may_be_dropped_and_the_check_are_in_what_is_left() -> None:
    """At least the second pass and a check of 2 of b comes, at most a third pass and one of a."""
    left = left_at(probes_of_types(), 90)
    assert left is not None
    one_pass = 0.9 * (40 + 20 + 18 + 9), 1.1 * (40 + 40 + 18 + 18)
    assert left.low_seconds == pytest.approx(0.9 * (20 + 9) - 10 + one_pass[0] + 0.9 * 40)
    assert left.high_seconds == pytest.approx(1.1 * (40 + 18) - 10 + 2 * one_pass[1] + 1.1 * 220)
    drawn = screen(state_of(probes_of_types()), 90, (80, 24))
    assert "2/5 points" in drawn and " 13 " in drawn.splitlines()[-2]
    assert drawn.splitlines()[-1].endswith(" $24.00")


def test_what_is_dropped_is_no_longer_to_come() -> None:
    """The next decision has fewer probes that may come."""
    shown = state_of(probes_of_types())
    shown.show(replace(decided_later([]), time=BEGAN + timedelta(seconds=90)))
    left = left_of(shown, BEGAN.timestamp() + 90)
    assert left is not None
    assert left.high_seconds == pytest.approx(1.1 * (40 + 18) - 10 + 1.1 * 220)
    assert " 13 " not in screen(shown, 90, (80, 24)).splitlines()[-2]


def decided_later(later: list[dict[str, Any]]) -> Event:
    return event("sweep-decided", points=[], answers=[], later=later)


def test_a_check_that_moves_to_another_type_is_another_point() -> None:
    """At the same node count: its steps are those that the probes of its own type foretell."""
    shown = state_of(probes_of_types())
    [check_a, check_b] = points_of_types((4,), "check")[:2]
    for check in (check_a, check_b):
        shown.show(event("sweep-decided", points=[check], answers=[]))
    shown.points[1].steps = 700
    shown.show(event("sweep-decided", points=[{**check_b, "repeat": 5}], answers=[]))
    checks = [(each.arm, each.steps) for each in shown.points if each.kind == "check"]
    assert checks == [("a", 500), ("b", 500), ("b", 700)]


def test_what_memory_rules_out_is_over_and_takes_no_time() -> None:
    shown = state_of([one for one in of_types() if one.event != "node-line"])
    second_repeats = [point for point in points_of_types((1, 2), "run") if point["repeat"] == 2]
    shown.show(event("points-left-out", points=second_repeats))
    left = left_of(shown, BEGAN.timestamp() + 90)
    assert left is not None and left.high_seconds == pytest.approx(1.1 * (40 + 18) - 10)
    drawn = screen(shown, 90, (80, 24))
    states = [(each.state, each.repeat) for each in shown.points if each.state == "left out"]
    assert states == [("left out", 2)] * len(second_repeats)
    assert "6/8 points" in drawn and "2 x ml.g5.12xlarge" in drawn
