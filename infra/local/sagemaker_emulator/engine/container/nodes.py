"""Starts, monitors, signals and removes the containers of a job."""

from __future__ import annotations

import contextlib
import queue
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sagemaker_emulator.engine.container.cli import ContainerCli, ContainerCommandError
from sagemaker_emulator.engine.errors import EngineError, SupervisorError
from sagemaker_emulator.engine.host.cgroups import groups_of
from sagemaker_emulator.engine.host.node_usage import usage_by_host
from sagemaker_emulator.engine.host.process_tree import (
    descendants,
    list_processes,
    process_threads,
)
from sagemaker_emulator.engine.host.relay import Relay
from sagemaker_emulator.engine.run.running_nodes import Event
from sagemaker_emulator.interfaces import LineSink, NodeUsage

NODE_FOLDER = "/run/nodesweep"
"""The folder in a container that holds its environment file and the boot barrier files."""
ENVIRONMENT_FILE = "environment"
_START_SECONDS = 120.0
_TICK_SECONDS = 0.05
_DRAIN_SECONDS = 30.0
_MAX_LINE_BYTES = 256 * 1024
_PROGRAM_FAILED = 125  # exit code of podman and docker if they could not run the container
# The start command waits for a line on stdin, which the server sends once every node exists and can
# reach the platform. If stdin ends instead because the server is gone, the command exits. The
# environment is in a file to keep it off command lines and to allow newlines.
_START = f'read -r _ || exit 1; . {NODE_FOLDER}/{ENVIRONMENT_FILE}; exec "$@" </dev/null'
# Send SIGTERM to all processes except process 1 and those that already got it. Process 1 would
# ignore it anyway, since the toolkit's `train` has no handler for the signal.
_TERMINATE = (
    'had=" 1 $$ $1 "; for folder in /proc/[0-9]*; do pid=${folder#/proc/}; '
    'case "$had" in *" $pid "*) ;; *) kill -TERM "$pid" 2>/dev/null && echo "$pid" ;; esac; done'
)


@dataclass(frozen=True)
class ContainerPlan:
    """Parameters of a node's container, where `folder` is the node's folder on this machine."""

    host: str
    name: str
    options: Sequence[str]
    image: str
    command: Sequence[str]
    folder: Path


