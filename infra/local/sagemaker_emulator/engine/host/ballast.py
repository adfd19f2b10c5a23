"""Keeps the CPUs of a job's nodes from idling during measurements.

A CPU that idles between a node's turns is slower when the node resumes (because of sleep states, a
lower frequency, or a busier sibling). A lone node would therefore do less work per CPU second than
one of eight nodes, and speedups would be overestimated. With a SCHED_IDLE process on each CPU, a
CPU second is worth the same at every node count. The work of these processes also measures the
speed of the CPUs (docs/method.md, "Attainment" and "What a CPU second is worth";
`benchmarks/emulation.py`).
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import NamedTuple

from sagemaker_emulator.tether import tethered

_RECORD = struct.Struct("dd")
"""A process's CPU seconds and the number of bytes that it has hashed."""
_PROGRAM = """
import os, struct, sys, time
from hashlib import blake2b
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
try:
    open("/proc/self/autogroup", "w").write("19")
except OSError:
    "The kernel groups processes by sessions only where it was built to."
block, hashed = bytes(65536), 0
while True:
    os.pwrite(1, struct.pack("dd", time.process_time(), hashed), 0)
    for _ in range(32):
        blake2b(block).digest()
    hashed += 32 * len(block)
"""
_END_SECONDS = 10.0


class Ran(NamedTuple):
    """CPU time and work of the ballast on a CPU."""

    cpu_seconds: float = 0.0
    hashed_bytes: float = 0.0

    def plus(self, other: Ran) -> Ran:
        """Return the sum of both CPU times and amounts of work."""
        return Ran(self.cpu_seconds + other.cpu_seconds, self.hashed_bytes + other.hashed_bytes)


class _Process(NamedTuple):
    cpu: int
    started: subprocess.Popen[bytes]
    record: int  # file descriptor

    def ran(self) -> Ran:
        """Return the CPU time and work of the process so far; zero before it begins."""
        content = os.pread(self.record, _RECORD.size, 0)
        return Ran(*_RECORD.unpack(content)) if len(content) == _RECORD.size else Ran()


_lock = threading.Lock()
_running: list[_Process] = []
_ended: dict[int, Ran] = {}


class Ballast:
    """One process per CPU from start() to stop(). The processes also end when this process ends."""

    def __init__(self, cpus: Iterable[int]) -> None:
        self._cpus = sorted(set(cpus))
        self._processes: list[_Process] = []

    def start(self) -> None:
        """Start a process on each CPU.

        Raises:
            OSError: If a process cannot be started.
        """
        for cpu in self._cpus:
            record = os.memfd_create("ballast")
            try:
                started = subprocess.Popen(
                    tethered(sys.executable, "-I", "-S", "-c", _PROGRAM, str(cpu)),
                    stdin=subprocess.DEVNULL,
                    stdout=record,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # the kernel may share CPU time by session
                )
            except OSError:
                os.close(record)
                raise
            process = _Process(cpu, started, record)
            self._processes.append(process)
            with _lock:
                _running.append(process)

    def stop(self) -> None:
        """Kill the processes. You can call this at any time, and more than once."""
        for process in self._processes:
            process.started.kill()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.started.wait(_END_SECONDS)
            with _lock:
                _ended[process.cpu] = _ended.get(process.cpu, Ran()).plus(process.ran())
                _running.remove(process)
            os.close(process.record)
        self._processes.clear()


def ballast_ran() -> dict[int, Ran]:
    """Return the CPU time and work of the ballast by CPU, summed over all jobs of this process.

    Each of several concurrent jobs starts its own ballast.
    """
    with _lock:
        found = dict(_ended)
        for process in _running:
            found[process.cpu] = found.get(process.cpu, Ran()).plus(process.ran())
    return found
