"""Starts the server in the background, queries its status, and stops it."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagemaker_emulator.engine.host.scope import BUS_VARIABLES, scope_command
from sagemaker_emulator.environment import IMPORT_ROOT, server_environment
from sagemaker_emulator.process_identity import start_ticks
from sagemaker_emulator.progress import LONGEST_SECONDS, Progress
from sagemaker_emulator.server.contract import (
    JOBS_STOP_DEADLINE_SECONDS,
    SERVER_FILE,
    STATUS_PATH,
    ServerConfig,
    ServerStartError,
    make_state_dir,
    open_lock,
)
from sagemaker_emulator.server.owners import add_owner, is_abandoned, living_owners, remove_owner
from sagemaker_emulator.state.files import DamagedFile, read_json
from sagemaker_emulator.state.unsaved import lost

STOPPING_DEADLINE_SECONDS = 60.0
"""The time that a start waits for an earlier server that is shutting down."""
_STOP_DEADLINE_SECONDS = JOBS_STOP_DEADLINE_SECONDS + 35
_KILL_DEADLINE_SECONDS = 10.0
_POLL_SECONDS = 0.05
_STATUS_TIMEOUT_SECONDS = 30.0
_LOG_FILE = "server.log"


@dataclass(frozen=True)
class RunningServer:
    """A server as recorded in its state folder."""

    pid: int
    start_ticks: int
    endpoint: str

    def is_alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks

    def is_on(self, port: int | None) -> bool:
        """Return True if the server uses this port, where None and 0 mean any port."""
        return not port or self.endpoint.endswith(f":{port}")


def start(config: ServerConfig) -> str:
    """Start the server of a state folder if it is not running, and return its endpoint.

    Raises:
        ServerStartError: If the server does not start, or if it is already running on a different
            port or with different settings.
    """
    make_state_dir(config.state_dir)
    with _start_lock(config.state_dir):
        _wait_for_stopping_server(config, time.monotonic() + STOPPING_DEADLINE_SECONDS)
        found = find_server(config.state_dir)
        if found is not None:
            _refuse_other_settings(found, config)
            if not (found.is_on(config.port) or config.or_free_port):
                raise ServerStartError(
                    f"The platform of this state folder is already running at {found.endpoint},"
                    f" not on port {config.port}: stop it first, or choose a different --state-dir"
                )
            if config.owner_pid is not None and living_owners(config.state_dir):
                add_owner(config.state_dir, config.owner_pid)
            return found.endpoint
        process = _spawn(config)
        try:
            return _wait_until_ready(process, config)
        except BaseException:
            process.kill()
            process.wait()
            raise


def _wait_for_stopping_server(config: ServerConfig, deadline: float) -> None:
    while endpoint := _stopping_endpoint(config):
        if time.monotonic() >= deadline:
            raise ServerStartError(
                f"The platform at {endpoint} is still stopping its jobs (for up to"
                f" {JOBS_STOP_DEADLINE_SECONDS:g} s) or hangs: start again once it has ended, or"
                f" end it with `python -m sagemaker_emulator stop --state-dir {config.state_dir}`"
            )
        time.sleep(_POLL_SECONDS)


def _stopping_endpoint(config: ServerConfig) -> str | None:
    """Return the endpoint of a state folder's platform if it is shutting down, else None.

    If a start did not check this, it could return an endpoint that is about to close. Only the
    recorded endpoint is queried, since other programs on the port could block the start.
    """
    found = find_server(config.state_dir)
    if found is None:
        return None
    answer = read_status(found.endpoint)
    # No response means that the platform has closed its socket already.
    is_serving = answer is not None and answer.get("running")
    is_serving = is_serving and not is_abandoned(config.state_dir)
    return None if is_serving else found.endpoint


def _wait_until_ready(process: subprocess.Popen[bytes], config: ServerConfig) -> str:
    """Wait for the endpoint of the server while its process makes progress.

    Importing moto takes 1 s on an idle core. This takes longer on a busy machine, or if there are
    many objects to restore.
    """
    log, progress = config.state_dir / _LOG_FILE, Progress(process.pid)
    while (problem := progress.problem()) is None:
        found = find_server(config.state_dir)
        if found is not None and read_status(found.endpoint) is not None:
            return found.endpoint
        if process.poll() is not None:
            raise ServerStartError(_last_line(log, process.returncode))
        time.sleep(_POLL_SECONDS)
    raise ServerStartError(f"The server was stopped, since it was not ready {problem}: see {log}")


@contextmanager
def _start_lock(state_dir: Path) -> Iterator[None]:
    """Allow one start at a time per state folder, so that a second start finds a running server."""
    deadline = time.monotonic() + STOPPING_DEADLINE_SECONDS + LONGEST_SECONDS
    with open_lock(state_dir, "start.lock") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise ServerStartError(
                        f"Another start of the platform in {state_dir} is taking too long: see"
                        f" {state_dir / _LOG_FILE}"
                    ) from error
                time.sleep(_POLL_SECONDS)
        yield


def join(state_dir: Path, port: int | None, pid: int) -> bool:
    """Make a process an owner of the server on this port, which keeps the server running.

    If a server is shutting down, wait until it has ended.

    Returns:
        True if the process became an owner and must call `leave`. False if no server with owners is
        running, or if the process already is an owner.

    Raises:
        ServerStartError: If the wait takes too long.
    """
    with _start_lock(state_dir):
        deadline = time.monotonic() + STOPPING_DEADLINE_SECONDS
        _wait_for_stopping_server(ServerConfig(port or 0, state_dir), deadline)
        runs = status(state_dir, port)["running"]
        return bool(runs and living_owners(state_dir)) and add_owner(state_dir, pid)


def leave(state_dir: Path, port: int | None, pid: int) -> bool:
    """Remove an owner, and stop the server if none is left.

    Returns:
        False if an owner is left or no server is running.
    """
    with _start_lock(state_dir):
        remove_owner(state_dir, pid)
        is_last = not living_owners(state_dir)
    return is_last and stop(state_dir, port)


def stop(
    state_dir: Path, port: int | None = None, deadline_seconds: float = _STOP_DEADLINE_SECONDS
) -> bool:
    """Stop the server of a state folder and its jobs, and wait until it has ended.

    With `port`, only stop a server on this port.

    Returns:
        False if no server is running.
    """
    found = find_server(state_dir, port)
    if found is None:
        return False
    with suppress(ProcessLookupError):  # has just ended by itself
        os.kill(found.pid, signal.SIGTERM)
    if not _wait_for_end(found, deadline_seconds):
        with suppress(ProcessLookupError):
            # The nodes die with the server, and the next start marks their jobs as failed.
            os.kill(found.pid, signal.SIGKILL)
        _wait_for_end(found, _KILL_DEADLINE_SECONDS)
    return True


def status(state_dir: Path, port: int | None = None) -> dict[str, Any]:
    """Return the status of a state folder's server, or {"running": false, …}.

    With `port`, only consider a server on this port. `not_kept` lists the changes that are unsaved
    or, if no server is running, those that the last server did not save before it ended. `problem`
    is present if the server does not respond.
    """
    found = find_server(state_dir, port)
    if found is None:
        return {"running": False, "state_dir": str(state_dir), "not_kept": lost(state_dir)}
    return read_status(found.endpoint) or {
        "running": False,
        "state_dir": str(state_dir),
        "not_kept": [],  # unknown, since the server can still be saving
        "pid": found.pid,
        "endpoint": found.endpoint,
        "problem": f"process {found.pid} is alive but does not respond at {found.endpoint}",
    }


def find_server(state_dir: Path, port: int | None = None) -> RunningServer | None:
    """Return the server of a state folder if it is alive (and on `port`, if given), else None."""
    try:
        server = read_json(
            state_dir / SERVER_FILE, lambda record: RunningServer(**record), "remove it"
        )
    except DamagedFile:  # the next start replaces it, or finds the folder locked
        return None
    return server if server and server.is_alive() and server.is_on(port) else None


def read_status(endpoint: str) -> dict[str, Any] | None:
    """Return the response of GET /_nodesweep/status, or None if there is none in time."""
    responses: list[dict[str, Any] | None] = []
    # Use a thread because the timeout of a socket restarts with every byte, so a slow response
    # could be read forever.
    asking = threading.Thread(
        target=lambda: responses.append(_ask_status(endpoint)), name="status", daemon=True
    )
    asking.start()
    asking.join(_STATUS_TIMEOUT_SECONDS)
    return responses[0] if responses else None


def _ask_status(endpoint: str) -> dict[str, Any] | None:
    # Do not use a proxy for loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            answer = opener.open(endpoint + STATUS_PATH, timeout=_STATUS_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:  # 503: the platform is shutting down
            return dict(json.load(answer)) if answer.status in (200, 503) else None
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        # Nothing responds, or a different program does.
        return None


def _refuse_other_settings(found: RunningServer, config: ServerConfig) -> None:
    """Refuse settings that differ from those of the running server, instead of ignoring them."""
    answer = {"engine": "process", **(read_status(found.endpoint) or {})}
    for name, value in config.described().items():
        if value and answer.get(name) != value:
            raise ServerStartError(
                f"The platform of this state folder is already running at {found.endpoint} with"
                f" {name} {answer.get(name)}, not the requested {value}: stop it first, or choose"
                " a different --state-dir"
            )


def _spawn(config: ServerConfig) -> subprocess.Popen[bytes]:
    environment = server_environment(os.environ)
    bus = {name: os.environ[name] for name in BUS_VARIABLES if name in os.environ}
    scope = scope_command(environment | bus)
    command = [*scope, sys.executable, "-P", "-m", "sagemaker_emulator", "serve"]
    command += ["--settings", config.to_json()]
    python_path = os.pathsep.join(filter(None, [IMPORT_ROOT, os.environ.get("PYTHONPATH")]))
    with (config.state_dir / _LOG_FILE).open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment | (bus if scope else {}) | {"PYTHONPATH": python_path},
        )


def _wait_for_end(server: RunningServer, deadline_seconds: float) -> bool:
    deadline = time.monotonic() + deadline_seconds
    while server.is_alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _last_line(log: Path, exit_code: int) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"The server ended with exit code {exit_code} and no message"
