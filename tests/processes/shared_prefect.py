"""One Prefect server per test run, which all workers of pytest-xdist share.

The first process starts the server and stops it once nobody uses it; all hold a shared lock on a
file meanwhile, which the kernel releases however a process ends.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TextIO

import certifi
import prefect.context
from prefect import settings
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

from benchmarks.ports import free_port
from infra.local.tests.platform_client import wait_until
from tests.processes import quiet_prefect
from tests.processes.prefect_home import keep_tables, with_tables

_HOST = "127.0.0.1"
_START_SECONDS, _STOP_SECONDS = 600, 5
_UNUSED = (
    settings.PREFECT_SERVER_ANALYTICS_ENABLED,
    settings.PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED,
    settings.PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED,
    settings.PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED,
    settings.PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED,
    settings.PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED,
)
"""Features no test needs: stored events, triggers, and schedules."""
_END = "-----END CERTIFICATE-----\n"


def _client_settings(folder: Path) -> dict[Any, Any]:
    """Return settings of Prefect's clients that save time.

    Without heartbeats, a flow run's end does not wait for their thread, which sleeps for a second.
    Each client loads its certificates, although the server has no TLS: all of certifi's take 20 ms
    of CPU time, and a flow run makes many clients, each of which would ask for a CSRF token.
    """
    certificate = folder / "certificate.pem"
    if not certificate.exists():
        all_of_them = Path(certifi.where()).read_text(encoding="utf-8")
        first = all_of_them.index("-----BEGIN"), all_of_them.index(_END) + len(_END)
        certificate.write_text(all_of_them[slice(*first)], encoding="utf-8")
    return {
        settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        settings.PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False,
        settings.PREFECT_API_SSL_CERT_FILE: str(certificate),
    }


def server_folder(own_folder: Path) -> Path:
    """Return the folder shared by the processes of the test run.

    Args:
        own_folder: This process's folder for temporary files.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return own_folder
    folder = own_folder.parent / "prefect"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def shared_prefect(folder: Path) -> Iterator[None]:
    """Point Prefect's API at the one server of the processes that use this folder."""
    address = folder / "prefect-api-url"
    with (folder / "prefect-users.lock").open("w") as users, ExitStack() as stack:
        with (folder / "prefect-start.lock").open("w") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)  # waits for a stopping server to end
            is_there = address.exists()
            stack.enter_context(_joined(address) if is_there else _started(address, users))
        yield


@contextmanager
def _started(address: Path, users: TextIO) -> Iterator[None]:
    home, port = with_tables(address.parent / "prefect"), free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
        **{str(setting.name): "false" for setting in _UNUSED},
        "PREFECT_HOME": str(home),
    }
    command = [sys.executable, "-P", quiet_prefect.__file__, str(port)]
    server = subprocess.Popen(command, env=environment)
    try:
        wait_until(lambda: _answers(server, port), _START_SECONDS)
        keep_tables(home)
        address.write_text(f"http://{_HOST}:{port}/api")
        with _joined(address):
            yield
        fcntl.flock(users, fcntl.LOCK_EX)  # waits for the last other user
        address.unlink()
    finally:
        server.terminate()
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    assert server.poll() is None, f"Prefect's server ended with exit code {server.returncode}"
    with closing(http.client.HTTPConnection(_HOST, port, timeout=_START_SECONDS)) as connection:
        try:
            connection.request("GET", "/api/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):  # it does not listen yet
            return False


@contextmanager
def _joined(address: Path) -> Iterator[None]:
    """Join a running server, as prefect_test_harness() does, which would import all of a server."""
    with (
        settings.temporary_settings(
            {settings.PREFECT_API_URL: address.read_text()} | _client_settings(address.parent)
        ),
        prefect.context._temporary_global_settings_context(prefect.context.get_settings_context()),
    ):
        yield
        APILogWorker.instance().drain()
        EventsWorker.drain_all()
