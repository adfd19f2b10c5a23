"""One machine for all these tests, as `make up` starts it: own server, worker, home, and simulated
jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from infra.worker.machine import Machine, down, up
from tests.production.world import World, free_port

_MODEL = {
    "t_compute_seconds": 0.2,
    "gradient_bytes": 0,
    "noise_sigma": 0,
    "startup_seconds": 0,
    "download_seconds": 0,
    "setup_seconds": 0,
    "upload_seconds": 0,
}
"""Jobs of 0.2 s: those that shall take long are held (World.held_jobs)."""
_RUNS_AT_ONCE = 20


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("machine")
    model = folder / "model.json"
    model.write_text(json.dumps(_MODEL))
    leaves = folder / "leaves"  # of a Processing job
    (leaves / "processing" / "output" / "verdict").mkdir(parents=True)
    options = ("--engine", "simulated", "--time-scale", "1", "--model", str(model))
    options += ("--processing-leaves", str(leaves))
    machine = Machine(folder, free_port(), free_port(), platform_options=options)
    try:
        up(machine)
        world = World(machine)
        world.allow_runs_at_once("scaling-benchmark/scaling-benchmark", _RUNS_AT_ONCE)
        yield world
    finally:
        down(machine)


@pytest.fixture
def held_jobs(world: World) -> Iterator[Callable[[], None]]:
    """Every job of the test runs until the fixture's value is called: the platform carries out one
    after the other.
    """
    release = world.hold_jobs()
    try:
        yield release
    finally:
        release()
