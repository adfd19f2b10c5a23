"""A CPU quota without cgroups: a node's processes are stopped once they have used their share.

If a user may not write cgroups, the job supervisor imitates the kernel's quota. In each period, a
node may use its share of one CPU and is then stopped (SIGSTOP) until its next period (SIGCONT).
Overuse between polls is deducted from later periods, and a period that begins late has a larger
share. As with the kernel's quota, unused time is lost, and the periods of the nodes begin at
different times. If all nodes ran simultaneously, they would wait longer for a CPU (13% of their
share with 8 nodes on 2 CPUs, instead of 5%), but never for each other's gradients (8 nodes reached
72% efficiency in one run and 52% in the next). CPU time is read in nanoseconds from the CPU clock
of each process. This module uses only the standard library because the supervisor imports it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sagemaker_emulator.engine.host.process_tree import descendants, list_processes

PERIOD_SECONDS = 0.04
"""Twice the period of the kernel's quota (cgroups.py), since each poll costs CPU time."""
_LONGEST_SECONDS = 5 * PERIOD_SECONDS
_LEAST_PAUSE_SECONDS = 0.002
_PHASE_STEP = 0.618
"""Phase difference between successive nodes. The golden ratio spreads any number evenly."""
_TREE_SECONDS = 0.5
"""Interval between scans of /proc for new processes, which take milliseconds."""


def process_cpu_seconds(pid: int) -> float:
    """Return a process's CPU time, including all threads, from its clock (clock_getcpuclockid(3)).

    Raises:
        OSError: If the process has ended.
    """
    return time.clock_gettime((~pid << 3) | 2)


@dataclass
class Periods:
    """A node's periods, which begin at (n + `phase`) * PERIOD_SECONDS, with `phase` from 0 to 1.

    On a busy machine, the supervisor wakes late and keeps nodes stopped for too long, so a late
    period has a larger share. Next to 8 busy processes, a node got 99.8% of its quota, compared to
    80% without this correction. _LONGEST_SECONDS prevents a burst after the machine was suspended.
    """

    phase: float
    begun_at: float | None = None
    ends_at: float = 0.0

    def begin(self, now: float) -> float | None:
        """Begin a period and return its length in seconds, or None if the last has not ended.

        The length is the time since the last period began, up to _LONGEST_SECONDS.
        """
        if now < self.ends_at:
            return None
        length = PERIOD_SECONDS if self.begun_at is None else now - self.begun_at
        self.begun_at = now
        self.ends_at = now + PERIOD_SECONDS - (now - self.phase * PERIOD_SECONDS) % PERIOD_SECONDS
        return min(length, _LONGEST_SECONDS)


@dataclass
class NodeBudget:
    """The CPU seconds that a node has left in this period, and the number of periods so far."""

    left_seconds: float = 0.0
    is_stopped: bool = False
    stopped_periods: int = 0
    used_periods: float = 0.0
    """CPU time that the node has used, in multiples of its share of a period."""
    share_seconds: float = 0.0

    def begin_period(self, share_seconds: float) -> bool:
        """Begin a period, and return False if earlier overuse has exhausted the node's share."""
        self.share_seconds = share_seconds
        self.left_seconds = min(self.left_seconds, 0.0) + share_seconds
        return self.left_seconds > 0

    def use(self, seconds: float) -> bool:
        """Deduct CPU time that the node has used, and return True if the node may continue."""
        self.used_periods += seconds / self.share_seconds
        self.left_seconds -= seconds
        return self.left_seconds > 0

    def end_period(self) -> None:
        """Count the period if the node is stopped."""
        self.stopped_periods += self.is_stopped

    def periods(self) -> tuple[int, int]:
        """Return the number of periods that the node used, and in how many it was stopped.

        As in the kernel's cpu.stat, a partly used period counts in part, and a period in which the
        node slept does not count, since only a working node waits for a CPU (docs/method.md,
        "Attainment").
        """
        return max(round(self.used_periods), self.stopped_periods), self.stopped_periods


@dataclass
class _Node:
    """The pidfds (which are safe from pid reuse) and latest CPU times of a node's processes."""

    host: str
    periods: Periods
    budget: NodeBudget = field(default_factory=NodeBudget)
    handles: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, float] = field(default_factory=dict)


class DutyCycle:
    """Limits each node to a share of a CPU, from `limit(vcpus)` until `limit(None)`."""

    def __init__(
        self, host_by_pid: Callable[[], Mapping[int, str]], report: Callable[[str, int, int], None]
    ) -> None:
        """Start the thread that enforces the limit.

        Args:
            host_by_pid: Returns the first process of every node that was started.
            report: Called periodically with (host, *NodeBudget.periods()).
        """
        self._host_by_pid = host_by_pid
        self._report = report
        self._vcpus: float | None = None
        self._changed = threading.Event()
        self._nodes: dict[int, _Node] = {}
        threading.Thread(target=self._run, name="duty-cycle", daemon=True).start()

    def limit(self, vcpus: float | None) -> None:
        """Limit each node to this many CPUs, or remove the limit if None."""
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
                        self._report(node.host, *node.budget.periods())
                    self._look_for_processes()
                    next_trees = time.monotonic() + _TREE_SECONDS
                self._poll(vcpus)
            for node in self._nodes.values():
                self._send(node, signal.SIGCONT)
                node.budget = replace(node.budget, left_seconds=0.0, is_stopped=False)

    def _poll(self, vcpus: float) -> None:
        """Begin the periods that are due, sleep, and stop nodes that have used their share."""
        now = time.monotonic()
        for node in self._nodes.values():
            if (length := node.periods.begin(now)) is not None:
                node.budget.end_period()
                self._set_running(node, node.budget.begin_period(vcpus * length))
        running = [node for node in self._nodes.values() if not node.budget.is_stopped]
        # A node is pinned to one CPU, so it cannot use up its share before that much time passes.
        pauses = [node.budget.left_seconds for node in running]
        pauses += [node.periods.ends_at - now for node in self._nodes.values()]
        time.sleep(max(min(pauses, default=PERIOD_SECONDS), _LEAST_PAUSE_SECONDS))
        for node in running:
            self._set_running(node, node.budget.use(self._used_seconds(node)))

    def _set_running(self, node: _Node, runs: bool) -> None:
        if runs is node.budget.is_stopped:
            node.budget.is_stopped = not runs
            self._send(node, signal.SIGCONT if runs else signal.SIGSTOP)

    def _used_seconds(self, node: _Node) -> float:
        """Return the CPU seconds that the node's processes used since the last call."""
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
            phase = len(self._nodes) * _PHASE_STEP % 1
            node = self._nodes.setdefault(pid, _Node(host, Periods(phase)))
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
