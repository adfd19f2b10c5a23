"""Finds the nodes of a job that have a TCP connection to another node of the job.

Launchers are excluded because torchrun agents and MPI daemons connect even if the programs that
they start never do. Connections to the platform or within a node do not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

_ESTABLISHED = "01"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_MAPPED = "0000000000000000FFFF0000"
"""Prefix of an IPv4 address in an IPv6 socket, as in /proc/net/tcp6."""
_LOOPBACK = re.compile(r"[0-9A-F]{6}7F:|0{24}01000000:")
"""Loopback addresses (127.0.0.0/8 and ::1) in the notation of /proc/net/tcp and tcp6."""
_LAUNCHERS = frozenset(
    {"torchrun", "mpirun", "mpiexec", "orterun", "prterun", "orted", "prted", "ssh", "sshd"}
    | {"horovodrun", "accelerate", "deepspeed", "hydra_pmi_proxy", "hydra_bstrap_proxy"}
)
_LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_PROGRAM_WORDS = 4
"""Number of words of a command line to examine: interpreter, options, and script or module."""

Ends = tuple[str, str]
"""The local and remote endpoints (address and port) of a connection.

A loopback address includes its network namespace, since it is only unique within one.
"""


def connected_hosts(pids_by_host: Mapping[str, Collection[int]]) -> set[str] | None:
    """Return the nodes that are connected to another node, or None if a process is unreadable."""
    ends_by_host = {}
    connections: dict[str, dict[str, Ends]] = {}  # by network namespace
    for host, pids in pids_by_host.items():
        ends: set[Ends] = set()
        for pid in pids:
            try:
                if _is_launcher(pid):
                    continue
                held = _sockets(pid)
                namespace = os.readlink(f"/proc/{pid}/ns/net")
                if namespace not in connections:
                    connections[namespace] = _connections(pid, namespace)
            except (FileNotFoundError, ProcessLookupError):  # has ended
                continue
            except OSError:
                return None
            ends |= {connections[namespace][inode] for inode in held & set(connections[namespace])}
        ends_by_host[host] = ends
    return {
        host
        for host, ends in ends_by_host.items()
        for other, others in ends_by_host.items()
        if other != host and any((peer, own) in others for own, peer in ends)
    }


def _is_launcher(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    begin = words[:_PROGRAM_WORDS]
    # sshd overwrites its command line with "sshd: root@notty"
    names = {PurePosixPath(word).name.partition(":")[0] for word in begin}
    return bool(names & _LAUNCHERS or _LAUNCHER_MODULES.intersection(begin))


def _sockets(pid: int) -> set[str]:
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            link = _SOCKET.fullmatch(os.readlink(entry.path))
        except FileNotFoundError:  # was just closed
            continue
        if link:
            found.add(link[1])
    return found


def _connections(pid: int, namespace: str) -> dict[str, Ends]:
    """Return the established connections in a process's network namespace by socket inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        if not path.exists():  # a kernel without IPv6
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                own, peer = (_endpoint(text, namespace) for text in fields[1:3])
                found[fields[9]] = own, peer
    return found


def _endpoint(text: str, namespace: str) -> str:
    end = text.removeprefix(_MAPPED)
    return f"{end} in {namespace}" if _LOOPBACK.match(end) else end
