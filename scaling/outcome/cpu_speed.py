"""How fast the CPUs of emulated nodes were while a run measured, and what its time would have been
on CPUs of the sweep's middle speed (docs/method.md, "What a CPU second is worth").
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from scaling.formats import UNKNOWN
from scaling.outcome.attainment import Metered

CPU_SPEED = "cpu_speed_percent"
"""In a run's utilisation: 100 where a second of CPU time hashed 1 GB (BLAKE2b). AWS has none."""
QUOTA_USED = "quota_used_percent"
"""In a run's utilisation: the CPU time that its nodes used, of what their quota allowed."""


def cpu_speed(run: Metered) -> float | None:
    """1 where a CPU second of the run hashed 1 GB; None where not known."""
    percent = run.utilisation.get(CPU_SPEED)
    return percent / 100 if percent else None


def at_one_speed(runs: Sequence[Metered]) -> list[float] | None:
    """By what to multiply the time of each run so that all are at the middle speed of theirs; None
    where the speed of one is not known, since two kinds of times are never mixed.

    The time that nodes did not use their quota, since they slept or waited, is none that faster
    CPUs would have shortened.
    """
    speeds = [speed for run in runs if (speed := cpu_speed(run)) is not None]
    busy = [run.utilisation[QUOTA_USED] / 100 for run in runs if QUOTA_USED in run.utilisation]
    if not runs or len(speeds) != len(runs) or len(busy) != len(runs):
        return None
    middle = median(speeds)
    return [
        1 + min(share, 1.0) * (speed / middle - 1)
        for speed, share in zip(speeds, busy, strict=True)
    ]


def format_cpu_speed(speed: float | None) -> str:
    """In GB of BLAKE2b per CPU second."""
    return UNKNOWN if speed is None else f"{speed:.2f} GB/s"
