"""The commands of docs/schedule.md switch the nightly schedule on, and off again; `make up` leaves
it on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodesweep.infra.worker.machine import up
from tests.production.world import World

pytestmark = pytest.mark.slow
GUIDE = (Path(__file__).parents[2] / "docs" / "schedule.md").read_text()
(BLOCK,) = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)


def test_the_commands_switch_the_schedule_on(world: World) -> None:
    deployment = world.deployment_id("scaling-benchmark/nightly")

    def schedules() -> dict[str, bool]:
        found = world.call("GET", f"/deployments/{deployment}/schedules")
        return {one["id"]: one["active"] for one in found}

    (name,) = schedules()
    assert not schedules()[name]
    shown, resumed = BLOCK.replace("SCHEDULE_ID", name).splitlines()
    assert name in run(world, shown)
    try:
        run(world, resumed)
        assert schedules()[name]
        up(world.machine)  # registers the deployments again
        assert schedules()[name]
    finally:
        run(world, resumed.replace("resume", "pause"))
    assert not schedules()[name]


def run(world: World, command: str) -> str:
    """Run a command of the guide in a shell with the guide's two variables."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PREFECT_API_URL": world.machine.api_url,
        "PREFECT_API_AUTH_STRING": world.machine.auth_file.read_text().strip(),
        "COLUMNS": "200",
    }
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
