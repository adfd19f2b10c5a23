"""The unmodified compose.yaml under podman-compose, with a local platform its worker can reach."""

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

from benchmarks.ports import free_port
from nodesweep.infra.worker.machine import Machine
from sagemaker_emulator.engine.container.cli import ContainerCli, ContainerCommandError
from sagemaker_emulator.engine.host.relay import Relay
from tests.containers.worker_images import POSTGRES_IMAGE, ROOT, WORKER_IMAGE
from tests.production.world import World, wait_for

COMPOSE_FILE = ROOT / "infra" / "worker" / "compose.yaml"
PASSWORD = "not-a-secret-8f2c"
API_PASSWORD = "not-a-secret-5d1b"
SERVICES = ("postgres", "server", "deploy", "worker")
_COMPOSE_SECONDS = 200.0
_HEALTHY_SECONDS = 240.0


@dataclass(frozen=True)
class Stack:
    """The containers of one compose project; `folder` has its secrets."""

    cli: ContainerCli
    folder: Path
    project: str
    port: int
    platform_port: int

    def up(self, *services: str) -> None:
        """Start services in turn, each once the condition of its dependency is met.

        podman runs health checks by systemd timers, which containers and small virtual machines
        lack, and podman-compose honors conditions only from podman 4.6 on, so both are done here.
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
        """Run podman-compose; the test fails with its output if it fails."""
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
        """Return the container name of a service."""
        return f"{self.project}_{service}_1"

    def wait_until_healthy(self, service: str) -> None:
        """Wait until a service is healthy; fail with its log."""
        try:
            wait_for(
                f"health of {service}", lambda: self._check_says_healthy(service), _HEALTHY_SECONDS
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log_of(service)}") from None

    def _check_says_healthy(self, service: str) -> bool:
        """Run the container's own health check once; `inspect` then shows the verdict."""
        with suppress(ContainerCommandError):
            self.cli.call("healthcheck", "run", self.container(service))
        return bool(self.inspect(service)["State"]["Health"]["Status"] == "healthy")

    def inspect(self, service: str) -> Any:
        """Return `podman inspect` of a service."""
        return json.loads(self.cli.call("inspect", self.container(service)))[0]

    def inside(self, service: str, *command: str) -> str:
        """Return the output of a command in the container.

        Raises:
            ContainerCommandError: The command failed.
        """
        return self.cli.call("exec", self.container(service), *command).strip()

    def sql(self, query: str) -> str:
        """Return the result of a query to the Postgres in the container, over its local socket."""
        return self.inside(
            "postgres", "psql", "--username=prefect", "--dbname=prefect", "-Atc", query
        )

    def log_of(self, service: str) -> str:
        """Return the last 60 lines of a service's log."""
        return self.cli.call("logs", "--tail", "60", self.container(service))


@contextmanager
def running_stack(cli: ContainerCli, folder: Path, project: str) -> Iterator[Stack]:
    """Yield a stack with all services healthy; remove everything afterwards."""
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
    """Yield a simulated platform on this machine's loopback, which the stack's worker may call."""
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
    command = [sys.executable, "-m", "sagemaker_emulator", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def within_reach(stack: Stack, port: int) -> Iterator[None]:
    """Relay the platform to the loopback of the worker's current container, and nowhere else."""
    # A worker on the same machine would read this file directly.
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
