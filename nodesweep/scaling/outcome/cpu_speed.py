"""The CPU speed of emulated nodes during a run (docs/method.md, "What a CPU second is worth")."""

from __future__ import annotations

from nodesweep.scaling.formats import UNKNOWN
from nodesweep.scaling.outcome.attainment import Metered

CPU_SPEED = "cpu_speed_percent"
"""Key in a run's utilization: 100 if a CPU second hashes 1 GB (BLAKE2b). AWS does not report it."""
QUOTA_USED = "quota_used_percent"
"""Key in a run's utilization: the CPU time of its nodes, as a percentage of their quota."""

ALLOCATED_USED = "allocated_cpu_percent"
"""Key in a run's utilization: the CPU time of the job, as a percentage of its allocation."""


def cpu_speed(run: Metered) -> float | None:
    """Return the CPU speed in GB hashed (BLAKE2b) per CPU second; None if unknown."""
    percent = run.utilisation.get(CPU_SPEED)
    return percent / 100 if percent else None


def format_cpu_speed(speed: float | None) -> str:
    """Return the CPU speed as text, in GB hashed per CPU second."""
    return UNKNOWN if speed is None else f"{speed:.2f} GB/s"
