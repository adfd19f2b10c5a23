"""Prefect server, work pool, worker, local platform, and deployments on one machine.

python -m nodesweep.infra.worker up      # make up
python -m nodesweep.infra.worker down    # make down
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodesweep.aws.local_status import read_status, served_endpoint, why_unsafe
from nodesweep.cli.processes import LONGEST_SECONDS, Progress, start_ticks
from nodesweep.configs.atomic import write_atomic
from nodesweep.infra.worker.deployments import (
    POOL,
    REPOSITORY,
    DeployError,
    deploy,
    wait_for_server,
)
from nodesweep.infra.worker.ports import is_taken, listens
from nodesweep.infra.worker.server import CLIENT_AUTH, SERVER_AUTH, SecretError, check_password

HOST = "127.0.0.1"
ALLOWED = tuple(f"NODESWEEP_ALLOWED_{name}" for name in ("PATHS", "ENDPOINTS", "ENVIRONMENT"))
_LOWEST_PID = 2
"""Signals to 0 and -1 reach many processes, and 1 is init."""
_FREED_SECONDS = 5.0
_STOP_SECONDS = 45.0  # more than the 30 s that a worker gives an active flow
_PLATFORM_STOP_SECONDS = 200.0
_PLATFORM_START_SECONDS = 2 * LONGEST_SECONDS + 180.0
"""Long, because a start may first wait for a concurrent one; it aborts if it makes no progress."""


class MachineError(Exception):
    """A component did not start; the message names it and its log."""


@dataclass(frozen=True)
class Machine:
    """One machine's configuration: state folder, ports, and database.

    The worker runs without Prefect's health server, which accepts any Host header and serves
    pages itself. If `database_url` is None, Prefect uses its default, a SQLite database in its home
    folder. `platform_options` holds further options of `nodesweep local start`, e.g. ("--engine",
    "simulated").
    """

    folder: Path
    port: int = 4200
    platform_port: int = 4570
    database_url: str | None = None
    platform_options: tuple[str, ...] = ()

    @property
    def api_url(self) -> str:
        """URL of the Prefect server's API."""
        return f"http://{HOST}:{self.port}/api"

    @property
    def platform_folder(self) -> Path:
        """State folder of the platform, which holds the platform's key."""
        return self.folder / "platform"

    @property
    def auth_file(self) -> Path:
        """File with the Prefect server's user:password, mode 600; `up` creates it."""
        return self.folder / "prefect-auth"

    @property
    def password(self) -> str:
        """Content of `auth_file`.

        Raises:
            MachineError: Others can read the file, or the server can't use the password.
        """
        remedy = (
            "stop everything with `make down` and remove the file: `make up` creates a new password"
        )
        try:
            with self.auth_file.open() as file:
                if problem := why_unsafe(os.fstat(file.fileno()), remedy):
                    raise MachineError(f"{self.auth_file} is not used: {problem}")
                text = file.read().strip()
            check_password(str(self.auth_file), text)
        except SecretError as error:
            raise MachineError(str(error)) from None
        except UnicodeDecodeError:
            raise MachineError(f"{self.auth_file} is not UTF-8: {remedy}") from None
        return text

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every process: own Prefect home, no telemetry, no proxy for loopback."""
        own = {
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_URL": self.api_url,
            CLIENT_AUTH: self.password,
            # The UI calls its API at this URL, and the server rejects other host names; behind a
            # proxy the caller sets it.
            "PREFECT_UI_API_URL": os.environ.get("PREFECT_UI_API_URL") or self.api_url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_EXTRA_LOGGERS": "nodesweep",
            "PREFECT_WORKER_QUERY_SECONDS": "3",
            "PREFECT_CLI_PROMPT": "false",
            "DO_NOT_TRACK": "1",
            "NODESWEEP_HOME": str(REPOSITORY),
            # overrides the platform in a deployment's config
            "NODESWEEP_LOCAL_ENDPOINT_URL": f"http://{HOST}:{self.platform_port}",
            "NODESWEEP_LOCAL_STATE_DIRECTORY": str(self.platform_folder),
            # empty unless the caller sets them: paths, endpoints, and variables that a run's config
            # may name (configs/allowed.py)
            **{name: os.environ.get(name, "") for name in ALLOWED},
            **_direct_hosts(os.environ),
        }
        if self.database_url is not None:
            own["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = self.database_url
        return {**os.environ, **own}


def up(machine: Machine) -> None:
    """Start each component that is not running yet, in order; a repeated call changes nothing.

    Raises:
        MachineError: A component did not come up; the message also lists what is running.
    """
    _refuse_other_port(machine)
    try:
        _start_all(machine)
    except MachineError as error:
        running = [name for name, runs in status(machine).items() if runs]
        if _platform_runs(machine):
            running.append("local platform")
        if not running:
            raise
        ports = f"PORT={machine.port} PLATFORM_PORT={machine.platform_port}"
        raise MachineError(
            f"{error}\nStill running: {', '.join(running)}. `make up {ports}` again starts what is"
            " missing; `make down` stops everything"
        ) from error


def _start_all(machine: Machine) -> None:
    try:
        machine.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{machine.folder} can't be created: {error.strerror}") from None
    if not machine.auth_file.exists():
        for name in ("worker", "server"):  # started by a version without a password
            _stop(machine, name)
        # creates the file with mode 600
        write_atomic(machine.auth_file, f"nodesweep:{secrets.token_urlsafe(32)}\n".encode())
    password = machine.password  # raises before anything is started
    _refuse_taken_port(machine)
    _platform(machine, "start", _PLATFORM_START_SECONDS)
    server = ("nodesweep.infra.worker", "server", "--host", HOST, "--port", str(machine.port))
    _start(machine, "server", server, {**machine.environment, SERVER_AUTH: password})
    _deploy(machine)
    worker = (
        "prefect",
        "worker",
        "start",
        "--pool",
        POOL,
        "--name",
        "machine",
    )
    _start(machine, "worker", worker, _without_database(machine.environment))


def down(machine: Machine) -> None:
    """Stop all components, the worker first; an active run gets 30 s to end.

    Raises:
        MachineError: Another user started them, or the local platform did not stop.
    """
    for name in ("worker", "server"):
        _stop(machine, name)
    _platform(machine, "stop", _PLATFORM_STOP_SECONDS)


def status(machine: Machine) -> dict[str, bool]:
    """Map `server` and `worker` to True if they are running."""
    return {name: _pid(machine, name) is not None for name in ("server", "worker")}


def _refuse_other_port(machine: Machine) -> None:
    """Raise MachineError if the machine's server or worker runs with another port of the server.

    Otherwise, the start would wait for a port on which nothing listens, or leave a worker that
    polls no server.
    """
    for name in ("server", "worker"):
        record = _record(machine, name)
        port = record.get("port", machine.port)  # not recorded by earlier versions
        if port != machine.port and _pid(machine, name) is not None:
            raise MachineError(
                f"the {name} of {machine.folder} uses port {port}; nothing was started. Run `make"
                f" down` first, or keep the port: make up PORT={port}"
            )


def _refuse_taken_port(machine: Machine) -> None:
    """Raise MachineError if another program holds the server's port.

    The server would take seconds to find out, while the other program responds to its clients. A
    server killed a moment ago may hold the port until its last thread ends.
    """
    if _pid(machine, "server") is not None:
        return
    may_be_freed = _started(machine, "server") is not None
    deadline = time.monotonic() + (_FREED_SECONDS if may_be_freed else 0.0)
    try:
        while (taken := is_taken(HOST, machine.port)) and time.monotonic() < deadline:
            time.sleep(0.1)
    except OSError as error:
        raise MachineError(
            f"port {machine.port} is not available ({error.strerror}); choose another port: make"
            " up PORT=4300"
        ) from None
    if taken:
        raise MachineError(
            f"port {machine.port} is in use by another program; nothing was started. Stop that"
            f" program, or choose another port: make up PORT={machine.port + 100}"
        )


def _start(
    machine: Machine, name: str, arguments: tuple[str, ...], environment: Mapping[str, str]
) -> None:
    if _pid(machine, name) is not None:
        return
    command = [sys.executable, "-m", *arguments]
    with open(machine.folder / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=dict(environment), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    ticks = start_ticks(process.pid)
    record = {"pid": process.pid, "start_ticks": ticks, "port": machine.port}
    write_atomic(machine.folder / f"{name}.json", json.dumps(record).encode())


def _direct_hosts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return NO_PROXY and no_proxy with HOST added; clients that know both prefer lower case."""
    upper, lower = environment.get("NO_PROXY"), environment.get("no_proxy")
    hosts_by_name = {"NO_PROXY": upper or lower, "no_proxy": lower or upper}
    return {name: ",".join(filter(None, (hosts, HOST))) for name, hosts in hosts_by_name.items()}