def environment_script(environment: Mapping[str, str]) -> str:
    """Return the content of the environment file that the start command sources."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())


class ContainerNodes:
    """A context manager that creates and removes the containers of a job.

    `release` starts the nodes. See `running_nodes.RunningNodes`.
    """

    def __init__(
        self,
        cli: ContainerCli,
        plans: Sequence[ContainerPlan],
        platform_port: int,
        on_line: LineSink,
    ) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self._cli = cli
        self._plans = {plan.host: plan for plan in plans}
        self._port = platform_port
        self._on_line = on_line
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._relays: list[Relay] = []
        self._terminated: dict[str, set[str]] = {plan.host: set() for plan in plans}
        self._last_lines: dict[str, str] = {}
        self._sink_error: Exception | None = None
        self.pid_by_host: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            for plan in self._plans.values():
                self._start(plan)
            self._wait_until_running()
            for pid in self.pid_by_host.values():
                self._relays.append(self._relay(pid))
        except BaseException:
            self._clean_up()
            raise
        return self

    def _relay(self, pid: int) -> Relay:
        try:
            return Relay(Path(f"/proc/{pid}/ns/net"), self._port)
        except OSError as error:
            raise EngineError(f"can't enter the network of process {pid}: {error}") from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clean_up()
        if error is None and self._sink_error:
            raise SupervisorError("log lines could not be delivered") from self._sink_error

    @property
    def supervisor_exit_code(self) -> int | None:
        """None, since containers have no common supervisor that could exit."""
        return None

    def release(self) -> None:
        """Start every node's command."""
        for client in self._clients.values():
            assert client.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the node has ended; an event reports it
                client.stdin.write(b"\n")
                client.stdin.close()

    def kill(self, host: str) -> None:
        """Kill a node's container, and with it every process of the node."""
        with contextlib.suppress(ContainerCommandError):  # has ended
            self._cli.call("kill", "--signal", "KILL", self._plans[host].name)

    def terminate(self, host: str, already: set[int]) -> set[int]:
        """Send SIGTERM to the node's processes, except the first and those that already got it.

        Process ids are only valid inside the container, so this object records the recipients and
        returns an empty set.
        """
        had = " ".join(sorted(self._terminated[host]))
        with contextlib.suppress(ContainerCommandError):  # has ended
            reached = self._cli.call(
                "exec", self._plans[host].name, "sh", "-c", _TERMINATE, "sh", had
            )
            self._terminated[host] |= set(reached.split())
        return set()

    def quota_groups(self) -> dict[str, tuple[int, Path]]:
        """Return the version and path of the cpu cgroup by host, if it is visible."""
        found = {host: groups_of(pid).get("cpu") for host, pid in self.pid_by_host.items()}
        return {host: group for host, group in found.items() if group is not None}

    def thread_ids(self, host: str) -> list[int]:
        """Return the thread ids of the container's first process and its descendants."""
        pid = self.pid_by_host[host]
        return process_threads({pid} | descendants(list_processes(), [pid]))

    def stopped_periods(self, host: str) -> None:
        """Return None, since the kernel enforces the quota of a container."""

    def usage(self, vcpus: float) -> dict[str, NodeUsage]:
        """Return the current resource usage of running nodes by host."""
        running = {
            host: pid
            for host, pid in self.pid_by_host.items()
            if self._clients[host].poll() is None
        }
        groups = {host: groups_of(pid).get("cpuacct") for host, pid in running.items()}
        return usage_by_host(
            running, {host: group[1] if group else None for host, group in groups.items()}, vcpus
        )

    def _start(self, plan: ContainerPlan) -> None:
        start = (
            "--interactive",
            "--entrypoint",
            "sh",
            plan.image,
            "-c",
            _START,
            "sh",
            *plan.command,
        )
        client = subprocess.Popen(
            [self._cli.program, "run", "--name", plan.name, *plan.options, *start],
            env=self._cli.environment,
            cwd=plan.folder,  # podman's monitor writes a file named `oom` to its working folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # only the server gets Ctrl-C, and stops the job cleanly
        )
        self._clients[plan.host] = client
        thread = threading.Thread(
            target=self._follow, args=(plan.host, client), name=f"node-{plan.name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _wait_until_running(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(ContainerCommandError):  # some do not exist yet
                names = [plan.name for plan in self._plans.values()]
                pids = self._cli.call(
                    "inspect", "--type", "container", "--format", "{{.State.Pid}}", *names
                ).split()
                self.pid_by_host = {
                    host: int(pid) for host, pid in zip(self._plans, pids, strict=True) if int(pid)
                }
            if len(self.pid_by_host) == len(self._plans):
                return
            for host, client in self._clients.items():
                if client.poll() is not None:
                    self._threads[list(self._clients).index(host)].join(_DRAIN_SECONDS)
                    output = self._last_lines.get(host, "no output")
                    raise SupervisorError(
                        f"the container of {host} did not start ({self._cli.name}: {output})"
                    )
            if time.monotonic() >= deadline:
                raise SupervisorError(
                    f"the job's containers did not start within {_START_SECONDS:g} s"
                )
            time.sleep(_TICK_SECONDS)

    def _follow(self, host: str, client: subprocess.Popen[bytes]) -> None:
        """Deliver the output of a node, then report how the node ended."""
        assert client.stdout is not None
        while line := client.stdout.readline(_MAX_LINE_BYTES):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if not text:  # CloudWatch rejects empty events
                continue
            self._last_lines[host] = text
            try:
                self._on_line(host, text, int(time.time() * 1000))
            except Exception as error:
                # Continue to read, since the node must not block. The error is raised at the end.
                self._sink_error = self._sink_error or error
        code = client.wait()
        if code == _PROGRAM_FAILED:
            self.events.put(
                {"event": "not_started", "host": host, "error": self._last_lines.get(host, "")}
            )
        else:
            self.events.put({"event": "ended", "host": host, "exit_code": as_of_subprocess(code)})

    def _clean_up(self) -> None:
        for relay in self._relays:
            relay.close()
        names = [plan.name for plan in self._plans.values()]
        with contextlib.suppress(ContainerCommandError):  # verified below
            self._cli.remove(names)
        for client in self._clients.values():
            if client.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    client.stdin.close()
            try:
                client.wait(_DRAIN_SECONDS)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
        for thread in self._threads:
            thread.join(_DRAIN_SECONDS)
        left = [host for host, pid in self.pid_by_host.items() if Path(f"/proc/{pid}").exists()]
        if left:
            raise SupervisorError(f"the containers of {', '.join(left)} can't be removed")


def as_of_subprocess(exit_code: int) -> int:
    """Return the exit code of a container as `subprocess` does: -15 instead of 143 for SIGTERM.

    Other large codes are the program's own, such as 255 of ssh and sys.exit(-1).
    """
    return 128 - exit_code if 128 < exit_code < 128 + signal.NSIG else exit_code
