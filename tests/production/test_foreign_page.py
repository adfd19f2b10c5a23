"""A web page that the user happens to visit has no access to the server of `make up`."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from nodesweep.infra.worker.ports import listens
from tests.processes.listening import listening_addresses
from tests.production.world import World

pytestmark = pytest.mark.slow
PAGE = "http://evil.example"
FLOW = {"name": "planted"}


@pytest.fixture
def stranger(world: World) -> httpx.Client:
    """A client that knows the address but no password."""
    return httpx.Client(
        base_url=world.machine.api_url.removesuffix("/api"), timeout=60, trust_env=False
    )


def test_nothing_listens_to_other_machines(world: World) -> None:
    machine = world.machine
    ports = (machine.port, machine.platform_port)
    assert [listening_addresses(port) for port in ports] == [{"0100007F"}] * 2, "127.0.0.1 each"


def test_the_worker_serves_no_page(world: World) -> None:
    """Prefect's health server would accept any Host, and serve pages that load scripts from other
    hosts.

    The worker listens only to the processes of its runs, which send a single-use token.
    """
    pid = json.loads((world.machine.folder / "worker.json").read_text())["pid"]
    ports = {
        int(line.split()[1].rpartition(":")[2], 16)
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    assert ports
    for port in (port for port in ports if listens(pid, port)):
        assert listening_addresses(port) == {"0100007F"}, "127.0.0.1"
        with pytest.raises(httpx.TransportError):  # no answer to a browser
            httpx.get(f"http://127.0.0.1:{port}/", timeout=60, trust_env=False)


WEBSOCKETS = (
    "/events/in",
    "/events/out",
    "/logs/out",
    "/task_runs/subscriptions/scheduled",
    "/work_pools/nodesweep/workers/connect",
)


@pytest.mark.parametrize("path", WEBSOCKETS)
def test_a_websocket_is_closed_at_a_wrong_token_of_whatever_characters(
    world: World, path: str
) -> None:
    log = world.machine.folder / "server.log"
    before = log.read_text().count("Traceback")
    url = world.machine.api_url.replace("http://", "ws://") + path
    reasons = set()
    for token in ("nodesweep:wrong", "nodesweep:Gänse", ["nodesweep"], 5):
        with connect(url, subprotocols=[Subprotocol("prefect")], open_timeout=60) as opened:
            opened.send(json.dumps({"type": "auth", "token": token}, ensure_ascii=False))
            with pytest.raises(ConnectionClosed) as closed:
                opened.recv(timeout=60)
            assert closed.value.rcvd is not None
            reasons.add(closed.value.rcvd.code)
    assert reasons == {1008}
    with pytest.raises(InvalidStatus, match="403"), connect(url, open_timeout=60):
        pass  # not without the protocol that asks for a token
    assert log.read_text().count("Traceback") == before


def flows(world: World) -> set[str]:
    return {flow["name"] for flow in world.call("POST", "/flows/filter", limit=200)}


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_page_cannot_make_a_flow(world: World, stranger: httpx.Client, kind: str) -> None:
    """A page may send text/plain without asking the server first."""
    headers = {"Origin": PAGE, "Content-Type": kind}
    answer = stranger.post("/api/flows/", content=json.dumps(FLOW), headers=headers)
    assert answer.status_code == 401, answer.text
    assert "planted" not in flows(world)


def test_a_browser_is_not_asked_for_a_password_that_it_would_send_by_itself(
    stranger: httpx.Client,
) -> None:
    answer = stranger.get("/api/admin/version")
    assert answer.status_code == 401 and "www-authenticate" not in answer.headers


def test_what_is_told_without_a_password_is_that_the_server_runs(stranger: httpx.Client) -> None:
    assert stranger.get("/api/health").json() is True
    assert stranger.post("/api/health").status_code == 401


def test_a_page_may_not_send_a_password(world: World, stranger: httpx.Client) -> None:
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    refused = stranger.options("/api/flows/", headers={"Origin": PAGE, **asks})
    assert "access-control-allow-origin" not in refused.headers and refused.status_code == 400
    own = world.machine.api_url.removesuffix("/api")
    assert stranger.options("/api/flows/", headers={"Origin": own, **asks}).status_code == 200


@pytest.mark.parametrize("path", ["/api/health", "/api/admin/version", "/ui-settings", "/"])
def test_a_page_whose_name_was_led_to_loopback_is_refused(
    world: World, stranger: httpx.Client, path: str
) -> None:
    answer = stranger.get(path, headers={"Host": f"evil.example:{world.machine.port}"})
    assert (answer.status_code, answer.text) == (400, "Invalid host header")


def test_the_password_is_its_owners_alone_and_on_no_command_line(world: World) -> None:
    file = world.machine.auth_file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.stat().st_uid == os.getuid()
    password = file.read_text().strip()
    assert len(password.partition(":")[2]) >= 32
    for name in ("server", "worker"):
        command = Path(f"/proc/{world.process(name)}/cmdline").read_bytes()
        assert command and password.encode() not in command
        log = (world.machine.folder / f"{name}.log").read_text()
        assert password not in log
