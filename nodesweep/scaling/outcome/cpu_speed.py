"""CPU speed of emulated nodes during a run (docs/method.md, "What a CPU second is worth")."""

from __future__ import annotations

from nodesweep.scaling.formats import UNKNOWN
from nodesweep.scaling.outcome.attainment import Metered

CPU_SPEED = "cpu_speed_percent"
"""Key in a run's utilization: 100 if 1 GB was hashed (BLAKE2b) per CPU second. Not set on AWS."""
QUOTA_USED = "quota_used_percent"
"""Key in a run's utilization: the CPU time that its nodes used, as a percentage of their quota."""

ALLOCATED_USED = "allocated_cpu_percent"
"""Key in a run's utilization: CPU time of a whole job, as a percentage of that allocated to it."""


def cpu_speed(run: Metered) -> float | None:
    """Return how many GB were hashed (BLAKE2b) per CPU second of the run; None if unknown."""
    percent = run.utilisation.get(CPU_SPEED)
    return percent / 100 if percent else None


def format_cpu_speed(speed: float | None) -> str:
    """Return the speed in GB of BLAKE2b per CPU second."""
    return UNKNOWN if speed is None else f"{speed:.2f} GB/s"
