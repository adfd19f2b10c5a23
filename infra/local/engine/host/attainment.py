"""How much of the CPU that a node asked for it got,
by what the kernel has counted between two moments.

What is read, what it tells and what it can't is in docs/method.md, "Attainment".
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodesweep.infra.local.engine.host.ballast import Ran
from nodesweep.infra.local.engine.host.cgroups import enclosing_groups
from nodesweep.infra.local.interfaces import NodeAttainment, NodeUsage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT = 3, 4
"""Places among the numbers of a `cpu` line of /proc/stat."""
_LEAST_BALLAST_SECONDS = 1.0
"""In less the speed of a CPU varies by more than it does from run to run."""
_MOST_READINGS = 1024
"""That are kept of a job; beyond that every second one is let go."""


@dataclass(frozen=True)
class NodeReading:
    """What was counted for a node up to a moment; None of what the kernel does not count."""

    cpu_seconds: float
    waited_seconds: float | None
    """Its threads, ready but not running, summed, without the time that a quota held them back."""
    periods: int | None = None
    throttled_periods: int | None = None


@dataclass(frozen=True)
class Reading:
    """What was counted for all nodes of a job up to one moment (monotonic),
    and for the CPUs they run on.
    """

    at_seconds: float
    nodes: Mapping[str, NodeReading]
    idle_seconds: Mapping[int, float] = field(default_factory=dict)
    """By CPU, the time that nobody wanted it: nothing ran on it, or ballast did."""
    ballast: Mapping[int, Ran] = field(default_factory=dict)
    """By CPU, what ran there because nobody wanted it."""
    held_back_seconds: float = 0.0
    """How long the quotas of the groups around this platform let nothing of it run."""


def attainments(
    begin: Reading, end: Reading, vcpus: float, cpu_by_host: Mapping[str, int]
) -> dict[str, NodeAttainment]:
    """Of each node that both readings have, under a quota of `vcpus`."""
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
            asked_seconds=asked_seconds(
                quota_seconds, cpu_seconds, delay_seconds, others, throttled_share, seconds=seconds
            ),
            run_queue_delay_seconds=delay_seconds,
            throttled_share=throttled_share,
            cpu_speed=speed,
        )
    return found


def cpu_speed(begin: Reading, end: Reading, cpus: Iterable[int]) -> float | None:
    """How fast these CPUs were between the readings: bytes that the ballast hashed in a second of
    its CPU time; None where it came to too little.
    """
    seconds = hashed_bytes = 0.0
    for cpu in set(cpus):
        first, last = begin.ballast.get(cpu, Ran()), end.ballast.get(cpu, Ran())
        seconds += last.cpu_seconds - first.cpu_seconds
        hashed_bytes += last.hashed_bytes - first.hashed_bytes
    return hashed_bytes / seconds if seconds >= _LEAST_BALLAST_SECONDS else None


def asked_seconds(
    quota_seconds: float,
    cpu_seconds: float,
    delay_seconds: float | None,
    others_share: float | None,
    throttled_share: float | None = None,
    seconds: float = math.inf,
) -> float | None:
    """The CPU time that a node would have used on a machine of its own in these `seconds` of wall
    time; None where its waits are not known.

    What it used and what it waited for in the periods that did not use up its quota, but no more
    than its quota. Of the wait no more counts than it would have met by chance on a CPU that others
    had for `others_share` of the time, nor than the node would have used in the wall time that the
    wait took from it, at the pace that it had in the rest (docs/method.md, "Attainment").
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
    """The share of the time, 0 to 1, that a node's CPU gave to none of this job's nodes, or a
    quota around the platform kept from all; None where that is not counted.
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
    """Reads the nodes of a job from the moment that it measures: `begin`, `look` now and then,
    `attainments`.

    Looked at now and then, because the kernel forgets what a thread had waited when it ends.
    """

    def __init__(
        self,
        usage: Callable[[], Mapping[str, NodeUsage]],
        group_by_host: Mapping[str, Path],
        cpu_by_host: Mapping[str, int],
        vcpus: float,
        thread_ids: Callable[[str], Iterable[int]] = lambda host: (),
        stops: Callable[[str], tuple[int, int] | None] = lambda host: None,
        ballast: Callable[[], Mapping[int, Ran]] = dict,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`thread_ids` and `stops` (periods, those it was stopped in) are of a node
        that has no control group. `ballast`, by CPU, what ran there only because nothing else
        wanted to.
        """
        self._usage = usage
        self._group_by_host = group_by_host
        self._cpu_by_host = cpu_by_host
        self._vcpus = vcpus
        self._proc = proc
        self._clock = clock
        self._around = enclosing_groups()
        self._thread_ids = thread_ids
        self._stops = stops
        self._ballast = ballast
        self._waits = {host: ThreadWaits(proc) for host in cpu_by_host}
        self._readings: list[Reading] = []

    def begin(self) -> None:
        """From now on it counts."""
        self._readings = [self._read()]

    def look(self) -> None:
        """Up to now it counts, unless a process has ended meanwhile
        and taken its CPU time with it.
        """
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
        """From begin() to the last look, or between those of the looks that are nearest to two
        moments of the clock; empty before.
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
        if first >= last:  # between two looks
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
            return NodeReading(cpu_seconds, waited_seconds, *(self._stops(host) or (None, None)))
        waits, counted = self._waits[host], cpu_statistics(group)
        periods, throttled = counted.get("nr_periods"), counted.get("nr_throttled")
        return NodeReading(
            cpu_seconds=cpu_seconds,
            waited_seconds=waits.seconds(group_threads(group), counted["throttled_seconds"]),
            periods=None if periods is None else int(periods),
            throttled_periods=None if throttled is None else int(throttled),
        )


class ThreadWaits:
    """How long threads have waited for a CPU (/proc/TID/schedstat), beyond what a quota held them
    back, those that have ended since included.

    /proc/PID/schedstat is that of a process's first thread alone, so every thread is read. The
    kernel counts the time that a quota holds a group back to the wait of each thread that is ready
    meanwhile, so it is taken off each one's, from call to call.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._nanoseconds: dict[int, int] = {}
        self._waited_nanoseconds = 0
        self._throttled_nanoseconds = 0
        self._is_counted = False

    def seconds(self, thread_ids: Iterable[int], throttled_seconds: float = 0.0) -> float | None:
        """Of these threads, and of those of earlier calls, where a quota has held their group back
        for `throttled_seconds` so far; None on a kernel that doesn't count it.
        """
        now: dict[int, int] = {}
        throttled = round(throttled_seconds * 1e9)
        held_back = max(0, throttled - self._throttled_nanoseconds)
        for thread_id in thread_ids:
            fields = _read(self._proc / str(thread_id) / "schedstat").split()
            # A kernel without the accounting gives "0 0 0": not even that the thread has run.
            if len(fields) == 3 and fields != ["0", "0", "0"]:
                now[thread_id] = waited = int(fields[1])
                before = self._nanoseconds.get(thread_id, 0)
                if before > waited:  # it has ended, and its number is another's now
                    before = 0
                self._waited_nanoseconds += max(0, waited - before - held_back)
        self._is_counted = self._is_counted or bool(now)
        self._nanoseconds, self._throttled_nanoseconds = now, throttled
        return self._waited_nanoseconds / 1e9 if self._is_counted else None


