"""A server that keeps its leases in memory is reported, but only to users whose run depends on a
lease."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from nodesweep.flows.stages import leases
from nodesweep.flows.stages.leases import warn_of_leases_in_memory
from nodesweep.infra.worker.server import LEASE_STORAGE, LEASES_IN_FILES

MEMORY = "prefect.server.concurrency.lease_storage.memory"
IN_MEMORY = json.dumps({"server": {"concurrency": {"lease_storage": MEMORY}}})
IN_FILES = IN_MEMORY.replace(MEMORY, LEASES_IN_FILES)


@pytest.fixture
def answer() -> Iterator[dict[str, str]]:
    """Serve a response about the server's settings; without one, the server does not know the
    path."""
    said: dict[str, str] = {}

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = said.get("settings", "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing about requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/api"
        try:
            with temporary_settings({PREFECT_API_URL: url}):
                yield said
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("holds_place", "limit", "words"),
    [
        (True, None, ["its deployment"]),
        (False, "gpus", ["limit gpus"]),
        (True, "gpus", ["its deployment", "limit gpus"]),
    ],
)
def test_leases_in_memory_are_a_warning_with_the_remedy(
    answer: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    holds_place: bool,
    limit: str | None,
    words: list[str],
) -> None:
    answer["settings"] = IN_MEMORY
    monkeypatch.setattr(leases, "_holds_place_of_deployment", lambda: holds_place)
    warn_of_leases_in_memory(limit)
    [record] = [one for one in caplog.records if one.name == "nodesweep.flow"]
    said = ["its deployment", "limit gpus"]
    assert [each for each in said if each in record.getMessage()] == words
    assert f"{LEASE_STORAGE}={LEASES_IN_FILES}" in record.getMessage()


@pytest.mark.parametrize("settings", [IN_FILES, "", "<html>", "{}", "[]"])
def test_a_server_that_keeps_them_elsewhere_or_does_not_say_is_no_warning(
    answer: dict[str, str], caplog: pytest.LogCaptureFixture, settings: str
) -> None:
    answer["settings"] = settings
    warn_of_leases_in_memory("gpus")
    assert caplog.records == []


def test_a_run_without_leases_asks_nobody(
    answer: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    answer["settings"] = IN_MEMORY
    warn_of_leases_in_memory(None)
    assert caplog.records == []


def test_the_installed_prefect_answers_the_question(prefect: None) -> None:
    """The shared server of the tests has Prefect's defaults."""
    assert leases._lease_storage() == MEMORY
