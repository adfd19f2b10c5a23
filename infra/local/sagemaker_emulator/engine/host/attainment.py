"""Computes from kernel counters how much of the CPU time that a node requested it got.

docs/method.md, "Attainment", describes the counters, their interpretation and the limitations.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sagemaker_emulator.engine.host.ballast import Ran
from sagemaker_emulator.engine.host.cgroups import enclosing_groups
from sagemaker_emulator.interfaces import NodeAttainment, NodeUsage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT = 3, 4
"""Positions in a `cpu` line of /proc/stat."""
_LEAST_BALLAST_SECONDS = 1.0
"""Minimum CPU time of ballast to compute a CPU speed.

With less, the speed varies more within a run than between runs.
"""
_MOST_READINGS = 1024
"""Maximum number of readings per job. When it is exceeded, every second reading is dropped."""


@dataclass(frozen=True)
class NodeReading:
    """A node's counters at one moment. Counters that the kernel does not provide are None."""

    cpu_seconds: float
    waited_seconds: float | None
    """Total time in which the node's threads were runnable but not running, minus throttling."""
    periods: int | None = None
    throttled_periods: int | None = None


@dataclass(frozen=True)
class Reading:
    """Counters of a job's nodes and of their CPUs at one moment of the monotonic clock."""

    at_seconds: float
    nodes: Mapping[str, NodeReading]
    idle_seconds: Mapping[int, float] = field(default_factory=dict)
    """Total time that each CPU was idle or ran ballast."""
    ballast: Mapping[int, Ran] = field(default_factory=dict)
    """CPU time and work of the ballast so far, by CPU."""
    held_back_seconds: float = 0.0
    """Total time per CPU for which the quotas of enclosing cgroups throttled this platform."""


def attainments(
    begin: Reading, end: Reading, vcpus: float, cpu_by_host: Mapping[str, int]
) -> dict[str, NodeAttainment]:
    """Return the attainment of each node in both readings, given a quota of `vcpus` per node."""
    seconds = end.at_seconds - begin.at_seconds
    if seconds <= 0:
        return {}
    used = {
        host: max(0.0, end.nodes[host].cpu_seconds - begin.nodes[host].cpu_seconds)
        for host in end.nodes
        if host in begin.nodes
    }
    speed = cpu_speed(begin, end, cpu_by_host.values())
    found = {}
    for host, cpu_seconds in used.items():
        first, last = begin.nodes[host], end.nodes[host]
        delay_seconds = _difference(first.waited_seconds, last.waited_seconds)
        others = _share_of_others(host, begin, end, used, cpu_by_host)
        throttled_share = _share(
            _difference(first.throttled_periods, last.throttled_periods),
            _difference(first.periods, last.periods),
        )
        quota_seconds = vcpus * seconds
        found[host] = NodeAttainment(
            seconds=seconds,
            quota_seconds=quota_seconds,
            cpu_seconds=cpu_seconds,
            asked_seconds=demanded_cpu_seconds(
                quota_seconds, cpu_seconds, delay_seconds, others, throttled_share, seconds=seconds
            ),
            run_queue_delay_seconds=delay_seconds,
            throttled_share=throttled_share,
            cpu_speed=speed,
        )
    return found


def cpu_speed(begin: Reading, end: Reading, cpus: Iterable[int]) -> float | None:
    """Return the speed of the CPUs between the readings, in bytes hashed per CPU second of ballast.

    Return None if the ballast used too little CPU time for a reliable speed.
    """
    seconds = hashed_bytes = 0.0
    for cpu in set(cpus):
        first, last = begin.ballast.get(cpu, Ran()), end.ballast.get(cpu, Ran())
        seconds += last.cpu_seconds - first.cpu_seconds
        hashed_bytes += last.hashed_bytes - first.hashed_bytes
    return hashed_bytes / seconds if seconds >= _LEAST_BALLAST_SECONDS else None


def demanded_cpu_seconds(
    quota_seconds: float,
    cpu_seconds: float,
    delay_seconds: float | None,
    others_share: float | None,
    throttled_share: float | None = None,
    seconds: float = math.inf,
) -> float | None:
    """Return the CPU seconds that a node would have used on a dedicated machine.

    This is the node's CPU time plus the time it waited in periods that did not exhaust the quota,
    capped at the quota. The wait is capped at the wait expected on a CPU that others use for
    `others_share` of the time, and at the CPU time that the node would have used during the wait at
    the pace of the rest of the time (docs/method.md, "Attainment").

    Args:
        quota_seconds: CPU time that the quota allows.
        cpu_seconds: CPU time used.
        delay_seconds: Run queue wait of the node's threads; None if unknown.
        others_share: Share of the time, 0 to 1, that others used the node's CPU; None if unknown.
        throttled_share: Share of periods, 0 to 1, in which the quota was exhausted.
        seconds: Wall time.

    Returns:
        The CPU time in seconds; None if the wait is unknown.
    """
    if delay_seconds is None:
        return None
    withheld = wait = delay_seconds * (1 - min(throttled_share or 0.0, 1.0))
    for share in (others_share, wait / seconds if seconds < math.inf else None):
        if share is not None and share < 1:
            withheld = min(withheld, cpu_seconds * share / (1 - share))
    return min(max(quota_seconds, cpu_seconds), cpu_seconds + withheld)