def _without_database(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop the database URL, which holds a password that only the server needs."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("PREFECT_SERVER_DATABASE")
    }


def _deploy(machine: Machine) -> None:
    try:
        pid = _pid(machine, "server")
        problem = None if pid is None else Progress(pid).problem
        wait_for_server(machine.api_url, lambda: _pid(machine, "server") is not None, problem)
        pid = _pid(machine, "server")
        if pid is None or not listens(pid, machine.port):
            raise DeployError(
                f"another program responds at {machine.api_url}; nothing was sent to it. The server"
                f" of {machine.folder} {'has ended' if pid is None else 'is on another port'}: run"
                " `make down`, then `make up PORT=…` with a free port"
            )
        deploy(machine.environment, pid, machine.folder / "schedules.json")
    except DeployError as error:
        raise MachineError(f"{error}\nThe server's log: {machine.folder / 'server.log'}") from None


def _platform(machine: Machine, verb: str, seconds: float) -> None:
    command = [sys.executable, "-m", "sagemaker_emulator", verb]
    command += ["--state-dir", str(machine.platform_folder)]
    if verb == "start":
        command += ["--port", str(machine.platform_port), *machine.platform_options]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=_without_database(os.environ), capture_output=True,
            text=True, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MachineError(f"the local platform did not {verb} within {seconds:.0f} s") from None
    if done.returncode != 0:
        raise MachineError(
            f"`{verb}` of the local platform ended with exit code {done.returncode}:"
            f" {done.stderr.strip()}"
        )


