"""Resource usage of a node's processes, from cgroup counters if available, else from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sagemaker_emulator.engine.host.connections import connected_hosts
from sagemaker_emulator.engine.host.process_tree import cgroup_pids, descendants, list_processes
from sagemaker_emulator.interfaces import NodeUsage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_UTIME, _CSTIME, _RSS = 11, 14, 21
"""Positions in /proc/<pid>/stat after the program's name.

utime, stime, cutime and cstime are adjacent.
"""


def usage_by_host(
    pid_by_host: Mapping[str, int], cgroup_by_host: Mapping[str, Path | None], vcpus: float
) -> dict[str, NodeUsage]:
    """Return the usage of the started nodes by host.

    A node without a cgroup consists of its first process and all of its descendants.
    """
    processes = (
        list_processes() if any(cgroup_by_host.get(host) is None for host in pid_by_host) else []
    )
    members: dict[str, set[int]] = {}
    for host, pid in pid_by_host.items():
        cgroup = cgroup_by_host.get(host)
        members[host] = (
            cgroup_pids(cgroup) if cgroup is not None else {pid} | descendants(processes, [pid])
        )
    connected = connected_hosts(members) if len(members) > 1 else None
    usages = {}
    for host, pids in members.items():
        cpu_seconds, memory_bytes = _of_processes(pids)
        cgroup = cgroup_by_host.get(host)
        counted = _counted_by(cgroup) if cgroup is not None else None
        usages[host] = NodeUsage(
            cpu_seconds if counted is None else counted,
            memory_bytes,
            vcpus,
            None if connected is None else host in connected,
        )
    return usages


def _of_processes(pids: Iterable[int]) -> tuple[float, int]:
    """Return the processes' CPU seconds, including reaped children, and their resident bytes."""
    ticks = pages = 0
    for pid in pids:
        try:
            # The program's name, in parentheses, may contain spaces and parentheses.
            fields = (
                Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            )
        except OSError:  # has ended
            continue
        ticks += sum(int(field) for field in fields[_UTIME : _CSTIME + 1])
        pages += int(fields[_RSS])
    return ticks / _TICKS_PER_SECOND, pages * _PAGE_BYTES


def _counted_by(cgroup: Path) -> float | None:
    """Return the cgroup's CPU seconds, including ended processes, or None if not counted."""
    try:
        # v1 with cpuacct mounted alongside cpu
        return int((cgroup / "cpuacct.usage").read_text()) / 1e9
    except (OSError, ValueError):
        pass
    try:
        lines = dict(line.split() for line in (cgroup / "cpu.stat").read_text().splitlines())
        return int(lines["usage_usec"]) / 1e6  # v2
    except (OSError, ValueError, KeyError):
        return None
