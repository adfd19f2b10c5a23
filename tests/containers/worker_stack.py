"""compose.yaml as it stands, by podman-compose, and a local platform on this machine within its
worker's reach.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodesweep.infra.local.engine.container.cli import ContainerCli, ContainerCommandError
from nodesweep.infra.local.engine.host.relay import Relay
from nodesweep.infra.worker.machine import Machine
from tests.containers.worker_images import POSTGRES_IMAGE, ROOT, WORKER_IMAGE
from tests.production.world import World, free_port, wait_for

COMPOSE_FILE = ROOT / "infra" / "worker" / "compose.yaml"
PASSWORD = "not-a-secret-8f2c"
API_PASSWORD = "not-a-secret-5d1b"
SERVICES = ("postgres", "server", "deploy", "worker")
_COMPOSE_SECONDS = 200.0
_HEALTHY_SECONDS = 240.0


@dataclass(frozen=True)
class Stack:
    """The containers of one project; `folder` has its secrets."""

    cli: ContainerCli
    folder: Path
    project: str
    port: int
    platform_port: int

    def up(self, *services: str) -> None:
        """Start them one after the other, each when what it depends on is as its condition asks.

        podman carries out health checks by timers of systemd, which a container or a small virtual
        machine has not, and podman-compose honours conditions from podman 4.6 on: both are done
        here.
        """
        for service in services:
            self.compose("up", "--detach", "--no-build", "--no-deps", service)
            if service == "deploy":
                waited = self.cli.call(
                    "wait", self.container(service), timeout_seconds=_HEALTHY_SECONDS
                )
                assert waited.split() == ["0"], self.log_of(service)
            else:
                self.wait_until_healthy(service)

    def compose(self, *arguments: str) -> None:
        command = [
            sys.executable,
            "-m",
            "podman_compose",
            "--project-name",
            self.project,
            "--file",
            str(COMPOSE_FILE),
        ]
        settings = {
            "NODESWEEP_WORKER_IMAGE": WORKER_IMAGE,
            "NODESWEEP_POSTGRES_IMAGE": POSTGRES_IMAGE,
            "NODESWEEP_SECRETS": str(self.folder / "secrets"),
            "NODESWEEP_PORT": str(self.port),
            "NODESWEEP_ALLOWED_PATHS": str(self.folder / "platform"),
            "NODESWEEP_ALLOWED_ENDPOINTS": f"http://127.0.0.1:{self.platform_port}",
        }
        done = subprocess.run(
            [*command, *arguments],
            env=self.cli.environment | settings,
            capture_output=True,
            text=True,
            timeout=_COMPOSE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (
            f"podman-compose {' '.join(arguments)}: {done.stdout}{done.stderr}"
        )

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def wait_until_healthy(self, service: str) -> None:
        try:
            wait_for(
                f"health of {service}", lambda: self._check_says_healthy(service), _HEALTHY_SECONDS
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log_of(service)}") from None

    def _check_says_healthy(self, service: str) -> bool:
        """Carries out the container's own check once; its verdict is what `inspect` then shows."""
        with suppress(ContainerCommandError):
            self.cli.call("healthcheck", "run", self.container(service))
        return bool(self.inspect(service)["State"]["Health"]["Status"] == "healthy")

    def inspect(self, service: str) -> Any:
        return json.loads(self.cli.call("inspect", self.container(service)))[0]

    def inside(self, service: str, *command: str) -> str:
        """Output of a command in the container. Raises ContainerCommandError."""
        return self.cli.call("exec", self.container(service), *command).strip()

    def sql(self, query: str) -> str:
        """The answer of the Postgres in the container, over its local socket."""
        return self.inside(
            "postgres", "psql", "--username=prefect", "--dbname=prefect", "-Atc", query
        )

    def log_of(self, service: str) -> str:
        return self.cli.call("logs", "--tail", "60", self.container(service))


@contextmanager
def running_stack(cli: ContainerCli, folder: Path, project: str) -> Iterator[Stack]:
    """All services, healthy; nothing of them is left afterwards."""
    secrets = folder / "secrets"
    secrets.mkdir(mode=0o700)
    (secrets / "postgres_password").write_text(PASSWORD)
    (secrets / "prefect_auth").write_text(f"nodesweep:{API_PASSWORD}")
    for file in secrets.iterdir():
        file.chmod(0o444)
    stack = Stack(cli, folder, project, free_port(), free_port())
    try:
        stack.up(*SERVICES)
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5")


@contextmanager
def platform(stack: Stack, model: dict[str, float]) -> Iterator[World]:
    """A simulated platform on this machine's loopback, which the stack's worker may call."""
    folder = stack.folder
    machine = Machine(folder, stack.port, stack.platform_port)
    machine.auth_file.write_text(f"nodesweep:{API_PASSWORD}")
    machine.auth_file.chmod(0o600)
    (folder / "model.json").write_text(json.dumps(model))
    state = ("--port", str(machine.platform_port), "--state-dir", str(folder / "platform"))
    options = ("--engine", "simulated", "--time-scale", "1", "--model", str(folder / "model.json"))
    _platform("start", *state, *options)
    try:
        yield World(machine)
    finally:
        _platform("stop", *state)


def _platform(*arguments: str) -> None:
    command = [sys.executable, "-m", "nodesweep.infra.local", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def within_reach(stack: Stack, port: int) -> Iterator[None]:
    """The worker's container, as it runs now, finds the platform on its own loopback; it answers
    nowhere else.
    """
    # a worker of the same machine would read it where it lies
    keys = stack.folder / "platform" / "aws-credentials"
    write = (
        f"umask 077 && mkdir -p {keys.parent} && printf %s {shlex.quote(keys.read_text())} > {keys}"
    )
    stack.inside("worker", "sh", "-c", write)
    pid = stack.inspect("worker")["State"]["Pid"]
    relay = Relay(Path(f"/proc/{pid}/ns/net"), port)
    try:
        yield
    finally:
        relay.close()