def group_threads(group: Path) -> list[int]:
    """The threads in a cgroup; empty where it doesn't exist."""
    text = _read(group / "cgroup.threads") or _read(group / "tasks")  # v2, v1
    return [int(line) for line in text.split()]


def cpu_statistics(group: Path) -> dict[str, float]:
    """The group's cpu.stat with `throttled_seconds`, 0 for a group without a quota, whichever
    version wrote it.
    """
    found: dict[str, float] = {}
    for line in _read(group / "cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = float(value)
    in_v1, in_v2 = found.get("throttled_time", 0.0) / 1e9, found.get("throttled_usec", 0.0) / 1e6
    return found | {"throttled_seconds": in_v1 + in_v2}


def idle_seconds(stat: str) -> dict[int, float]:
    """By CPU, the time that it idled or waited for a disk, by the text of /proc/stat.

    The busy times of that file can't be used: kernels that sleep while idle count what ran by
    looking at it in each tick, and a quota hands its time out at the ticks. A node of 20 % was
    counted as 40 %. How long they slept is counted to the microsecond, and all else is busy,
    what a hypervisor took from the CPU included.
    """
    found = {}
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(number) for number in numbers]
            if any(ticks):  # a sandbox's kernel may show zeros
                found[int(name.removeprefix("cpu"))] = (
                    ticks[_IDLE] + ticks[_IOWAIT]
                ) / _TICKS_PER_SECOND
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
