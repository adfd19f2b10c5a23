"""What a node's processes use of the machine, from their cgroup where it counts,
otherwise from /proc.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from nodesweep.infra.local.engine.host.connections import connected_hosts
from nodesweep.infra.local.engine.host.process_tree import cgroup_pids, descendants, list_processes
from nodesweep.infra.local.interfaces import NodeUsage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_UTIME, _CSTIME, _RSS = 11, 14, 21
"""Places in /proc/<pid>/stat behind the program's name;
utime, stime, cutime and cstime stand in a row.
"""


def usage_by_host(
    pid_by_host: Mapping[str, int], cgroup_by_host: Mapping[str, Path | None], vcpus: float
) -> dict[str, NodeUsage]:
    """Of the nodes that were started. A node without a cgroup is its first process with all
    descended from it.
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
    """CPU seconds, those of ended and awaited children included, and resident bytes."""
    ticks = pages = 0
    for pid in pids:
        try:
            # The second field is the program's name in brackets and may hold blanks
            # and brackets itself.
            fields = (
                Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            )
        except OSError:  # ended meanwhile
            continue
        ticks += sum(int(field) for field in fields[_UTIME : _CSTIME + 1])
        pages += int(fields[_RSS])
    return ticks / _TICKS_PER_SECOND, pages * _PAGE_BYTES


def _counted_by(cgroup: Path) -> float | None:
    """CPU seconds as the group counts them, processes that have ended included;
    None where it doesn't.
    """
    try:
        # v1 with cpuacct mounted beside cpu
        return int((cgroup / "cpuacct.usage").read_text()) / 1e9
    except (OSError, ValueError):
        pass
    try:
        lines = dict(line.split() for line in (cgroup / "cpu.stat").read_text().splitlines())
        return int(lines["usage_usec"]) / 1e6  # v2
    except (OSError, ValueError, KeyError):
        return None
