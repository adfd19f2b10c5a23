"""How fast the CPUs of emulated nodes were while a run measured
(docs/method.md, "What a CPU second is worth").
"""

from __future__ import annotations

from nodesweep.scaling.formats import UNKNOWN
from nodesweep.scaling.outcome.attainment import Metered

CPU_SPEED = "cpu_speed_percent"
"""In a run's utilisation: 100 where a second of CPU time hashed 1 GB (BLAKE2b). AWS has none."""
QUOTA_USED = "quota_used_percent"
"""In a run's utilisation: the CPU time that its nodes used, of what their quota allowed."""


def cpu_speed(run: Metered) -> float | None:
    """1 where a CPU second of the run hashed 1 GB; None where not known."""
    percent = run.utilisation.get(CPU_SPEED)
    return percent / 100 if percent else None


def format_cpu_speed(speed: float | None) -> str:
    """In GB of BLAKE2b per CPU second."""
    return UNKNOWN if speed is None else f"{speed:.2f} GB/s"
