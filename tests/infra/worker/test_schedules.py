"""Schedules that were enabled are enabled again after a deploy, whatever fails on the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from nodesweep.infra.worker import schedules
from nodesweep.infra.worker.schedules import ScheduleError, kept_enabled

SERVER = {"PREFECT_API_URL": "http://127.0.0.1:4200/api"}


class Server:
    """A Prefect server with three schedules, which refuses some requests to enable one."""

    def __init__(self) -> None:
        self.active = {"nightly": True, "reaper": True, "collect": False}
        self.refusals: dict[str, int] = {}

    def respond(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            listed = [
                {"id": name, "name": name, "schedules": [{"id": "1", "active": active}]}
                for name, active in self.active.items()
            ]
            return httpx.Response(200, json=listed)
        name = request.url.path.split("/")[3]
        if self.refusals.get(name, 0) > 0:
            self.refusals[name] -= 1
            return httpx.Response(503)
        if name not in self.active:
            return httpx.Response(404)
        self.active[name] = True
        return httpx.Response(204)

    def deploy(self, file: Path | None) -> None:
        with kept_enabled(SERVER, file):
            self.active = dict.fromkeys(self.active, False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    client: Callable[..., httpx.Client] = partial(
        httpx.Client, transport=httpx.MockTransport(made.respond)
    )
    monkeypatch.setattr(schedules.httpx, "Client", client)
    monkeypatch.setattr(schedules, "_FIRST_PAUSE_SECONDS", 0.0)
    return made


@pytest.mark.parametrize("is_noted", [False, True])
def test_schedule_that_is_refused_at_first_is_enabled_in_the_end(
    server: Server, tmp_path: Path, is_noted: bool
) -> None:
    server.refusals = {"nightly": 2}
    server.deploy(tmp_path / "schedules.json" if is_noted else None)
    assert server.active == {"nightly": True, "reaper": True, "collect": False}
    assert list(tmp_path.iterdir()) == []


def test_schedule_that_stays_off_is_named_and_enabled_by_the_next_deploy(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schedules.json"
    monkeypatch.setattr(schedules, "_RETRY_SECONDS", 0.0)
    server.refusals = {"nightly": 2}
    for _ in range(2):
        with pytest.raises(ScheduleError, match=r"off: nightly \(.*503.*make up"):
            server.deploy(file)
        assert server.active == {"nightly": False, "reaper": True, "collect": False}
    server.deploy(file)
    assert server.active == {"nightly": True, "reaper": True, "collect": False}
    assert not file.exists()


def test_deploy_that_is_killed_leaves_a_note_for_the_next_one(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.json"
    with kept_enabled(SERVER, file):
        noted = file.read_bytes()
    server.active = dict.fromkeys(["nightly", "collect"], False)  # reaper is no longer declared
    file.write_bytes(noted)
    server.deploy(file)
    assert server.active == {"nightly": True, "collect": False} and not file.exists()


@pytest.mark.parametrize("damaged", [b"{", b"[]", b"\xff"])
def test_damaged_note_does_not_stop_a_deploy(
    server: Server, tmp_path: Path, damaged: bytes
) -> None:
    file = tmp_path / "schedules.json"
    file.write_bytes(damaged)
    server.deploy(file)
    assert server.active["nightly"] and not file.exists()


def test_without_a_file_the_error_says_to_enable_them_by_hand(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "_RETRY_SECONDS", 0.0)
    server.refusals = {"nightly": 1, "reaper": 1}
    with pytest.raises(ScheduleError, match=re.escape("nightly, reaper")) as failed:
        server.deploy(None)
    assert "in the UI" in str(failed.value)
