"""The parent process of a job's nodes, which starts them, reports their exits and cleans up.

The supervisor is a separate process, so that no nodes remain if the server is killed (even with
SIGKILL): when stdin, a pipe from the server, ends, the supervisor kills the nodes. Orphaned
descendants of nodes are reparented to the supervisor (PR_SET_CHILD_SUBREAPER). If the supervisor is
killed, the kernel kills the first process of each node (PR_SET_PDEATHSIG), and the server kills the
rest. The input is a `Plan` as a line of JSON, then a line {"vcpus": 0.2} for each change of the
duty cycle (null to remove it). The output is a line of JSON per event, {"event": "started" |
"not_started" | "ended" | "periods", "host", …}. This module uses only the standard library because
the supervisor must start in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TypedDict

from sagemaker_emulator.engine.host.cgroups import remove_group
from sagemaker_emulator.engine.host.process_tree import Membership, kill_all
from sagemaker_emulator.engine.host.switch import Switch, SwitchPlan
from sagemaker_emulator.engine.process.duty_cycle import DutyCycle

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_TIMEOUT_SECONDS = 10.0
_REPORTING = threading.Lock()


class NodePlan(TypedDict):
    """Parameters of a node's process, which may use all CPUs if `cpu` is None."""

    host: str
    argv: list[str]
    environment: dict[str, str]
    folder: str
    cgroup: str | None
    cpu: int | None


class Plan(TypedDict):
    """The supervisor's input.

    `node_prefix` is "<job>/". `output_fds` are inherited from the server and receive the output of
    `nodes`, in the same order. If `network` is None, the nodes use this machine's network.
    """

    state_id: str
    node_prefix: str
    nodes: list[NodePlan]
    output_fds: list[int]
    network: SwitchPlan | None


def main() -> None:
    """Run the nodes of a job until standard input ends, then kill all of their processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The server ends a job by closing the pipe or stopping the nodes. A SIGTERM that is meant for
    # the server must not stop the supervisor first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan: Plan = json.loads(sys.stdin.buffer.readline())
    host_by_pid: dict[int, str] = {}
    try:
        switch = Switch(plan["network"]).__enter__() if plan["network"] else None
        for node, output_fd in zip(plan["nodes"], plan["output_fds"], strict=True):
            _start(node, output_fd, libc, host_by_pid, switch)
        threading.Thread(target=_reap, args=(host_by_pid,), daemon=True).start()
        duty_cycle = DutyCycle(lambda: dict(host_by_pid), _report_periods)
        for line in sys.stdin.buffer:
            duty_cycle.limit(json.loads(line)["vcpus"])
    finally:
        _end_everything(plan, frozenset(host_by_pid))


def _start(
    node: NodePlan,
    output_fd: int,
    libc: ctypes.CDLL,
    host_by_pid: dict[int, str],
    switch: Switch | None,
) -> None:
    procs_file = os.path.join(node["cgroup"], "cgroup.procs") if node["cgroup"] else None

    def become_node() -> None:
        # SIG_IGN survives exec and would make the node ignore stop requests.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if procs_file:
            with open(procs_file, "w") as file:
                file.write(str(os.getpid()))
        if node["cpu"] is not None:
            os.sched_setaffinity(0, {node["cpu"]})
        if switch:
            switch.enter(node["host"])

    try:
        process = subprocess.Popen(
            node["argv"],
            env=node["environment"],
            cwd=node["folder"],
            stdin=subprocess.DEVNULL,
            stdout=output_fd,
            stderr=output_fd,
            start_new_session=True,
            preexec_fn=become_node,
        )
    except (OSError, subprocess.SubprocessError) as error:
        _report("not_started", node["host"], error=str(error))
    else:
        host_by_pid[process.pid] = node["host"]
        process.returncode = 0  # keeps Popen from waiting or warning, since _reap reaps it
        _report("started", node["host"], pid=process.pid)
    finally:
        os.close(output_fd)  # lets the server see the end of the node's output


def _reap(host_by_pid: dict[int, str]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid in host_by_pid:
            _report("ended", host_by_pid[pid], exit_code=os.waitstatus_to_exitcode(status))


def _report(event: str, host: str, **details: Any) -> None:
    line = json.dumps({"event": event, "host": host, **details})
    # If the server is gone, stdin ends too, which triggers the cleanup.
    with _REPORTING, contextlib.suppress(BrokenPipeError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _report_periods(host: str, periods: int, stopped: int) -> None:
    _report("periods", host, periods=periods, stopped=stopped)


def _end_everything(plan: Plan, session_ids: frozenset[int]) -> None:
    cgroups = tuple(Path(node["cgroup"]) for node in plan["nodes"] if node["cgroup"])
    everything = Membership(
        state_id=plan["state_id"],
        node_prefix=plan["node_prefix"],
        session_ids=session_ids,
        cgroups=cgroups,
        ancestor_pids=frozenset({os.getpid()}),
    )
    kill_all(everything, _KILL_TIMEOUT_SECONDS)
    for cgroup in cgroups:
        remove_group(cgroup)
    if cgroups:
        with contextlib.suppress(OSError):  # contains cgroups of another job
            cgroups[0].parent.rmdir()


if __name__ == "__main__":
    main()
