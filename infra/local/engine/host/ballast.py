"""Keeps the CPUs of a job's nodes from idling while these measure.

A CPU that idles between the turns of a node is slower when the node comes back: it has slept, its
clock and what shares its core with it have changed. So a node alone on a quiet machine did less
work in a second of CPU time than one of eight, and the speedup was too good by that. With a
process of the kernel's idle class on each CPU, which runs when nothing else wants to, a second is
worth the same at every node count (docs/method.md, "Attainment"; `benchmarks/emulation.py`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from infra.local.tether import tethered

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_UTIME = 11
"""Its place in /proc/PID/stat behind the program's name; stime is next."""
_PROGRAM = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
try:
    open("/proc/self/autogroup", "w").write("19")
except OSError:
    "The kernel groups processes by sessions only where it was built to."
while True:
    pass
"""
_END_SECONDS = 10.0


_lock = threading.Lock()
_running: dict[subprocess.Popen[bytes], int] = {}
_ended_seconds: dict[int, float] = {}


class Ballast:
    """One process per CPU, from start() to stop(); they end with this process, too."""

    def __init__(self, cpus: Iterable[int]) -> None:
        self._cpus = sorted(set(cpus))
        self._process_by_cpu: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Fill the CPUs. Raises OSError where no process can be started."""
        for cpu in self._cpus:
            process = subprocess.Popen(
                tethered(sys.executable, "-I", "-S", "-c", _PROGRAM, str(cpu)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # by sessions the kernel may share the CPU out
            )
            self._process_by_cpu[cpu] = process
            with _lock:
                _running[process] = cpu

    def stop(self) -> None:
        """End them. May be called at any time, and again."""
        for cpu, process in self._process_by_cpu.items():
            with _lock:
                _ended_seconds[cpu] = _ended_seconds.get(cpu, 0.0) + _cpu_seconds(process)
                del _running[process]
            process.kill()
        for process in self._process_by_cpu.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        self._process_by_cpu.clear()


def ballast_seconds() -> dict[int, float]:
    """By CPU, what the ballast of all jobs of this process has run since that began: where jobs
    run at once, each has its own.
    """
    with _lock:
        found = dict(_ended_seconds)
        for process, cpu in _running.items():
            found[cpu] = found.get(cpu, 0.0) + _cpu_seconds(process)
    return found


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """0 for one that has ended."""
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text(errors="replace")
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[_UTIME : _UTIME + 2]
    return (int(user) + int(system)) / _TICKS_PER_SECOND
