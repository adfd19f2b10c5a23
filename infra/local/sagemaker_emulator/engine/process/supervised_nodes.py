"""The server's side of a job supervisor: events, node output, signals and cleanup."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sagemaker_emulator.engine.errors import SupervisorError
from sagemaker_emulator.engine.host.cgroups import remove_group
from sagemaker_emulator.engine.host.node_usage import usage_by_host
from sagemaker_emulator.engine.host.process_tree import (
    Membership,
    descendants,
    kill_all,
    list_processes,
    process_threads,
    signal_members,
)
from sagemaker_emulator.engine.host.switch import SwitchPlan
from sagemaker_emulator.engine.process.job_supervisor import NodePlan, Plan
from sagemaker_emulator.engine.run.running_nodes import Event
from sagemaker_emulator.environment import IMPORT_ROOT
from sagemaker_emulator.interfaces import LineSink, NodeUsage

_PROGRAM = (
    f"import sys; sys.path.append({IMPORT_ROOT!r}); "
    "from sagemaker_emulator.engine.process.job_supervisor import main; main()"
)
_CLEAN_UP_SECONDS = 15.0  # the supervisor's own limit is 10 s
_OUTPUT_DRAIN_SECONDS = 60.0  # for a busy machine; usually, it takes no time
_KILL_SECONDS = 10.0
# CloudWatch's limit per event, so that output without newlines cannot fill the memory
_MAX_LINE_BYTES = 256 * 1024

SUPERVISOR_LOST: Event = {"event": "supervisor_lost", "host": None}


class SupervisedNodes:
    """A context manager that runs the nodes of a job and leaves no processes or cgroups behind."""

    def __init__(
        self,
        state_id: str,
        job_name: str,
        plans: Sequence[NodePlan],
        on_line: LineSink,
        network: SwitchPlan | None = None,
    ) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self._state_id = state_id
        self._job_name = job_name
        self._plans = list(plans)
        self._on_line = on_line
        self._network = network
        self._pid_by_host: dict[str, int] = {}
        self._stopped_periods: dict[str, tuple[int, int]] = {}
        self._readers: list[threading.Thread] = []
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._sink_error: Exception | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clean_up()
        if error is None:
            self._drain_output()

    @property
    def supervisor_exit_code(self) -> int | None:
        """The exit code of the supervisor, or None while it runs."""
        return self._supervisor.poll() if self._supervisor else None

    def usage(self, vcpus: float) -> dict[str, NodeUsage]:
        """Return the current resource usage by host, omitting nodes that have not started."""
        cgroups = {
            plan["host"]: Path(plan["cgroup"]) if plan["cgroup"] else None for plan in self._plans
        }
        return usage_by_host(dict(self._pid_by_host), cgroups, vcpus)

    def limit(self, vcpus: float | None) -> None:
        """Have the supervisor limit each node to `vcpus` by a duty cycle, or end it if None."""
        assert self._supervisor is not None and self._supervisor.stdin is not None
        if vcpus is not None:
            for plan in self._plans:
                self._stopped_periods.setdefault(plan["host"], (0, 0))
        with contextlib.suppress(BrokenPipeError):  # the supervisor is gone; an event reports it
            self._supervisor.stdin.write(json.dumps({"vcpus": vcpus}).encode() + b"\n")
            self._supervisor.stdin.flush()

    def stopped_periods(self, host: str) -> tuple[int, int] | None:
        """Return how many duty cycle periods a node has had, and in how many it was stopped.

        The numbers come from the supervisor's latest report. Return None if the node has no duty
        cycle.
        """
        return self._stopped_periods.get(host)

    def thread_ids(self, host: str) -> list[int]:
        """Return the thread ids of a node's processes."""
        pid = self._pid_by_host.get(host)
        return (
            process_threads({pid} | descendants(list_processes(), [pid])) if pid is not None else []
        )

    def kill(self, host: str) -> None:
        """Kill every process of a node."""
        signal_members(self._membership(host), signal.SIGKILL)

    def terminate(self, host: str, already: set[int]) -> set[int]:
        """Send SIGTERM to a node's processes, except those in `already`.

        Return the ids of the processes that received the signal. The first process (`train`) does
        not receive it while the node has other processes, like process 1 of a container: the
        toolkit does not forward the signal, and if it ended early, the training program would have
        no time to save.
        """
        leader = self._pid_by_host.get(host)
        membership = self._membership(host)
        spared = {leader} if leader and membership.members() - {leader} else set()
        return signal_members(membership, signal.SIGTERM, without=frozenset(already | spared))

    def _drain_output(self) -> None:
        """Wait until the remaining output of the nodes, which have all ended, has been read."""
        deadline = time.monotonic() + _OUTPUT_DRAIN_SECONDS
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        if self._sink_error:
            raise SupervisorError(
                f"the log lines of job {self._job_name} could not be delivered"
            ) from self._sink_error

    def _start(self) -> None:
        ends = [os.pipe() for _ in self._plans]
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
                pass_fds=[write_end for _, write_end in ends],
                # only the server gets Ctrl-C, and stops the job cleanly
                start_new_session=True,
            )
        finally:
            for _, write_end in ends:
                os.close(write_end)
        for plan, (read_end, _) in zip(self._plans, ends, strict=True):
            name = f"output-{plan['host']}"
            self._readers.append(_in_thread(name, self._read_output, plan["host"], read_end))
        _in_thread("supervisor-events", self._read_events)
        plan_message: Plan = {
            "state_id": self._state_id,
            "node_prefix": f"{self._job_name}/",
            "nodes": self._plans,
            "output_fds": [write_end for _, write_end in ends],
            "network": self._network,
        }
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed; an event reports it
            self._supervisor.stdin.write(json.dumps(plan_message).encode() + b"\n")
            self._supervisor.stdin.flush()

    def _read_output(self, host: str, read_end: int) -> None:
        with open(read_end, "rb") as stream:
            while line := stream.readline(_MAX_LINE_BYTES):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if not text:  # CloudWatch rejects empty events
                    continue
                try:
                    self._on_line(host, text, int(time.time() * 1000))
                except Exception as error:
                    # Continue to read, since the node must not block on a full pipe. The error is
                    # raised when the output is drained.
                    self._sink_error = self._sink_error or error

    def _read_events(self) -> None:
        assert self._supervisor is not None and self._supervisor.stdout is not None
        for line in self._supervisor.stdout:
            event: Event = json.loads(line)
            if event["event"] == "started":
                self._pid_by_host[event["host"]] = event["pid"]
            if event["event"] == "periods":
                self._stopped_periods[event["host"]] = event["periods"], event["stopped"]
                continue
            self.events.put(event)
        self.events.put(SUPERVISOR_LOST)

    def _membership(self, host: str | None) -> Membership:
        plans = [plan for plan in self._plans if host in (None, plan["host"])]
        sessions = {
            self._pid_by_host[plan["host"]] for plan in plans if plan["host"] in self._pid_by_host
        }
        return Membership(
            state_id=self._state_id,
            node_prefix=f"{self._job_name}/{host or ''}",
            session_ids=frozenset(sessions),
            cgroups=tuple(Path(plan["cgroup"]) for plan in plans if plan["cgroup"]),
        )

    def _clean_up(self) -> None:
        if self._supervisor:
            assert self._supervisor.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._supervisor.stdin.close()
            try:
                self._supervisor.wait(_CLEAN_UP_SECONDS)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait(_KILL_SECONDS)
        # A supervisor that was killed has not cleaned up.
        left = kill_all(self._membership(None), _KILL_SECONDS)
        for plan in self._plans:
            if plan["cgroup"]:
                remove_group(Path(plan["cgroup"]))
        if left:
            pids = ", ".join(map(str, sorted(left)))
            raise SupervisorError(
                f"job {self._job_name}: processes {pids} survived SIGKILL for {_KILL_SECONDS:g} s;"
                " CPU measurements of later jobs are unreliable while they run"
            )


def _in_thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    thread.start()
    return thread
