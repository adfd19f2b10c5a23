"""A short run as its events, by the second: four points on 1, 2, 4 and 8 nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from scaling import names
from tasks.events import Event, Stage

SWEEP = "local-20261123052325-08094dab"
BEGAN = datetime(2026, 11, 23, 5, 23, 25, tzinfo=UTC)
TRACEBACK = ["Traceback (most recent call last):", "RuntimeError: no room", "more memory helps"]


def job(nodes: int, repeat: int = 1) -> str:
    return f"{SWEEP}-n{nodes}-r{repeat}-a1-fd48"


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
        place[0] if place else None,
        facts,
    )


def begun(second: float, stage: Stage) -> Event:
    return event(second, "stage-begun", f"{stage} begins", source=stage, stage=stage)


def ended(second: float, stage: Stage, seconds: float, ok: bool = True) -> Event:
    text = f"{stage} done after {seconds:.1f} s"
    return event(second, "stage-ended", text, source=stage, stage=stage, seconds=seconds, ok=ok)


def line(second: float, nodes: int, text: str, kind: str = "program", **facts: Any) -> Event:
    facts = {"host": "algo-1", "step": None, **facts}
    return event(second, "node-line", text, source="log", nodes=nodes, kind=kind, **facts)


def done(second: float, nodes: int, train: float, whole: float) -> Event:
    return event(
        second, "point-ended", f"{job(nodes)}: trained for {train:.1f} s",
        nodes=nodes, status="Completed", train_seconds=train, billable_seconds=int(whole),
        submit_to_end_seconds=whole, steps=28, reason=None, lines=[],
    )  # fmt: skip


def begin(price: float | None = None, bound: float | None = None) -> Iterator[Event]:
    """Up to the first job."""
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
    """A job up to its first step."""
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
    """Two points are done, the third trains."""
    yield from begin(price, bound)
    yield from train(18, 1)
    yield done(90, 1, 64.5, 71.0)
    yield from train(91, 2)
    yield done(135, 2, 37.4, 43.0)
    yield from train(136, 4)
    yield line(147, 4, "step=14; loss=1.01;", step=(14, None))


def failed(second: float, nodes: int) -> Event:
    return event(
        second, "point-ended", f"{job(nodes)}: Failed: AlgorithmError: exit code 1",
        level=logging.ERROR, nodes=nodes, status="Failed", train_seconds=None,
        billable_seconds=30, submit_to_end_seconds=32.0, steps=None,
        reason="AlgorithmError: exit code 1", lines=TRACEBACK,
    )  # fmt: skip
