"""Slots of a global concurrency limit that are held while the server of `make up` is killed and
started again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

from nodesweep.infra.worker.deployments import wait_for_server
from nodesweep.infra.worker.machine import HOST
from nodesweep.infra.worker.server import SERVER_AUTH
from nodesweep.tasks.jobs import quota
from nodesweep.tasks.jobs.quota import NodeSlots
from tests.infra.local.platform_client import wait_until
from tests.production.world import free_port

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[3]
PASSWORD = "nodesweep:of-the-test"
SHORTEST_LEASE_SECONDS = 60.0
"""That Prefect's server takes."""


@pytest.fixture
def limit(tmp_path: Path) -> str:
    """Prefect's client keeps one connection for each name, to the server it first saw."""
    return f"limit-{tmp_path.name.replace('_', '-')}"


@pytest.fixture
def restart(tmp_path: Path, limit: str) -> Iterator[Callable[[], None]]:
    """Kill the server and start it again; it runs when the test begins."""
    port = free_port()
    url = f"http://{HOST}:{port}/api"
    environment = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        SERVER_AUTH: PASSWORD,
    }
    command = [sys.executable, "-m", "nodesweep.infra.worker", "server", "--port", str(port)]
    running: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        if running:
            running[-1].kill()
            running.pop().wait()

    def start() -> None:
        kill()
        with open(tmp_path / "server.log", "ab") as log:
            running.append(
                subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
            )
        wait_for_server(url, lambda: running[-1].poll() is None)

    try:
        start()
        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: PASSWORD}):
            with get_client(sync_client=True) as client:
                client.create_global_concurrency_limit(
                    GlobalConcurrencyLimitCreate(name=limit, limit=2)
                )
            yield start
    finally:
        kill()


def taken(limit: str) -> int:
    with get_client(sync_client=True) as client:
        return int(client.read_global_concurrency_limit_by_name(limit).active_slots)


def test_slots_come_free_when_they_are_given_back_after_a_restart(
    restart: Callable[[], None], limit: str
) -> None:
    slots, other = NodeSlots(limit), NodeSlots(limit)
    slots.take("a", 2)
    restart()
    assert taken(limit) == 2
    slots.give_back("a")
    assert taken(limit) == 0
    other.take("b", 2)
    other.give_back_all()


def test_slots_that_could_not_be_given_back_come_free_when_their_lease_runs_out(
    restart: Callable[[], None], limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        quota, "concurrency", partial(concurrency, lease_duration=SHORTEST_LEASE_SECONDS)
    )
    slots = NodeSlots(limit)
    slots.take("a", 2)
    with temporary_settings(
        {PREFECT_API_URL: f"http://{HOST}:1/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    ):
        slots.give_back("a")
    restart()
    assert taken(limit) == 2
    wait_until(lambda: taken(limit) == 0, SHORTEST_LEASE_SECONDS + 60)
