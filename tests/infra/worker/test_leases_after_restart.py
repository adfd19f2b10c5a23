"""Slots of a global concurrency limit that are held while the server of `make up` is killed and
restarted."""

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

from benchmarks.ports import free_port
from infra.local.tests.platform_client import wait_until
from nodesweep.infra.worker.deployments import wait_for_server
from nodesweep.infra.worker.machine import HOST
from nodesweep.infra.worker.server import SERVER_AUTH
from nodesweep.tasks.jobs import quota
from nodesweep.tasks.jobs.quota import NodeSlots

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[3]
PASSWORD = "nodesweep:of-the-test"
SHORTEST_LEASE_SECONDS = 60.0
"""That Prefect's server takes."""


RETURNED, KEPT = "returned", "kept"
"""Two limits."""


@pytest.fixture
def restart(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Return a function that kills the server and starts it again; the server runs when the test
    begins."""
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
                for name in (RETURNED, KEPT):
                    client.create_global_concurrency_limit(
                        GlobalConcurrencyLimitCreate(name=name, limit=2)
                    )
            yield start
    finally:
        kill()


def taken(limit: str) -> int:
    with get_client(sync_client=True) as client:
        return int(client.read_global_concurrency_limit_by_name(limit).active_slots)


def test_slots_come_free_when_they_are_given_back_or_their_lease_runs_out(
    restart: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slots of one limit are returned after the restart; those of the other cannot be
    returned."""
    monkeypatch.setattr(
        quota, "concurrency", partial(concurrency, lease_duration=SHORTEST_LEASE_SECONDS)
    )
    kept = NodeSlots(KEPT)
    kept.take("a", 2)
    monkeypatch.setattr(quota, "concurrency", concurrency)
    slots, other = NodeSlots(RETURNED), NodeSlots(RETURNED)
    slots.take("a", 2)
    with temporary_settings(
        {PREFECT_API_URL: f"http://{HOST}:1/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    ):
        kept.release("a")
    assert taken(KEPT) == 2
    restart()
    assert taken(RETURNED) == 2  # the other lease may run out while a slow server restarts
    slots.release("a")
    assert taken(RETURNED) == 0
    other.take("b", 2)
    other.release_all()
    wait_until(lambda: taken(KEPT) == 0, SHORTEST_LEASE_SECONDS + 300)
