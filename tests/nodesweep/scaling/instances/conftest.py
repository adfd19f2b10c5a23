"""A sweep of two priced types over 1, 2, and 4 nodes, and its outcomes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.arms import Arm, Cell, Key
from nodesweep.scaling.instances.report import analyse_sweep
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.planning.plan import SweepPlan, plan_arms
from tests.nodesweep.scaling.conftest import outcome, projection

CHEAP, FAST, UNPRICED = "ml.m5.xlarge", "ml.m5.4xlarge", "ml.m5.2xlarge"
TYPES = (CHEAP, FAST)
SWEEP = "bench-20260102030405-0a1b2c3d"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OUT_OF_MEMORY = "AlgorithmError: torch.cuda.OutOfMemoryError: CUDA out of memory"
# Seconds of one repeat. At 0.23 and 0.922 USD/h the fast type costs more unless it is four times
# as fast.
SECONDS = {
    (CHEAP, 1): 3600.0,
    (CHEAP, 2): 1850.0,
    (CHEAP, 4): 950.0,
    (FAST, 1): 1200.0,
    (FAST, 2): 620.0,
    (FAST, 4): 330.0,
}
WAVE = (1.0, 1.01, 0.99, 1.005, 0.995)


@pytest.fixture
def types_config(make_config: Callable[..., BenchmarkConfig]) -> Callable[..., BenchmarkConfig]:
    """Return a factory of sweeps of instance types, given goals and changes to the sweep.

    `types_config({"deadline_seconds": 60}, repeats=2)`
    """

    def make(
        goals: dict[str, Any] | None = None, types: tuple[str, ...] = TYPES, **sweep: Any
    ) -> BenchmarkConfig:
        return make_config(
            sweep={"instance_types": types, "node_counts": [1, 2, 4], "repeats": 3, **sweep},
            training={"instance_type": types[0]},
            report={"recommendation": goals or {}},
        )

    return make


def arm_of(name: str, types: tuple[str, ...] = TYPES) -> Arm:
    """Return the arm of this type in a sweep of these types."""
    return Arm(names.arm_code(types.index(name)), name)


def cell(name: str, nodes: int, types: tuple[str, ...] = TYPES) -> Cell:
    """Return the cell of this type at a node count."""
    return Cell(arm_of(name, types), nodes)


def key(name: str, nodes: int, repeat: int) -> Key:
    """Return a point of the sweep of TYPES."""
    return Key(arm_of(name), nodes, repeat)


def run(
    name: str, nodes: int, repeat: int = 1, types: tuple[str, ...] = TYPES, **changes: Any
) -> JobOutcome:
    """Return a completed run, or a failed one for train_seconds=None."""
    arm = arm_of(name, types)
    seconds = changes.pop("train_seconds", SECONDS.get((name, nodes), 100.0) * WAVE[repeat - 1])
    clocks = Clocks(
        train_seconds=seconds,
        billable_seconds=seconds and seconds + 60.0,
        submit_to_end_seconds=seconds and seconds + 120.0,
    )
    fields = {
        "job_name": f"{SWEEP}-n{nodes}{arm.code}-r{repeat}-a{changes.get('attempt', 1)}-abcd",
        "instance_type": name,
        "clocks": clocks,
        "region": "us-east-1",
        "created_at": f"2026-01-02T03:{repeat:02}:{nodes:02}+00:00",
        **changes,
    }
    return outcome(nodes, seconds, repeat, **fields)


def probe(name: str, nodes: int, repeat: int = 1, **changes: Any) -> JobOutcome:
    """Return a probe that projects the time of its arm."""
    seconds = changes.pop("train_seconds", SECONDS[name, nodes] * WAVE[repeat - 1])
    fields = {
        "train_seconds": seconds,
        "train_clock": "projected",
        "train_seconds_by": {"projected": seconds},
        "projection": projection(seconds),
        "clocks": Clocks(
            train_seconds=seconds,
            billable_seconds=0.1 * seconds + 60.0,
            submit_to_end_seconds=0.1 * seconds + 120.0,
        ),
        **changes,
    }
    return run(name, nodes, repeat, **fields)


def all_runs(repeats: int = 3, make: Callable[..., JobOutcome] = run) -> list[JobOutcome]:
    """Return this many runs of every arm."""
    return [
        make(name, nodes, repeat) for repeat in range(1, repeats + 1) for name, nodes in SECONDS
    ]


def plan_for(config: BenchmarkConfig) -> SweepPlan:
    """Return the config's plan."""
    return plan_arms(config, [load_catalogue().get(name) for name in config.instance_types])


@pytest.fixture
def types_report() -> Callable[..., Any]:
    """Return a factory of (the sweep's report, each type's report).

    `types_report(config, outcomes, **provenance)`
    """

    def make(config: BenchmarkConfig, outcomes: list[JobOutcome], **provenance: Any) -> Any:
        prices = {
            name: price_of(load_catalogue().get(name), "us-east-1")
            for name in config.instance_types
        }
        plan = plan_for(config)
        return analyse_sweep(SWEEP, config, plan, outcomes, prices, provenance, NOW)

    return make
