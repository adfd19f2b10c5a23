"""The automations that a command creates at a real server: one set, messages on events, and none
after --remove."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from nodesweep.infra.worker.machine import HOST
from tests.production.world import World, wait_for

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def inbox() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield a webhook's URL, and the messages that were sent to it."""
    received: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing about requests."""

    server = HTTPServer((HOST, 0), Webhook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{HOST}:{server.server_port}/", received
    server.shutdown()


def automations(world: World, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nodesweep.infra.worker", "automations", *options]
    environment = {**os.environ, **world.machine.environment}
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300
    )


def names(world: World) -> list[str]:
    found = [automation["name"] for automation in world.call("POST", "/automations/filter")]
    return sorted(name for name in found if name.startswith("nodesweep: "))


def test_a_regression_and_a_budget_are_told(
    world: World, inbox: tuple[str, list[dict[str, Any]]]
) -> None:
    url, received = inbox
    missing = automations(world, "--notify", "custom-webhook/nowhere")
    assert missing.returncode == 2 and "'custom-webhook/nowhere'" in missing.stderr
    assert names(world) == []

    save = (
        "from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block; "
        f"Block(name='ops', url={url!r}, "
        "json_data={'subject': '{{subject}}', 'body': '{{body}}'}).save('ops')"
    )
    environment = {**os.environ, **world.machine.environment}
    subprocess.run([sys.executable, "-c", save], env=environment, check=True, timeout=300)
    for _ in range(2):  # a second call replaces the first one's
        done = automations(world, "--notify", "custom-webhook/ops")
        assert done.returncode == 0, done.stderr
    expected = [
        "nodesweep: budget",
        "nodesweep: failure",
        "nodesweep: regression",
        "nodesweep: runs whose process is gone",
    ]
    assert names(world) == expected

    announce = (
        "from nodesweep.tasks.report.publish import announce_budget, announce_regression; "
        "from prefect.events.worker import EventsWorker; "
        "announce_regression('s', 'before', 'slower by a third'); "
        "announce_budget('bench', '14.40 more', 's'); EventsWorker.drain_all()"
    )
    subprocess.run(
        [sys.executable, "-c", announce], cwd=REPOSITORY, env=environment, check=True, timeout=300
    )
    wait_for("the messages", lambda: len(received) == 2)
    assert sorted(received, key=lambda message: message["subject"]) == [
        {"subject": "nodesweep: budget of bench", "body": "14.40 more"},
        {"subject": "nodesweep: regression", "body": "slower by a third"},
    ]

    assert automations(world, "--remove").returncode == 0
    assert names(world) == []
