"""Take Prefect's server down for minutes while sweeps of a deployment run.

    .venv/bin/python -m tests.production.outage --away 300 --folder /tmp/outage

Run by hand: 205 s pass before the first renewal, then the outage. Two runs hold leases taken a
minute apart; the server is killed 20 s before the older lease is renewed, the worst moment, and
restarted after `--away` seconds. The exit code is 1 if a run does not complete with the jobs it
had.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tests.production.conftest import machine_of
from tests.production.stages import states_of
from tests.production.world import NODES, World, is_alive, send, wait_for

DEPLOYMENT = "scaling-benchmark/local"
_APART_SECONDS, _UNTIL_RENEWED_SECONDS, _AFTER_SECONDS = 60.0, 205.0, 90.0
_SLOW_SECONDS = 900.0


def main() -> int:
    """Run the experiment and return 1 if a run was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--away", type=float, default=300.0, help="seconds")
    parser.add_argument("--folder", type=Path, required=True, help="a new one, of the machine")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    with machine_of(arguments.folder.resolve()) as world:
        world.call("POST", "/v2/concurrency_limits/", name=NODES, limit=6)
        world.allow_runs_at_once(DEPLOYMENT, 2)
        release, began, runs = world.hold_jobs(), time.monotonic(), dict[str, str]()
        try:
            for name in ("older", "newer"):
                runs[name] = _start(world, name)
                _sleep_until(began + _APART_SECONDS)
            _sleep_until(began + _UNTIL_RENEWED_SECONDS)
            _be_away(world, arguments.away)
            time.sleep(_AFTER_SECONDS)
        finally:
            release()
        return int(not all([_goes_on(world, name, run) for name, run in runs.items()]))


def _start(world: World, name: str) -> str:
    settings = world.settings(name, sweep__concurrency_limit=NODES)
    run = world.start(DEPLOYMENT, preset="local", settings=settings)
    world.running_jobs(name, 2)
    return run


def _be_away(world: World, seconds: float) -> None:
    server, killed_at = world.process("server"), time.monotonic()
    send(server, signal.SIGKILL)
    wait_for("the server's end", lambda: not is_alive(server))
    _sleep_until(killed_at + seconds)
    world.up()
    print(f"the server was away for {time.monotonic() - killed_at:.0f} s, its start included")


def _goes_on(world: World, name: str, run: str) -> bool:
    end, jobs = world.end_of(run, _SLOW_SECONDS), world.no_job_runs(name, _SLOW_SECONDS)
    states = states_of(world, run)
    lost = "another run may start" in world.log_of(run)
    print(f"{name}: {end}; states {states}; jobs {jobs.points}; lease lost: {lost}")
    wanted = {(1, 1): ["Completed"], (2, 1): ["Completed"]}
    return end == "Completed" and "CRASHED" not in states and jobs.points == wanted


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main())