def _share_of_others(
    host: str,
    begin: Reading,
    end: Reading,
    used: Mapping[str, float],
    cpu_by_host: Mapping[str, int],
) -> float | None:
    """Return the share of the time, 0 to 1, that a node's CPU was unavailable to the job.

    The CPU is unavailable while other processes use it, or while the quota of an enclosing cgroup
    throttles all processes. Return None if the CPU's idle time is unknown.
    """
    cpu = cpu_by_host.get(host)
    if cpu is None or cpu not in begin.idle_seconds or cpu not in end.idle_seconds:
        return None
    seconds = end.at_seconds - begin.at_seconds
    idle_seconds = end.idle_seconds[cpu] - begin.idle_seconds[cpu]
    nodes_seconds = sum(used[other] for other in used if cpu_by_host.get(other) == cpu)
    held_back_seconds = max(0.0, end.held_back_seconds - begin.held_back_seconds)
    others_seconds = max(0.0, seconds - idle_seconds - nodes_seconds) + held_back_seconds
    return min(others_seconds / seconds, 1.0)


def _difference(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else max(0.0, last - first)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


class AttainmentMeter:
    """Measures the attainment of a job's nodes.

    Call `begin`, then `take_reading` periodically, then `attainments`. Readings must be periodic
    because the kernel forgets how long a thread waited when the thread ends.
    """

    def __init__(
        self,
        usage: Callable[[], Mapping[str, NodeUsage]],
        group_by_host: Mapping[str, Path],
        cpu_by_host: Mapping[str, int],
        vcpus: float,
        thread_ids: Callable[[str], Iterable[int]] = lambda host: (),
        stopped_periods: Callable[[str], tuple[int, int] | None] = lambda host: None,
        ballast: Callable[[], Mapping[int, Ran]] = dict,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the meter.

        Args:
            usage: Returns the current resource usage by host.
            group_by_host: The cgroups of the nodes that have one.
            cpu_by_host: The CPU that each node is pinned to.
            vcpus: The quota of each node.
            thread_ids: Returns the threads of a node without a cgroup.
            stopped_periods: Returns, for a node without a cgroup, how many periods it has had and
             in how many it was stopped.
            ballast: Returns the CPU time and work of the ballast by CPU.
            proc: The proc file system.
            clock: A monotonic clock, in seconds.
        """
        self._usage = usage
        self._group_by_host = group_by_host
        self._cpu_by_host = cpu_by_host
        self._vcpus = vcpus
        self._proc = proc
        self._clock = clock
        self._around = enclosing_groups()
        self._thread_ids = thread_ids
        self._stopped_periods = stopped_periods
        self._ballast = ballast
        self._waits = {host: ThreadWaits(proc) for host in cpu_by_host}
        self._readings: list[Reading] = []

    def begin(self) -> None:
        """Take the first reading."""
        self._readings = [self._read()]

    def take_reading(self) -> None:
        """Take a reading, but discard it if it lacks the CPU time of a process that has ended."""
        now = self._read()
        known = self._readings[-1].nodes if self._readings else {}
        if all(
            host in now.nodes and now.nodes[host].cpu_seconds >= known[host].cpu_seconds
            for host in known
        ):
            self._readings.append(now)
        if len(self._readings) > _MOST_READINGS:
            self._readings = [*self._readings[:-1:2], self._readings[-1]]

    def attainments(
        self, from_seconds: float = -math.inf, to_seconds: float = math.inf
    ) -> dict[str, NodeAttainment]:
        """Return the attainments between the readings nearest to two clock times.

        By default, they cover the time from begin() to the last reading. Before begin(), the result
        is empty.
        """
        if not self._readings:
            return {}
        first, last = (
            min(
                range(len(self._readings)), key=lambda i: abs(self._readings[i].at_seconds - moment)
            )
            for moment in (
                max(from_seconds, self._readings[0].at_seconds),
                min(to_seconds, self._readings[-1].at_seconds),
            )
        )
        if first >= last:  # both moments are nearest to the same reading
            first, last = max(0, first - 1), min(first + 1, len(self._readings) - 1)
        return attainments(
            self._readings[first], self._readings[last], self._vcpus, self._cpu_by_host
        )

    def _read(self) -> Reading:
        nodes = {
            host: self._read_node(usage.cpu_seconds, host)
            for host, usage in self._usage().items()
            if host in self._waits
        }
        held_back = sum(cpu_statistics(group)["throttled_seconds"] for group in self._around)
        cpus = len(os.sched_getaffinity(0))
        ballast = self._ballast()
        idle = {
            cpu: seconds + ballast.get(cpu, Ran()).cpu_seconds
            for cpu, seconds in idle_seconds(_read(self._proc / "stat")).items()
        }
        return Reading(self._clock(), nodes, idle, ballast, held_back / cpus)

    def _read_node(self, cpu_seconds: float, host: str) -> NodeReading:
        group = self._group_by_host.get(host)
        if group is None:
            waited_seconds = self._waits[host].seconds(self._thread_ids(host))
            stopped = self._stopped_periods(host) or (None, None)
            return NodeReading(cpu_seconds, waited_seconds, *stopped)
        waits, counted = self._waits[host], cpu_statistics(group)
        periods, throttled = counted.get("nr_periods"), counted.get("nr_throttled")
        return NodeReading(
            cpu_seconds=cpu_seconds,
            waited_seconds=waits.seconds(group_threads(group), counted["throttled_seconds"]),
            periods=None if periods is None else int(periods),
            throttled_periods=None if throttled is None else int(throttled),
        )


class ThreadWaits:
    """Sums the time that threads waited for a CPU (/proc/TID/schedstat), minus quota throttling.

    The total includes threads that have ended. Every thread is read because /proc/PID/schedstat
    covers only the first thread of a process. The kernel adds throttled time to the wait of each
    runnable thread, so the time throttled since the last call is subtracted from each wait.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._nanoseconds: dict[int, int] = {}
        self._waited_nanoseconds = 0
        self._throttled_nanoseconds = 0
        self._is_counted = False

    def seconds(self, thread_ids: Iterable[int], throttled_seconds: float = 0.0) -> float | None:
        """Return the total wait of these threads and of the threads in earlier calls, in seconds.

        Return None if the kernel does not count waits.

        Args:
            thread_ids: The threads to read now.
            throttled_seconds: Time that a quota has throttled the threads' cgroup so far.
        """
        now: dict[int, int] = {}
        throttled = round(throttled_seconds * 1e9)
        held_back = max(0, throttled - self._throttled_nanoseconds)
        for thread_id in thread_ids:
            fields = _read(self._proc / str(thread_id) / "schedstat").split()
            # A kernel without this accounting reports "0 0 0", as if the thread had never run.
            if len(fields) == 3 and fields != ["0", "0", "0"]:
                now[thread_id] = waited = int(fields[1])
                before = self._nanoseconds.get(thread_id, 0)
                if before > waited:  # the thread has ended and its id was reused
                    before = 0
                self._waited_nanoseconds += max(0, waited - before - held_back)
        self._is_counted = self._is_counted or bool(now)
        self._nanoseconds, self._throttled_nanoseconds = now, throttled
        return self._waited_nanoseconds / 1e9 if self._is_counted else None


def group_threads(group: Path) -> list[int]:
    """Return the ids of the threads in a cgroup; empty if the cgroup does not exist."""
    text = _read(group / "cgroup.threads") or _read(group / "tasks")  # v2, v1
    return [int(line) for line in text.split()]


def cpu_statistics(group: Path) -> dict[str, float]:
    """Return the values in a cgroup's cpu.stat (v1 or v2), plus `throttled_seconds`."""
    found: dict[str, float] = {}
    for line in _read(group / "cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = float(value)
    in_v1, in_v2 = found.get("throttled_time", 0.0) / 1e9, found.get("throttled_usec", 0.0) / 1e6
    return found | {"throttled_seconds": in_v1 + in_v2}


def idle_seconds(stat: str) -> dict[int, float]:
    """Return the seconds that each CPU was idle or waited for a disk, from the text of /proc/stat.

    The busy times in that file are unusable: tickless kernels attribute a whole tick to the process
    that runs at the tick, and quotas are refilled at ticks. In one test, a node at 20% was counted
    as 40%. Idle time is counted to the microsecond. All other time is busy, including time stolen
    by a hypervisor.
    """
    found = {}
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(number) for number in numbers]
            if any(ticks):  # a sandboxed kernel can show zeros
                found[int(name.removeprefix("cpu"))] = (
                    ticks[_IDLE] + ticks[_IOWAIT]
                ) / _TICKS_PER_SECOND
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
