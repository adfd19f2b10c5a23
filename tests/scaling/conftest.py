"""Outcomes and reports made from a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from scaling.outcome.outcome import Clocks, JobOutcome

if TYPE_CHECKING:
    from scaling.report import ScalingReport

GENERATED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def outcome(
    nodes: int, train_seconds: float | None = None, repeat: int = 1, **changes: Any
) -> JobOutcome:
    """A completed run with that train time, or a failed one where it has none."""
    completed = train_seconds is not None
    fields: dict[str, Any] = {
        "attempt": 1,
        "job_name": f"sweep-n{nodes}-r{repeat}-a1-abcd",
        "status": "Completed" if completed else "Failed",
        "reason": None if completed else "AlgorithmError: boom",
        "platform_kind": "aws",
        "instance_type": "ml.m5.xlarge",
        "clocks": Clocks(train_seconds=train_seconds),
        "train_clock": "program" if completed else None,
        **changes,
    }
    return JobOutcome(nodes=nodes, repeat=repeat, **fields)


def outcomes_at(times: dict[int, float | Sequence[float]], **changes: Any) -> list[JobOutcome]:
    """{nodes: train_seconds or several repeats of it} as outcomes."""
    made = []
    for nodes, seconds in times.items():
        repeats = seconds if isinstance(seconds, Sequence) else [seconds]
        made += [
            outcome(nodes, each, repeat, **changes) for repeat, each in enumerate(repeats, start=1)
        ]
    return made


@pytest.fixture
def make_outcome() -> Callable[..., JobOutcome]:
    return outcome


@pytest.fixture
def make_outcomes() -> Callable[..., list[JobOutcome]]:
    return outcomes_at


@pytest.fixture
def make_report() -> Callable[..., ScalingReport]:
    """make_report(outcomes, config=…, plan=…, price=…, provenance=…) at a fixed time."""
    from scaling.report import analyse

    def make(outcomes: Sequence[JobOutcome], **given: Any) -> ScalingReport:
        return analyse(
            given.get("sweep_id", "bench-20260102030405-0a1b2c3d"),
            given.get("config"),
            given.get("plan"),
            outcomes,
            given.get("price"),
            given.get("provenance", {}),
            GENERATED_AT,
        )

    return make
