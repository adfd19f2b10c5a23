"""One Prefect server for the tests of a run, or for those of two workers where pytest-xdist spreads
them over processes.

A flow run is created in a transaction that reads before it writes, which SQLite refuses if anybody
else has written in between; Prefect answers 503, and its client asks six times, 2 to 32 s apart. Of
five workers on one server a quarter of these requests failed, and some test in every tenth run met
six in a row.

The process that asks first starts the server and stops it once nobody uses it any more. Everybody
holds a shared lock on one file meanwhile, which the kernel drops with a process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import prefect.context
from prefect import settings
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

_START_SECONDS = 120
_WORKERS_PER_SERVER = 2
_UNUSED = (
    settings.PREFECT_SERVER_ANALYTICS_ENABLED,
    settings.PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED,
    settings.PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED,
    settings.PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED,
    settings.PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED,
    settings.PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED,
)
"""What no test asks of it: events that are kept or acted on, and what runs by schedules."""
_WITHOUT_HEARTBEATS = {settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
"""A flow run would wait at its end for the thread of its heartbeats, which sleeps for a second."""


def server_folder(own_folder: Path) -> Path:
    """The folder that the processes of one server share, given the process's own folder for
    temporary files.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # "gw3"
    if worker is None:
        return own_folder
    folder = own_folder.parent / f"prefect-{int(worker.removeprefix('gw')) // _WORKERS_PER_SERVER}"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def shared_prefect(folder: Path) -> Iterator[None]:
    """Inside, Prefect's API is the one server of the processes that name this folder."""
    address = folder / "prefect-api-url"
    with (folder / "prefect-users.lock").open("w") as users, ExitStack() as stack:
        with (folder / "prefect-start.lock").open("w") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)  # not before a server that is stopping has gone
            is_there = address.exists()
            stack.enter_context(_joined(address) if is_there else _started(address, users))
        yield


@contextmanager
def _started(address: Path, users: TextIO) -> Iterator[None]:
    # imports all of the server, which those that join do without
    from prefect.testing.utilities import prefect_test_harness

    with (
        settings.temporary_settings(dict.fromkeys(_UNUSED, False) | _WITHOUT_HEARTBEATS),
        prefect_test_harness(server_startup_timeout=_START_SECONDS),
    ):
        address.write_text(settings.PREFECT_API_URL.value())
        yield
        fcntl.flock(users, fcntl.LOCK_EX)  # until the last of the others has ended, too
        address.unlink()


@contextmanager
def _joined(address: Path) -> Iterator[None]:
    """As prefect_test_harness() does it for a server that it has started."""
    with (
        settings.temporary_settings(
            {settings.PREFECT_API_URL: address.read_text()} | _WITHOUT_HEARTBEATS
        ),
        prefect.context._temporary_global_settings_context(prefect.context.get_settings_context()),
    ):
        yield
        APILogWorker.instance().drain()
        EventsWorker.drain_all()
