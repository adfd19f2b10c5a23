"""A short run as timed events: four points on 1, 2, 4, and 8 nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from nodesweep.events import Event, Stage
from nodesweep.scaling import names

SWEEP = "local-20261123052325-08094dab"
BEGAN = datetime(2026, 11, 23, 5, 23, 25, tzinfo=UTC)
TRACEBACK = ["Traceback (most recent call last):", "RuntimeError: no room", "more memory helps"]


def job(nodes: int, repeat: int = 1, arm: str = "") -> str:
    """Return the name of a job of the sweep."""
    return f"{SWEEP}-n{nodes}{arm}-r{repeat}-a1-fd48"


def event(
    second: float,
    kind: str,
    text: str = "",
    /,
    *,
    source: str = "sweep",
    level: int = logging.INFO,
    stage: Stage | None = None,
    nodes: int | None = None,
    **facts: Any,
) -> Event:
    """Return an event at this second of the run."""
    name = None if nodes is None else job(nodes)
    place = names.parse_job_name(name) if name else None
    return Event(
        BEGAN + timedelta(seconds=second),
        kind,
        text,
        source,
        level,
        stage,
        name,
        place.nodes if place else None,
        facts,
    )


def begun(second: float, stage: Stage) -> Event:
    """Return the event of a stage's begin."""
    return event(second, "stage-begun", f"{stage} begins", source=stage, stage=stage)


def ended(second: float, stage: Stage, seconds: float, ok: bool = True) -> Event:
    """Return the event of a stage's end."""
    text = f"{stage} done after {seconds:.1f} s"
    return event(second, "stage-ended", text, source=stage, stage=stage, seconds=seconds, ok=ok)


def line(second: float, nodes: int, text: str, kind: str = "program", **facts: Any) -> Event:
    """Return the event of a node's log line."""
    facts = {"host": "algo-1", "step": None, **facts}
    return event(second, "node-line", text, source="log", nodes=nodes, kind=kind, **facts)


def done(second: float, nodes: int, train: float, whole: float) -> Event:
    """Return the event of a completed point."""
    return event(
        second, "point-ended", f"{job(nodes)}: trained for {train:.1f} s",
        nodes=nodes, status="Completed", train_seconds=train, billable_seconds=int(whole),
        submit_to_end_seconds=whole, steps=28, reason=None, lines=[],
    )  # fmt: skip


def begin(price: float | None = None, bound: float | None = None) -> Iterator[Event]:
    """Yield the events up to the first job."""
    yield event(0, "message", "platform at http://127.0.0.1:4570", source="session")
    yield begun(1, "preflight")
    yield ended(4.2, "preflight", 3.2)
    yield event(4.3, "sweep-named", sweep=SWEEP, folder=f"reports/{SWEEP}", is_recorded=False)
    yield begun(4.4, "image")
    yield begun(4.5, "dataset")
    yield event(
        4.6, "progress", "dataset digits: 4 of 8 files checked",
        source="dataset", stage="dataset", what="validation", done=4, of=8, unit="files",
    )  # fmt: skip
    yield ended(6.5, "dataset", 2.0)
    yield ended(16.9, "image", 12.5)
    yield event(16.95, "sweep-recorded", sweep=SWEEP)
    points = [{"nodes": nodes, "repeat": 1, "batch": 32768} for nodes in (1, 2, 4, 8)]
    yield event(
        17, "sweep-planned", f"sweep {SWEEP}: 4 jobs", stage="sweep", sweep=SWEEP,
        points=points, max_parallel_jobs=1, usd_per_hour=price, cost_bound_usd=bound,
        on_cancel="stop",
    )  # fmt: skip
    yield begun(17.1, "sweep")


def train(second: float, nodes: int) -> Iterator[Event]:
    """Yield a job's events up to its first steps."""
    place = (1, 2, 4, 8).index(nodes) + 1
    yield event(second, "job-submitted", f"job {place}/4: {nodes} nodes", nodes=nodes)
    yield event(
        second + 1, "job-state", f"{job(nodes)}: Starting", source="jobs", nodes=nodes,
        state="Starting", wait_until=(BEGAN + timedelta(hours=1)).timestamp(),
    )  # fmt: skip
    yield event(
        second + 3, "job-state", f"{job(nodes)}: Training", source="jobs", nodes=nodes,
        state="Training", wait_until=None,
    )  # fmt: skip
    yield line(second + 4, nodes, "SM_HP_SEED=1", "toolkit")
    yield line(second + 5, nodes, "step=4; loss=2.25;", step=(4, None))


