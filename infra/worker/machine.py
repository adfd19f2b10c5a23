"""Everything that runs the deployments, on one machine: Prefect server, work pool with a worker,
platform, deployments.

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

from nodesweep.infra.local.process_identity import start_ticks
from nodesweep.infra.local.progress import LONGEST_SECONDS, Progress
from nodesweep.infra.local.server.daemon import find_server
from nodesweep.infra.local.state.files import (
    UnsafeFile,
    read_secret_file,
    write_atomically,
    write_json,
)
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
"""To a signal 0 and -1 mean many processes, and 1 is the one that all others end with."""
_FREED_SECONDS = 5.0
_STOP_SECONDS = 45.0  # a worker gives a running flow 30 s to end
_PLATFORM_STOP_SECONDS = 200.0
_PLATFORM_START_SECONDS = 2 * LONGEST_SECONDS + 180.0
"""A start ends by itself once it gets nowhere; with another one that it waits for."""


class MachineError(Exception):
    """Something did not come up; the message names it and where its log is."""


@dataclass(frozen=True)
class Machine:
    """Where it all lies: state in `folder`, the server on `port`, the platform. The worker
    has no health server: Prefect's takes any Host and serves pages of its own.

    `platform_options` are further options of `nodesweep local start`, e.g. ("--engine",
    "simulated").
    """

    folder: Path
    port: int = 4200
    platform_port: int = 4570
    database_url: str | None = None
    platform_options: tuple[str, ...] = ()

    @property
    def api_url(self) -> str:
        return f"http://{HOST}:{self.port}/api"

    @property
    def platform_folder(self) -> Path:
        """State folder of the platform, with its key."""
        return self.folder / "platform"

    @property
    def auth_file(self) -> Path:
        """user:password of the Prefect server, readable by its owner alone; `up` makes it."""
        return self.folder / "prefect-auth"

    @property
    def password(self) -> str:
        """The line in it. Raises MachineError where others may know it, or it can't be used."""
        remedy = (
            "Stop everything with `make down` and remove the file: `make up` creates a new password"
        )
        try:
            text = read_secret_file(self.auth_file, remedy).strip()
            check_password(str(self.auth_file), text)
        except (UnsafeFile, SecretError, ValueError) as error:
            raise MachineError(str(error)) from None
        return text

    @property
    def environment(self) -> dict[str, str]:
        """Of every process here: own home, own server, no telemetry, no proxy for local calls."""
        own = {
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_URL": self.api_url,
            CLIENT_AUTH: self.password,
            # Under another host name the UI can't reach its API; that of a proxy in front is the
            # caller's to name.
            "PREFECT_UI_API_URL": os.environ.get("PREFECT_UI_API_URL") or self.api_url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_EXTRA_LOGGERS": "nodesweep",
            "PREFECT_WORKER_QUERY_SECONDS": "3",
            "PREFECT_CLI_PROMPT": "false",
            "DO_NOT_TRACK": "1",
            "NODESWEEP_HOME": str(REPOSITORY),
            # where the deployments find the platform, whatever their config names
            "NODESWEEP_LOCAL_ENDPOINT_URL": f"http://{HOST}:{self.platform_port}",
            "NODESWEEP_LOCAL_STATE_DIRECTORY": str(self.platform_folder),
            # what a run's config may name beyond what nodesweep brings: nothing, unless the caller
            # says so (configs/allowed.py)
            **{name: os.environ.get(name, "") for name in ALLOWED},
            "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), HOST))),
        }
        if self.database_url is not None:
            own["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = self.database_url
        return {**os.environ, **own}


def up(machine: Machine) -> None:
    """Start what does not run yet, in order; a second call changes nothing.
    Raises MachineError, which also says what runs now.
    """
    try:
        _start_all(machine)
    except MachineError as error:
        running = [name for name, runs in status(machine).items() if runs]
        if find_server(machine.platform_folder) is not None:
            running.append("local platform")
        if not running:
            raise
        ports = f"PORT={machine.port} PLATFORM_PORT={machine.platform_port}"
        raise MachineError(
            f"{error}\nStill running: {', '.join(running)}. `make up {ports}` again starts what is"
            " missing; `make down` stops everything"
        ) from error


def _start_all(machine: Machine) -> None:
    machine.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not machine.auth_file.exists():
        for name in ("worker", "server"):  # of a version without a password
            _stop(machine, name)
        # mode 600
        write_atomically(machine.auth_file, f"nodesweep:{secrets.token_urlsafe(32)}\n".encode())
    password = machine.password  # before anything is started
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
    """End what runs, worker first; a run that is under way is given its 30 s."""
    for name in ("worker", "server"):
        _stop(machine, name)
    _platform(machine, "stop", _PLATFORM_STOP_SECONDS)


def status(machine: Machine) -> dict[str, bool]:
    """Which of the processes run."""
    return {name: _pid(machine, name) is not None for name in ("server", "worker")}


def _refuse_taken_port(machine: Machine) -> None:
    """Our server takes seconds before it finds out, and meanwhile the other program answers.

    A server of ours that was killed a moment ago may hold the port until its last thread has ended.
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
            f"port {machine.port} is not available ({error.strerror}); choose another: make up"
            " PORT=4300"
        ) from None
    if taken:
        raise MachineError(
            f"port {machine.port} is in use by another program; nothing was started. End it, or"
            f" choose another port: make up PORT={machine.port + 100}"
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
    write_json(
        machine.folder / f"{name}.json",
        {"pid": process.pid, "start_ticks": start_ticks(process.pid)},
    )


def _without_database(environment: Mapping[str, str]) -> dict[str, str]:
    """The database is the server's alone, and its URL holds a password."""
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
                f"another program responds at {machine.api_url}, and nothing was sent to it; the"
                " server of"
                f" {machine.folder} {'has ended' if pid is None else 'is on another port'}."
                " make down stops it, make up PORT=… starts it on another port"
            )
        deploy(machine.environment, pid)
    except DeployError as error:
        raise MachineError(f"{error}\nThe server's log: {machine.folder / 'server.log'}") from None


def _platform(machine: Machine, verb: str, seconds: float) -> None:
    command = [sys.executable, "-m", "nodesweep.infra.local", verb]
    command += ["--state-dir", str(machine.platform_folder)]
    if verb == "start":
        command += ["--port", str(machine.platform_port), *machine.platform_options]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=_without_database(os.environ), capture_output=True,
            text=True, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"the local platform did not respond to {verb} within {seconds:.0f} s"
        ) from None
    if done.returncode != 0:
        raise MachineError(f"the local platform, {verb}: {done.stderr.strip()}")


def _pid(machine: Machine, name: str) -> int | None:
    """The process of that name, if it still runs."""
    started = _started(machine, name)
    return started[0] if started is not None and _is_ours(*started) else None


def _started(machine: Machine, name: str) -> tuple[int, int] | None:
    """Number and start time of the process that `_start` started last, whether it still runs or
    not; None where it started none.
    """
    try:
        record = json.loads((machine.folder / f"{name}.json").read_text())
        return int(record["pid"]), int(record["start_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_ours(pid: int, began: int) -> bool:
    """Whether that is a live process that `_start` started: its number may have been given to
    another since, and ours leads a session of its own.
    """
    if pid < _LOWEST_PID or start_ticks(pid) != began:
        return False
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _stop(machine: Machine, name: str) -> None:
    """SIGTERM, and SIGKILL to the whole group after the grace; nothing to a process that is not
    ours.
    """
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
