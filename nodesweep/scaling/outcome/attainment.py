"""Attainment: the share of the requested CPU that emulated nodes got (docs/method.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Protocol

from nodesweep.scaling.formats import format_percent

ATTAINED = "attained_percent"
"""Key in a run's utilization: the share of the requested CPU that the most affected node got.

AWS does not report it.
"""
MOST_REPEATS = 2
"""Maximum number of times that a planned run is repeated because its nodes were contended."""
SAME_SHARE = 0.04
"""Largest difference between two attained shares that count as equal.

A share is accurate to about two points (benchmarks/results/emulation_told-2026-11-26.json).
"""
LEAST_BOUNDED = 0.50
"""Below this share, the bounds of the undisturbed time are too wide to use.

Eight nodes of 0.1 vCPU attained 55 to 57% when the whole run had half of two CPUs
(benchmarks/first_run.py).
"""
CONNECTED = "connected_percent"
"""Key in a run's utilization: the share of samples with a connection to a different node.

A sample counts if the program of the sampled node had such a connection. Single-node jobs and AWS
do not report the share.
"""
MOST_EFFICIENCY_ERROR = 0.05
"""Largest acceptable error of an efficiency due to CPU contention.

With a larger error, an efficiency could seem to meet a limit that it misses.
"""
LEAST_ATTAINED = 1 / (1 + MOST_EFFICIENCY_ERROR)
"""Below this share, 95.2%, the error of the efficiency can exceed MOST_EFFICIENCY_ERROR.

Nodes that attained the share a would have taken at least a·T instead of T. With the undisturbed
efficiency E,

    measured E = E · a(N) / a(1)

E is too low by at most E · (1 - a(N)), and too high by at most E · (1 / a(1) - 1); if both are
contended, the errors partly cancel. The second error is larger, and largest at E = 1, where it
equals the allowed error at a = 1 / (1 + error).
"""


class Metered(Protocol):
    """A run that has a utilization: a JobOutcome or a Point."""

    @property
    def utilisation(self) -> Mapping[str, float]:
        """Values in percent, by name."""


def attained_share(run: Metered) -> float | None:
    """Return the share of the requested CPU, 0 to 1, that the most affected node got, or None."""
    percent = run.utilisation.get(ATTAINED)
    return None if percent is None else percent / 100


def is_contended(run: Metered) -> bool:
    """Return True if a node attained less than LEAST_ATTAINED; False if unknown."""
    share = attained_share(run)
    return share is not None and share < LEAST_ATTAINED


def is_contention_steady(runs: Iterable[Metered]) -> bool:
    """Return True if two of these runs were contended and attained the same share.

    This means that the cause persists, for example because the job itself needs nearly the whole
    machine. A repeat would be equally contended.
    """
    shares = sorted(attained_share(run) or 0.0 for run in runs if is_contended(run))
    return any(round(more - less, 6) <= SAME_SHARE for less, more in pairwise(shares))


def soundness(run: Metered) -> tuple[bool, float]:
    """Return a sort key by which the least contended run comes last; undisturbed runs are equal."""
    return (True, 1.0) if not is_contended(run) else (False, attained_share(run) or 0.0)


def least_time_share(runs: Iterable[Metered]) -> float | None:
    """Return the smallest share of its measured time that a run would have taken undisturbed.

    Runs with an unknown attained share count as undisturbed. None if there are no runs.
    """
    shares = [attained_share(run) if is_contended(run) else 1.0 for run in runs]
    known = [share for share in shares if share is not None]
    return min(known, default=None) if len(known) == len(shares) else None


def least_attained(runs: Iterable[Metered]) -> float | None:
    """Return the smallest attained share, 0 to 1, of several runs; None if all are unknown."""
    known = [share for run in runs if (share := attained_share(run)) is not None]
    return min(known, default=None)


def format_attained(share: float | None) -> str:
    """Return a share in percent, rounded down to a whole number.

    Near LEAST_ATTAINED, it has one decimal, to show that 95.1% is below the limit of 95.2%.
    """
    if share is None:
        return format_percent(None)
    tenths = math.floor(round(share * 1000, 6))
    if tenths // 10 == math.floor(LEAST_ATTAINED * 100):
        return f"{tenths / 10:.1f}%"
    return format_percent(tenths // 10 / 100)


def format_least_attained() -> str:
    """Return LEAST_ATTAINED in percent, rounded up to one decimal."""
    return f"{math.ceil(LEAST_ATTAINED * 1000) / 10:.1f}%"
