"""The checks of Prefect by the doctor: its server, the storage of its leases, its workers and its
runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import prefect
import pytest
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    temporary_settings,
)
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.commands import prefect_check
from nodesweep.cli.commands.prefect_check import check_prefect_server
from tests.plain import plain

URL = "http://somebody:secret@prefect.example:4200/api"
NOW = datetime(2026, 11, 26, 3, 0, tzinfo=UTC)
FILES = "prefect.server.concurrency.lease_storage.filesystem"
MEMORY = "prefect.server.concurrency.lease_storage.memory"


def cancelling(name: str, seconds: float) -> dict[str, Any]:
    since = NOW - timedelta(seconds=seconds)
    return {"name": name, "id": f"id-of-{name}", "state": {"timestamp": since.isoformat()}}


def answers(**changed: Any) -> dict[str, Any]:
    """Responses of a server in order, by path; an int is a status."""
    return {
        "/api/flow_runs/filter": [],
        "/api/admin/version": prefect.__version__,
        "/api/admin/settings": {"server": {"concurrency": {"lease_storage": FILES}}},
        "/api/work_pools/nodesweep/workers/filter": [{"name": "machine"}],
        **{f"/api/{path}": answer for path, answer in changed.items()},
    }


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str, str]]:
    """Return served(**answers), which returns the findings about such a server."""

    def look(**changed: Any) -> tuple[str, str, str]:
        says = answers(**changed)

        def handle(request: httpx.Request) -> httpx.Response:
            answer = says[request.url.path]
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, int):
                return httpx.Response(answer)
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            return httpx.Response(200, content=body, headers={"Date": format_datetime(NOW)})

        transport = httpx.MockTransport(handle)
        client = httpx.Client(base_url=f"{URL}/", transport=transport)
        monkeypatch.setattr(prefect_check, "_client", lambda settings: client)
        with temporary_settings({PREFECT_API_URL: URL}):
            return check_prefect_server()

    return look


Served = Callable[..., tuple[str, str, str]]


def test_server_in_order(served: Served, snapshot: SnapshotAssertion) -> None:
    state, text, remedy = served()
    assert (state, remedy) == ("ok", "")
    assert plain(text, version=prefect.__version__) == snapshot


@pytest.mark.parametrize(
    ("path", "answer", "state", "remedy"),
    [
        ("flow_runs/filter", httpx.ConnectError("refused"), "missing", "make up"),
        ("flow_runs/filter", httpx.ReadTimeout("late"), "missing", "unset"),
        ("flow_runs/filter", 401, "missing", "PREFECT_API_AUTH_STRING"),
        ("flow_runs/filter", 404, "missing", "PREFECT_API_URL"),
        ("flow_runs/filter", b"<html>", "missing", "PREFECT_API_URL"),
        ("flow_runs/filter", {"a": 1}, "missing", "PREFECT_API_URL"),
        ("admin/version", "2.20.1", "missing", "Prefect 3"),
        ("admin/version", "3.0.2", "warning", "upgrade"),
        (
            "admin/settings",
            {"server": {"concurrency": {"lease_storage": MEMORY}}},
            "warning",
            f"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE={FILES}",
        ),
        ("work_pools/nodesweep/workers/filter", [], "warning", "make up"),
        (
            "flow_runs/filter",
            [cancelling("scaling-a", 61), cancelling("young", 59)],
            "warning",
            "nodesweep stop",
        ),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    served: Served, path: str, answer: Any, state: str, remedy: str, snapshot: SnapshotAssertion
) -> None:
    found = served(**{path: answer})
    assert found[0] == state
    assert plain(found[1], version=prefect.__version__) == snapshot
    assert "secret" not in found[1]
    assert "young" not in found[1]
    assert remedy in found[2]


@pytest.mark.parametrize("silent", [404, b"<html>", httpx.ReadTimeout("late")])
def test_what_a_server_of_another_kind_does_not_say_is_no_problem(
    served: Served, silent: Any
) -> None:
    """Prefect Cloud says nothing of its settings, and a pool that nobody has made needs no
    worker, and is not reported as polled.
    """
    state, text, _ = served(
        **{
            "admin/version": silent,
            "admin/settings": silent,
            "work_pools/nodesweep/workers/filter": silent,
        }
    )
    assert (state, "unknown" in text, "worker" in text) == ("ok", True, False)


def test_several_problems_are_all_said(served: Served) -> None:
    state, text, remedy = served(
        **{
            "admin/version": "4.0.0",
            "work_pools/nodesweep/workers/filter": [],
            "flow_runs/filter": [cancelling("scaling-a", 300)],
        }
    )
    assert state == "missing"
    assert (text.count(";"), remedy.count("; ")) == (2, 3)


def test_without_a_server_the_home_of_the_runs_own_counts(tmp_path: Path) -> None:
    unset = {PREFECT_API_URL, PREFECT_SERVER_DATABASE_CONNECTION_URL}  # a test's server has both
    with temporary_settings({PREFECT_HOME: tmp_path / "home"}, restore_defaults=unset):
        state, text, _ = check_prefect_server()
        assert (state, str(tmp_path / "home") in text) == ("ok", True)
    (tmp_path / "file").touch()
    with temporary_settings({PREFECT_HOME: tmp_path / "file" / "home"}, restore_defaults=unset):
        state, text, remedy = check_prefect_server()
        assert (state, str(tmp_path / "file") in text) == ("missing", True)
        assert "PREFECT_HOME" in remedy


@pytest.mark.usefixtures("prefect")
def test_real_server_answers_every_question() -> None:
    """Of a test's server, which has no worker's pool and keeps its leases in memory."""
    state, text, _ = check_prefect_server()
    assert state == "warning", text
    assert "memory" in text
    with temporary_settings({PREFECT_API_AUTH_STRING: "a:b"}):
        assert check_prefect_server()[0] == "warning"
