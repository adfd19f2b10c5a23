"""One Prefect server per test run, or per two workers of pytest-xdist.

Prefect creates a flow run in a transaction that reads before it writes, which SQLite rejects if
anyone else has written in between; the server then returns 503, and the client retries six times, 2
to 32 s apart. With five workers on one server, a quarter of these requests failed, and in every
tenth run some test saw six failures in a row. The first process starts the server and stops it once
nobody uses it; all hold a shared lock on a file meanwhile, which the kernel releases however a
process ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import certifi
import prefect.context
from prefect import settings
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

_START_SECONDS = 600
_WORKERS_PER_SERVER = 2
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
    of CPU time, and a flow run makes many clients.
    """
    certificate = folder / "certificate.pem"
    if not certificate.exists():
        all_of_them = Path(certifi.where()).read_text(encoding="utf-8")
        first = all_of_them.index("-----BEGIN"), all_of_them.index(_END) + len(_END)
        certificate.write_text(all_of_them[slice(*first)], encoding="utf-8")
    return {
        settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        settings.PREFECT_API_SSL_CERT_FILE: str(certificate),
    }


def server_folder(own_folder: Path) -> Path:
    """Return the folder shared by the processes of one server.

    Args:
        own_folder: This process's folder for temporary files.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # "gw3"
    if worker is None:
        return own_folder
    folder = own_folder.parent / f"prefect-{int(worker.removeprefix('gw')) // _WORKERS_PER_SERVER}"
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
    # Imports the whole server, which processes that join don't need.
    from prefect.testing.utilities import prefect_test_harness

    with (
        settings.temporary_settings(
            dict.fromkeys(_UNUSED, False) | _client_settings(address.parent)
        ),
        prefect_test_harness(server_startup_timeout=_START_SECONDS),
    ):
        address.write_text(settings.PREFECT_API_URL.value())
        yield
        fcntl.flock(users, fcntl.LOCK_EX)  # waits for the last other user
        address.unlink()


@contextmanager
def _joined(address: Path) -> Iterator[None]:
    """Join a running server, as prefect_test_harness() does for one it has started."""
    with (
        settings.temporary_settings(
            {settings.PREFECT_API_URL: address.read_text()} | _client_settings(address.parent)
        ),
        prefect.context._temporary_global_settings_context(prefect.context.get_settings_context()),
    ):
        yield
        APILogWorker.instance().drain()
        EventsWorker.drain_all()
