"""Finds and kills all processes of a node.

Processes are found by cgroup, by session, by marker variables and by descent because every way has
a gap: cgroups may not be writable, daemons leave their session, programs can clear their
environment, and orphans lose their parent. This module uses only the standard library because the
supervisor imports it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MARKER_STATE = "NODESWEEP_STATE"  # identifies the engine by a digest of its state folder
MARKER_NODE = "NODESWEEP_NODE"  # <job>/<host>, or the builder's mark while an image is built

_ZOMBIE = b"Z"


@dataclass(frozen=True)
class Process:
    """The ids of a live process that show which node it belongs to."""

    pid: int
    parent_pid: int
    session_id: int


@dataclass(frozen=True)
class Membership:
    """The criteria by which a process belongs to a node, a job or an engine."""

    state_id: str | None = None
    node_prefix: str = ""  # "<job>/<host>" for a node, "<job>/" for a job, "" for an engine
    session_ids: frozenset[int] = frozenset()
    cgroups: tuple[Path, ...] = ()
    ancestor_pids: frozenset[int] = frozenset()  # their descendants are members, but not they

    def members(self) -> set[int]:
        """Return the process ids of the live members, except the caller's."""
        processes = list_processes()
        alive = {process.pid for process in processes}
        found = {process.pid for process in processes if process.session_id in self.session_ids}
        found |= {pid for cgroup in self.cgroups for pid in cgroup_pids(cgroup)} & alive
        if self.state_id is not None:
            found |= {process.pid for process in processes if self._is_marked(process.pid)}
        found |= descendants(processes, found | self.ancestor_pids)
        return found - {os.getpid()}

    def _is_marked(self, pid: int) -> bool:
        entries = _environment_entries(pid)
        if f"{MARKER_STATE}={self.state_id}".encode() not in entries:
            return False
        prefix = f"{MARKER_NODE}={self.node_prefix}".encode()
        # A node's prefix must match to the end: "job/algo-1" is not "job/algo-10".
        return any(
            entry == prefix if prefix[-1:] not in (b"/", b"=") else entry.startswith(prefix)
            for entry in entries
        )


def list_processes() -> list[Process]:
    """Return all live processes except zombies."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read_stat(int(name))):
            found.append(process)
    return found


def node_marks(state_id: str) -> set[str]:
    """Return the node marks of live processes that carry this state's mark."""
    state, node = f"{MARKER_STATE}={state_id}".encode(), f"{MARKER_NODE}=".encode()
    entries_of_all = [_environment_entries(process.pid) for process in list_processes()]
    marks = [
        entry
        for entries in entries_of_all
        if state in entries
        for entry in entries
        if entry.startswith(node)
    ]
    return {mark.removeprefix(node).decode(errors="replace") for mark in marks}


def _environment_entries(pid: int) -> list[bytes]:
    try:
        return _read_whole(f"/proc/{pid}/environ").split(b"\0")
    except OSError:  # has ended or belongs to another user, so it is not a member
        return []


def _read_stat(pid: int) -> Process | None:
    try:
        stat = _read_whole(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The program's name, in parentheses, may contain spaces and parentheses.
    state, parent_pid, _group, session_id = stat.rpartition(b")")[2].split(None, 4)[:4]
    if state == _ZOMBIE:
        return None
    return Process(pid, int(parent_pid), int(session_id))


def _read_whole(path: str) -> bytes:
    """Return a file's content in less time than Path.read_bytes() takes."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def cgroup_pids(cgroup: Path) -> set[int]:
    """Return the ids of the processes in a cgroup; empty if the cgroup does not exist."""
    try:
        return {int(line) for line in (cgroup / "cgroup.procs").read_text().split()}
    except OSError:
        return set()


def process_threads(pids: Iterable[int]) -> list[int]:
    """Return the thread ids of these processes, omitting processes that have ended."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found += [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return found


def descendants(processes: Iterable[Process], roots: Iterable[int]) -> set[int]:
    """Return the ids of all descendants of `roots`, excluding the roots."""
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent_pid, []).append(process.pid)
    found: set[int] = set()
    pending = list(roots)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def signal_members(
    membership: Membership, signal_number: int, without: frozenset[int] = frozenset()
) -> set[int]:
    """Send a signal to all members except `without`, and return the ids of the recipients.

    Membership is checked again after the pidfds are opened, so a reused process id is never
    signaled.
    """
    handles: dict[int, int] = {}
    try:
        for pid in membership.members() - without:
            with contextlib.suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
        if not handles:
            return set()
        still_members = membership.members() & handles.keys()
        for pid in still_members:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handles[pid], signal_number)
        return still_members
    finally:
        for handle in handles.values():
            os.close(handle)


def kill_all(
    membership: Membership,
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> set[int]:
    """Send SIGKILL to members until none is left, and return the ids of any that survive.

    This is repeated until the timeout because members can fork. Only processes in uninterruptible
    sleep (D state) survive.
    """
    deadline = clock() + timeout_seconds
    pause_seconds = 0.01
    while True:
        signalled = signal_members(membership, signal.SIGKILL)
        if not signalled and not membership.members():
            return set()
        if clock() >= deadline:
            return membership.members()
        sleep(pause_seconds)
        # One or two passes kill a tree, but processes in D state can take long.
        pause_seconds = min(pause_seconds * 2, 0.2)
