"""If the worker or everything is lost during a sweep, no job is lost or started twice.

test_renewals.py tests a server that is lost and starts again, and
tests/containers/test_worker_container.py a worker that is told to end.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.production.world import Ledger, World, is_alive, send, wait_for

pytestmark = pytest.mark.slow
DEPLOYMENT = "scaling-benchmark/scaling-benchmark"
BOTH_RUN = {(1, 1): ["InProgress"], (2, 1): ["InProgress"]}
BOTH_COMPLETED = {(1, 1): ["Completed"], (2, 1): ["Completed"]}
Release = Callable[[], None]


def start_sweep(world: World, benchmark: str) -> str:
    """Start a run, and wait until both of its jobs are in progress."""
    run = world.start(DEPLOYMENT, preset="local", settings=world.settings(benchmark))
    world.running_jobs(benchmark, 2)
    return run


def adopted_and_finished(
    world: World, benchmark: str, run: str, release: Release
) -> tuple[Ledger, Ledger]:
    """Return the platform's list once a retry has adopted both jobs, and at the end."""
    world.retry(run)
    wait_for(
        f"{benchmark} goes on", lambda: "job 2/2" in world.log_of(run).rpartition("resuming")[2]
    )
    adopted = world.ledger(benchmark)
    release()
    assert world.end_of(run) == "Completed"
    return adopted, world.no_job_runs(benchmark)


def test_run_goes_on_when_its_worker_is_killed(world: World, held_jobs: Release) -> None:
    """kill -9 of the worker alone: the flow's process finishes the sweep, and the new worker has
    nothing to do.
    """
    run = start_sweep(world, "workerless")
    worker, flow = world.process("worker"), world.flow_process(run)
    send(worker, signal.SIGKILL)
    wait_for("the worker's end", lambda: not is_alive(worker))
    assert is_alive(flow)
    assert world.ledger("workerless").points == BOTH_RUN
    world.up()
    held_jobs()
    assert world.end_of(run) == "Completed"
    assert world.no_job_runs("workerless").points == BOTH_COMPLETED


def test_jobs_are_adopted_after_everything_was_killed(world: World, held_jobs: Release) -> None:
    """kill -9 of flow, worker and server; the platform, which is elsewhere in production, lives
    on.
    """
    run = start_sweep(world, "blackout")
    lost = [world.process("worker"), world.process("server"), world.flow_process(run)]
    for process in lost:
        send(process, signal.SIGKILL)
    wait_for("the end of them all", lambda: not any(map(is_alive, lost)))
    assert world.ledger("blackout").points == BOTH_RUN
    world.up()
    assert world.state(run) == "Running"
    adopted, end = adopted_and_finished(world, "blackout", run, held_jobs)
    assert (adopted.points, end.points) == (BOTH_RUN, BOTH_COMPLETED)
