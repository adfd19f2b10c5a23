"""How many vCPUs the local instance types have, and whether this machine can hold a job's nodes."""

from __future__ import annotations

import os

VCPUS_BY_INSTANCE_TYPE = {"ml.local.small": 0.2, "ml.local.medium": 0.5, "ml.local.large": 1.0}


def machine_cores() -> int:
    """The cores this process may use: a container's or taskset's affinity counts, not the board's."""
    return len(os.sched_getaffinity(0))


def cpu_of_each_node(instance_count: int) -> list[int | None]:
    """Nodes dealt out over the CPUs in turn, each to stay on its own.

    The kernel hands a quota out per CPU in slices (5 ms): a node that wanders between CPUs leaves parts of its 2 ms per
    10 ms period unused on each. With 8 nodes on 2 cores, staying took the median step from 133-170 to 118-135 ms.
    """
    cpus = sorted(os.sched_getaffinity(0))
    return [cpus[index % len(cpus)] for index in range(instance_count)]


def omp_threads(vcpus: float) -> int:
    """One thread at least: two threads under a quota of less than two CPUs only throttle each other."""
    return max(1, int(vcpus))


def capacity_problem(instance_type: str, instance_count: int, cores: int) -> str | None:
    """Why `cores` can't hold that many nodes, in the words AWS uses behind "CapacityError: ", or None."""
    vcpus = VCPUS_BY_INSTANCE_TYPE.get(instance_type)
    if vcpus is None:
        known = ", ".join(VCPUS_BY_INSTANCE_TYPE)
        return (
            "Unable to provision requested ML compute capacity. Please retry using a different ML instance type: "
            f"this platform runs {known}, got {instance_type}."
        )
    # Sums of 0.2 are not exact: 10 x 0.2 on 2 cores must fit.
    if vcpus * instance_count > cores + 1e-9:
        return (
            "Unable to provision requested ML compute capacity. Please retry using a different ML instance type: "
            f"{instance_count} x {instance_type} asks for {vcpus * instance_count:g} vCPUs, this machine has {cores}."
        )
    return None