def _platform_runs(machine: Machine) -> bool:
    endpoint = served_endpoint(machine.platform_folder)
    try:
        return endpoint is not None and bool(read_status(endpoint, 2.0).get("running"))
    except (OSError, ValueError):  # nothing responds, or another program does
        return False


def _pid(machine: Machine, name: str) -> int | None:
    """Return the PID of the named process, or None if it is not running."""
    started = _started(machine, name)
    return started[0] if started is not None and _is_ours(*started) else None


def _started(machine: Machine, name: str) -> tuple[int, int] | None:
    """Return the PID and start ticks last recorded by `_start`, running or not, or None."""
    record = _record(machine, name)
    try:
        return int(record["pid"]), int(record["start_ticks"])
    except (ValueError, KeyError, TypeError):
        return None


def _record(machine: Machine, name: str) -> Mapping[str, Any]:
    """Return what `_start` last recorded about the named process; empty if nothing is readable.

    Raises:
        MachineError: Another user started it.
    """
    file = machine.folder / f"{name}.json"
    try:
        record = json.loads(file.read_text())
    except PermissionError:
        place = file if os.access(file.parent, os.X_OK, effective_ids=True) else file.parent
        raise MachineError(
            f"{place} belongs to user {place.stat().st_uid}, not to you. Run the command as that"
            f" user; or run `make down` and remove {machine.folder} as that user"
        ) from None
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_ours(pid: int, began: int) -> bool:
    """Return True if the process is alive and `_start` started it.

    The kernel may have reused the PID since. Processes that nodesweep started lead their own
    session.
    """
    if pid < _LOWEST_PID or start_ticks(pid) != began:
        return False
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _stop(machine: Machine, name: str) -> None:
    """Send SIGTERM, then SIGKILL to the group after the grace period; ignore foreign processes."""
    started = _started(machine, name)
    if started is None or not _is_ours(*started):
        return
    pid, _ = started
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while _is_ours(*started) and time.monotonic() < deadline:
        time.sleep(0.2)
    if _is_ours(*started):
        os.killpg(pid, signal.SIGKILL)
    (machine.folder / f"{name}.json").unlink(missing_ok=True)