def in_the_middle(price: float | None = None, bound: float | None = None) -> Iterator[Event]:
    """Yield the events of a run with two completed points and a third in training."""
    yield from begin(price, bound)
    yield from train(18, 1)
    yield done(90, 1, 64.5, 71.0)
    yield from train(91, 2)
    yield done(135, 2, 37.4, 43.0)
    yield from train(136, 4)
    yield line(147, 4, "step=14; loss=1.01;", step=(14, None))


def failed(second: float, nodes: int) -> Event:
    """Return the event of a failed point."""
    return event(
        second, "point-ended", f"{job(nodes)}: Failed: AlgorithmError: exit code 1",
        level=logging.ERROR, nodes=nodes, status="Failed", train_seconds=None,
        billable_seconds=30, submit_to_end_seconds=32.0, steps=None,
        reason="AlgorithmError: exit code 1", lines=TRACEBACK,
    )  # fmt: skip


TYPES = {"a": ("ml.g5.xlarge", 1.0), "b": ("ml.g5.12xlarge", 3.0)}
"""Name and USD per hour by the arm's code in a job's name."""


def typed(one: Event, arm: str, repeat: int = 1) -> Event:
    """Return the same event for a job on this instance type."""
    return one if one.nodes is None else replace(one, job=job(one.nodes, repeat, arm))


def points_of_types(repeats: Sequence[int], kind: str) -> list[dict[str, Any]]:
    """Return the points of both types on 1 and 2 nodes."""
    return [
        {"nodes": nodes, "repeat": repeat, "batch": 64, "kind": kind, "place": f"{nodes} x {name}",
         "arm": arm, "usd_per_hour": usd}
        for repeat in repeats
        for nodes in (1, 2)
        for arm, (name, usd) in TYPES.items()
    ]  # fmt: skip


def planned_types(design: str, points: Sequence[dict[str, Any]], most_jobs: int) -> Event:
    """Return the event of a planned sweep of instance types."""
    return event(
        17.0, "sweep-planned", "sweep", stage="sweep", sweep=SWEEP, design=design,
        most_jobs=most_jobs, points=points, max_parallel_jobs=1, usd_per_hour=1.0,
        cost_bound_usd=24.0, on_cancel="stop",
    )  # fmt: skip


def of_types() -> Iterator[Event]:
    """Yield a full sweep of two types: one node took 40 s and 18 s; type a trains on 2 nodes."""
    yield from begin()
    yield planned_types("full", points_of_types((1, 2), "run"), 8)
    for arm, second, seconds in (("a", 18, 40.0), ("b", 60, 18.0)):
        for one in (*train(second, 1), done(second + seconds, 1, seconds / 2, seconds)):
            yield typed(one, arm)
    for one in train(80, 2):
        yield typed(one, "a")


def probes_of_types() -> Iterator[Event]:
    """Yield a probe sweep of two types, projected to 220 s and 80 s; two more passes may follow."""
    yield from begin()
    yield planned_types("probe", [], 13)
    later = points_of_types((2, 3), "probe")
    yield event(
        17.2, "sweep-decided", "4 jobs next: every instance type is probed at every node count",
        stage="sweep", points=points_of_types((1,), "probe"), answers=[],
        later=[{**each, "may_be_dropped": each["repeat"] > 2} for each in later],
    )  # fmt: skip
    for arm, second, seconds, whole in (("a", 18, 40.0, 220.0), ("b", 60, 18.0, 80.0)):
        for one in train(second, 1):
            yield typed(one, arm)
        ended_probe = done(second + seconds, 1, whole - 10, seconds)
        foretold = {"is_projected": True, "whole_run_seconds": whole, "whole_run_steps": 500}
        facts = {**ended_probe.facts, **foretold, "steps": None}
        yield typed(replace(ended_probe, facts=facts), arm)
    for one in train(80, 2):
        yield typed(one, "a")
