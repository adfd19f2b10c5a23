"""A sweep and Prefect's timers: its leases are renewed every 225 s, and a restarted server must
still know them."""

from __future__ import annotations

import time

import pytest

from tests.production.stages import states_of
from tests.production.world import NODES, RenewingSweep, World, wait_for

pytestmark = pytest.mark.slow
_TWO_RENEWALS_SECONDS = 2 * 225 + 20
BOTH_RUN = {(1, 1): ["InProgress"], (2, 1): ["InProgress"]}
BOTH_COMPLETED = {(1, 1): ["Completed"], (2, 1): ["Completed"]}


def slots_taken(world: World, limit: str) -> int:
    return int(world.call("GET", f"/v2/concurrency_limits/{limit}")["active_slots"])


def limit_of(world: World, deployment: str) -> str:
    found = world.call("GET", f"/deployments/name/{deployment}")["global_concurrency_limit"]
    return str(found["name"])


@pytest.mark.clock("begins")
def test_run_goes_on_at_once_after_a_restart_of_the_server(renewing_sweep: RenewingSweep) -> None:
    world = renewing_sweep.world
    assert world.state(renewing_sweep.run) == "Running"
    assert world.ledger("renewed").points == BOTH_RUN
    assert slots_taken(world, NODES) == 3


@pytest.mark.clock("outlives")
def test_run_outlives_two_renewals_after_a_restart_and_gives_its_slots_back(
    renewing_sweep: RenewingSweep,
) -> None:
    """The test waits for the rest of the 470 s that earlier tests have left."""
    world, run = renewing_sweep.world, renewing_sweep.run
    missing = renewing_sweep.restarted_at + _TWO_RENEWALS_SECONDS - time.monotonic()
    time.sleep(max(0.0, missing))
    assert world.state(run) == "Running", world.log_of(run)
    assert world.ledger("renewed").points == BOTH_RUN
    assert world.state(renewing_sweep.lost) == "Running", world.log_of(renewing_sweep.lost)
    renewing_sweep.release()
    assert world.end_of(run) == "Completed"
    assert world.ledger("renewed").points == BOTH_COMPLETED
    for limit in (NODES, limit_of(world, "scaling-benchmark/local")):
        wait_for(f"the slots of {limit}", lambda limit=limit: slots_taken(world, limit) == 0)


@pytest.mark.clock("outlives")
def test_run_whose_lease_has_ended_goes_on_with_its_jobs(renewing_sweep: RenewingSweep) -> None:
    """The renewal was refused, after which Prefect ends a run and leaves its jobs alone."""
    world, lost = renewing_sweep.world, renewing_sweep.lost
    renewing_sweep.release()
    assert world.end_of(lost) == "Completed"
    assert "another run" in world.log_of(lost)
    assert world.no_job_runs("lost").points == BOTH_COMPLETED
    assert "CRASHED" not in states_of(world, lost)
