"""One machine for all tests here, as `make up` starts it: server, worker, and simulated jobs."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.ports import free_port
from nodesweep.infra.worker.machine import HOST, Machine, down, up
from tests.production.stages import HELD_AT
from tests.production.world import (
    NODES,
    RenewingSweep,
    World,
    is_alive,
    send,
    wait_for,
)

_MODEL = {
    "t_compute_seconds": 0.2,
    "gradient_bytes": 0,
    "noise_sigma": 0,
    "startup_seconds": 0,
    "download_seconds": 0,
    "setup_seconds": 0,
    "upload_seconds": 0,
}
"""Jobs of 0.2 s; longer ones are held (World.held_jobs)."""
_RUNS_AT_ONCE = 20


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The machine that the tests share."""
    with machine_of(tmp_path_factory.mktemp("machine")) as world:
        world.allow_runs_at_once("scaling-benchmark/scaling-benchmark", _RUNS_AT_ONCE)
        yield world


@contextmanager
def machine_of(folder: Path) -> Iterator[World]:
    """Yield a machine in this folder."""
    model = folder / "model.json"
    model.write_text(json.dumps(_MODEL))
    leaves = folder / "leaves"  # output of a Processing job
    (leaves / "processing" / "output" / "verdict").mkdir(parents=True)
    options = ("--engine", "simulated", "--time-scale", "1", "--model", str(model))
    options += ("--processing-leaves", str(leaves))
    machine = Machine(folder, free_port(), free_port(), platform_options=options)
    with pytest.MonkeyPatch.context() as environment:
        # Reports and platform are in the folders of these machines, not in the checkout.
        environment.setenv("NODESWEEP_ALLOWED_PATHS", str(folder.parent))
        gates = [free_port() for _ in HELD_AT]
        endpoints = ",".join(f"http://{HOST}:{port}" for port in gates)
        environment.setenv("NODESWEEP_ALLOWED_ENDPOINTS", endpoints)
        try:
            up(machine)
            yield World(machine, gates)
        finally:
            down(machine)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start tests that must outlive Prefect's timers first and check them last.

    Their minutes pass while the other tests run.
    """
    items.sort(key=lambda item: {"begins": -1, "outlives": 1}.get(_clock(item), 0))


def _clock(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("clock")
    return None if mark is None else str(mark.args[0])


@pytest.fixture(scope="session")
def renewing_sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RenewingSweep]:
    """A run of the deployment `local` with its default limit, holding slots of a global limit."""
    with machine_of(tmp_path_factory.mktemp("renewing")) as world:
        world.call("POST", "/v2/concurrency_limits/", name=NODES, limit=4)
        release = world.hold_jobs()
        settings = world.settings("renewed", sweep__concurrency_limit=NODES)
        run = world.start("scaling-benchmark/local", preset="local", settings=settings)
        lost = world.start(
            "scaling-benchmark/scaling-benchmark",
            preset="local",
            settings=world.settings("lost"),
        )
        for name in ("renewed", "lost"):
            world.running_jobs(name, 2)
        lease = world.call("GET", f"/flow_runs/{lost}")["state"]["state_details"]
        world.call(
            "POST",
            "/v2/concurrency_limits/decrement-with-lease",
            lease_id=lease["deployment_concurrency_lease_id"],
        )
        server = world.process("server")
        send(server, signal.SIGKILL)
        wait_for("the server's end", lambda: not is_alive(server))
        world.up()
        yield RenewingSweep(world, run, lost, release, time.monotonic())


@pytest.fixture
def held_jobs(world: World) -> Iterator[Callable[[], None]]:
    """Keep every job of the test running until the fixture's value is called.

    The platform runs one job at a time.
    """
    release = world.hold_jobs()
    try:
        yield release
    finally:
        release()
