"""Tracks the capacity that running jobs leave free, and the CPUs that their nodes are pinned to."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from sagemaker_emulator.engine.host.capacity import (
    MEMORY_BYTES_BY_INSTANCE_TYPE,
    VCPUS_BY_INSTANCE_TYPE,
    machine_cores,
)

_ROUNDING = 1e-9  # sums of 0.2 are inexact: 10 x 0.2 must fit on 2 cores
_MOST_JOBS = 32


@dataclass(frozen=True)
class _Share:
    vcpus: float  # per node
    memory_bytes: int  # of all nodes
    cpus: list[int]  # of each node


class Room:
    """The capacity that running jobs have reserved (thread-safe)."""

    def __init__(self, cores: float, cpus: Sequence[int], memory_bytes: int) -> None:
        self._cores = cores
        self._cpus = cpus
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._shares: dict[str, _Share] = {}

    @classmethod
    def of_this_machine(cls) -> Room:
        """Return a room with the capacity that this process may use."""
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(machine_cores(), sorted(os.sched_getaffinity(0)), memory_bytes)

    @property
    def most_jobs(self) -> int:
        """Maximum number of parallel one-node jobs of the smallest instance type, up to 32."""
        smallest = min(VCPUS_BY_INSTANCE_TYPE.values())
        return min(_MOST_JOBS, max(1, int(self._cores / smallest + _ROUNDING)))

    def __contains__(self, job_name: str) -> bool:
        with self._lock:
            return job_name in self._shares

    def cpus(self, job_name: str) -> list[int]:
        """Return the CPU that each node of a running job is pinned to."""
        with self._lock:
            return self._shares[job_name].cpus

    def fits(self, instance_type: str, instance_count: int) -> bool:
        """Return True if a job with these nodes fits next to the running jobs.

        A lone job always fits, since capacity_problem() has accepted it.
        """
        with self._lock:
            return self._share(instance_type, instance_count) is not None

    def take(self, job_name: str, instance_type: str, instance_count: int) -> bool:
        """Reserve capacity for a job.

        Returns:
            False if the job does not fit or a job with this name already has a reservation.
        """
        with self._lock:
            share = self._share(instance_type, instance_count)
            if share is None or job_name in self._shares:
                return False
            self._shares[job_name] = share
            return True

    def release(self, job_name: str) -> None:
        """Release a job's reservation, if any."""
        with self._lock:
            self._shares.pop(job_name, None)

    def _share(self, instance_type: str, count: int) -> _Share | None:
        vcpus = VCPUS_BY_INSTANCE_TYPE.get(instance_type, 0.0)
        memory_bytes = MEMORY_BYTES_BY_INSTANCE_TYPE.get(instance_type, 0) * count
        left = dict.fromkeys(self._cpus, 1.0)
        for share in self._shares.values():
            for cpu in share.cpus:
                left[cpu] -= share.vcpus
        cpus = []
        for _ in range(count):
            # the first of the least used CPUs
            cpu = max(self._cpus, key=lambda cpu: round(left[cpu], 6))
            left[cpu] -= vcpus
            cpus.append(cpu)
        if self._shares:
            shares = self._shares.values()
            is_crowded = min(left.values()) < -_ROUNDING  # a node's quota is on one CPU
            used_vcpus = sum(share.vcpus * len(share.cpus) for share in shares)
            used_bytes = sum(share.memory_bytes for share in shares)
            if (
                is_crowded
                or used_vcpus + vcpus * count > self._cores + _ROUNDING
                or used_bytes + memory_bytes > self._memory_bytes
            ):
                return None
        return _Share(vcpus, memory_bytes, cpus)
