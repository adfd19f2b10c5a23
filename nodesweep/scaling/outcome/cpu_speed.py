"""CPU speed of emulated nodes during a run (docs/method.md, "What a CPU second is worth")."""

from __future__ import annotations

from nodesweep.scaling.formats import UNKNOWN
from nodesweep.scaling.outcome.attainment import Metered

CPU_SPEED = "cpu_speed_percent"
"""Key in a run's utilization: 100 if a CPU second hashed 1 GB (BLAKE2b). AWS reports none."""
QUOTA_USED = "quota_used_percent"
"""Key in a run's utilization: the CPU time that its nodes used, in percent of their quota."""


def cpu_speed(run: Metered) -> float | None:
    """Return the GB (BLAKE2b) that a CPU second of the run hashed; None if unknown."""
    percent = run.utilisation.get(CPU_SPEED)
    return percent / 100 if percent else None


def format_cpu_speed(speed: float | None) -> str:
    """Return the speed in GB of BLAKE2b per CPU second."""
    return UNKNOWN if speed is None else f"{speed:.2f} GB/s"
