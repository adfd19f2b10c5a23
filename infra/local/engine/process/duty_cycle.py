"""A CPU quota without control groups: a node's processes are stopped when they have used their
share of a period.

Where an ordinary user may write no control group, the job's supervisor does what the kernel's quota
does: in each period a node may use its share of one CPU, then it is stopped (SIGSTOP) until the
next one begins (SIGCONT). What it used beyond that, because it was looked at late, is taken from
the periods after; what it leaves is lost, as under the kernel's quota. CPU time is read from each
process's own clock, in nanoseconds. Standard library only: the supervisor runs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodesweep.infra.local.engine.host.process_tree import descendants, list_processes

PERIOD_SECONDS = 0.04
"""Twice the kernel quota's (cgroups.py), since each look costs this process CPU time, too."""
_LEAST_PAUSE_SECONDS = 0.002
_TREE_SECONDS = 0.5
"""Between two looks for processes that a node has started since;
reading /proc takes milliseconds.
"""


def process_cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its threads, by its CPU clock (clock_getcpuclockid(3)).
    Raises OSError.
    """
    return time.clock_gettime((~pid << 3) | 2)


@dataclass
class NodeBudget:
    """One node's account: what it may use in this period, in seconds. Pure."""

    left_seconds: float = 0.0
    is_stopped: bool = False

    def begin_period(self, share_seconds: float) -> bool:
        """Whether it may run in this period: not where an earlier one has used it up already."""
        self.left_seconds = min(self.left_seconds, 0.0) + share_seconds
        return self.left_seconds > 0

    def use(self, seconds: float) -> bool:
        """Whether it may run on."""
        self.left_seconds -= seconds
        return self.left_seconds > 0


@dataclass
class _Node:
    """A node's processes by a handle that no other process can take over,
    and the clocks as they were last read.
    """

    host: str
    stopped_periods: int = 0
    budget: NodeBudget = field(default_factory=NodeBudget)
    handles: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, float] = field(default_factory=dict)


class DutyCycle:
    """Holds nodes to a share of a CPU each, from `limit` on until `limit(None)`."""

    def __init__(
        self, host_by_pid: Callable[[], Mapping[int, str]], report: Callable[[str, int, int], None]
    ) -> None:
        """`host_by_pid` has the first process of every node that was started; `report` is told now
        and then how many periods a host has had, and in how many it was stopped.
        """
        self._host_by_pid = host_by_pid
        self._report = report
        self._periods = 0
        self._vcpus: float | None = None
        self._changed = threading.Event()
        self._nodes: dict[int, _Node] = {}
        threading.Thread(target=self._run, name="duty-cycle", daemon=True).start()

    def limit(self, vcpus: float | None) -> None:
        """The share of each node from now on; None lets them run."""
        self._vcpus = vcpus
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            next_trees = 0.0
            while (vcpus := self._vcpus) is not None:
                if time.monotonic() >= next_trees:
                    for node in self._nodes.values():
                        self._report(node.host, self._periods, node.stopped_periods)
                    self._look_for_processes()
                    next_trees = time.monotonic() + _TREE_SECONDS
                self._period(time.monotonic() + PERIOD_SECONDS, vcpus * PERIOD_SECONDS)
            for node in self._nodes.values():
                self._send(node, signal.SIGCONT)
                node.budget = NodeBudget()

    def _period(self, end: float, share_seconds: float) -> None:
        self._periods += 1
        for node in self._nodes.values():
            self._set_running(node, node.budget.begin_period(share_seconds))
        while (left_seconds := end - time.monotonic()) > 0 and self._vcpus is not None:
            running = [node for node in self._nodes.values() if not node.budget.is_stopped]
            # On its one CPU a node can't use more than the time that passes:
            # no sooner need it be looked at.
            soonest = min((node.budget.left_seconds for node in running), default=left_seconds)
            time.sleep(min(left_seconds, max(soonest, _LEAST_PAUSE_SECONDS)))
            for node in running:
                self._set_running(node, node.budget.use(self._used_seconds(node)))
        for node in self._nodes.values():
            node.stopped_periods += node.budget.is_stopped

    def _set_running(self, node: _Node, runs: bool) -> None:
        if runs is node.budget.is_stopped:
            node.budget.is_stopped = not runs
            self._send(node, signal.SIGCONT if runs else signal.SIGSTOP)

    def _used_seconds(self, node: _Node) -> float:
        """CPU seconds of the node's processes since the last call."""
        used = 0.0
        for pid in list(node.handles):
            try:
                clock = process_cpu_seconds(pid)
            except OSError:
                self._forget(node, pid)
                continue
            used += max(0.0, clock - node.clocks.get(pid, clock))
            node.clocks[pid] = clock
        return used

    def _look_for_processes(self) -> None:
        processes = list_processes()
        for pid, host in self._host_by_pid().items():
            node = self._nodes.setdefault(pid, _Node(host))
            members = {pid} | descendants(processes, [pid])
            for gone in set(node.handles) - members:
                self._forget(node, gone)
            for new in members - set(node.handles):
                with contextlib.suppress(OSError):
                    node.handles[new] = os.pidfd_open(new)
                    node.clocks[new] = process_cpu_seconds(new)
                    if node.budget.is_stopped:
                        signal.pidfd_send_signal(node.handles[new], signal.SIGSTOP)

    def _forget(self, node: _Node, pid: int) -> None:
        os.close(node.handles.pop(pid))
        node.clocks.pop(pid, None)

    def _send(self, node: _Node, number: signal.Signals) -> None:
        for handle in node.handles.values():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, number)
