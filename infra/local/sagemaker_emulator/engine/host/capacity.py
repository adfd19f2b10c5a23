"""The vCPUs, memory and links of local instance types, and this machine's capacity for nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sagemaker_emulator.engine.host.cgroups import cpu_limit, enclosing_groups


class Link(NamedTuple):
    """A node's network link: its rate in each direction and the latency between two nodes."""

    gbit_per_second: float
    latency_milliseconds: float


class _Emulated(NamedTuple):
    vcpus: float
    memory_bytes: int
    link: Link


# configs/instances.yaml explains the choice of links.
_TYPES = {
    "ml.local.micro": _Emulated(0.1, 2 << 30, Link(2.5, 0.05)),
    "ml.local.small": _Emulated(0.2, 2 << 30, Link(1, 0.05)),
    "ml.local.medium": _Emulated(0.5, 4 << 30, Link(2.5, 0.05)),
    "ml.local.large": _Emulated(1.0, 8 << 30, Link(5, 0.05)),
    "ml.local.small200m": _Emulated(0.2, 2 << 30, Link(0.2, 0.5)),
    "ml.local.small100m": _Emulated(0.2, 2 << 30, Link(0.1, 0.5)),
    "ml.local.small50m": _Emulated(0.2, 2 << 30, Link(0.05, 0.5)),
}
VCPUS_BY_INSTANCE_TYPE = {name: emulated.vcpus for name, emulated in _TYPES.items()}
MEMORY_BYTES_BY_INSTANCE_TYPE = {name: emulated.memory_bytes for name, emulated in _TYPES.items()}
"""Memory limits of containers; `capacity_problem` considers only vCPUs."""
LINK_BY_INSTANCE_TYPE = {name: emulated.link for name, emulated in _TYPES.items()}
"""Links between nodes that have separate networks."""


def machine_cores(groups: Iterable[Path] | None = None) -> float:
    """Return the number of cores that this process may use, given its CPU affinity and CPU quota.

    Args:
        groups: This process's cgroups and their ancestors; looked up by default.
    """
    limits = [cpu_limit(group) for group in (enclosing_groups() if groups is None else groups)]
    return min([len(os.sched_getaffinity(0)), *(limit for limit in limits if limit is not None)])


def assign_cpus(instance_count: int) -> list[int]:
    """Return the CPU to pin each node to, assigned round-robin.

    The kernel hands out quota in slices of 5 ms per CPU, so a node that migrates between CPUs
    leaves part of its quota unused on each. With 8 nodes of 0.2 vCPU on 2 cores and periods of
    10 ms, pinning cut the median step from 133-170 ms to 118-135 ms.
    """
    cpus = sorted(os.sched_getaffinity(0))
    return [cpus[index % len(cpus)] for index in range(instance_count)]


def omp_threads(vcpus: float) -> int:
    """Return the number of OpenMP threads for a node, at least one.

    With a quota of less than two CPUs, two threads would only throttle each other.
    """
    return max(1, int(vcpus))


def capacity_problem(instance_type: str, instance_count: int, cores: float) -> str | None:
    """Return why these nodes do not fit on `cores`, worded like AWS's CapacityError, or None."""
    vcpus = VCPUS_BY_INSTANCE_TYPE.get(instance_type)
    if vcpus is None:
        known = ", ".join(VCPUS_BY_INSTANCE_TYPE)
        return (
            "Unable to provision requested ML compute capacity. Please retry using a different ML"
            f" instance type: this platform runs {known}, got {instance_type}."
        )
    # Sums of 0.2 are inexact: 10 x 0.2 must fit on 2 cores.
    if vcpus * instance_count > cores + 1e-9:
        return (
            "Unable to provision requested ML compute capacity. Please retry using a different ML"
            f" instance type: {instance_count} x {instance_type} needs"
            f" {vcpus * instance_count:g} vCPUs, but this machine has {cores:g}."
        )
    return None
