"""Attainment: the share of the requested CPU that emulated nodes got.

docs/method.md, "Attainment", explains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Protocol

from nodesweep.scaling.formats import format_percent

ATTAINED = "attained_percent"
"""Key in a run's utilization: the share of the requested CPU on the most affected node.

AWS reports no such value.
"""
MOST_REPEATS = 2
"""Maximum number of times that a planned run is repeated because its nodes were contended."""
SAME_SHARE = 0.04
"""Two runs attained the same share if they differ by no more than this.

A share is accurate to about two points (benchmarks/results/emulation_told-2026-11-26.json).
"""
LEAST_BOUNDED = 0.50
"""Below this share the undisturbed time is too uncertain to be judged by its bounds.

Eight nodes of 0.1 vCPU attained 55 to 57% where the whole run had half of two CPUs
(benchmarks/first_run.py).
"""
CONNECTED = "connected_percent"
"""Key in a run's utilization: the share of samples with a connection to another node.

It counts the samples of each node in which the node's program had such a connection. Single-node
jobs and AWS have no such value.
"""
MOST_EFFICIENCY_ERROR = 0.05
"""Largest shift of an efficiency by CPU contention that is accepted.

A larger shift could carry an efficiency over a limit that it misses.
"""
LEAST_ATTAINED = 1 / (1 + MOST_EFFICIENCY_ERROR)
"""Below this share, 95.2%, the efficiency may be off by more than MOST_EFFICIENCY_ERROR.

Nodes that attained the share a would have taken at least a·T instead of T. With the efficiency E at
full shares

    measured E = E · a(N) / a(1)

E is too low by at most E · (1 - a(N)), and too high by at most E · (1 / a(1) - 1); if both are
contended, the errors partly cancel. The second error is larger, and largest at E = 1, where it
equals the allowed error at a = 1 / (1 + error).
"""


class Metered(Protocol):
    """A run with its utilization: an outcome, or a point of a report."""

    @property
    def utilisation(self) -> Mapping[str, float]:
        """Values in percent by name."""


def attained_share(run: Metered) -> float | None:
    """Return the share of the requested CPU, 0 to 1, on the most affected node; None if unknown."""
    percent = run.utilisation.get(ATTAINED)
    return None if percent is None else percent / 100


def is_contended(run: Metered) -> bool:
    """Return True if a node got less than LEAST_ATTAINED; False if unknown."""
    share = attained_share(run)
    return share is not None and share < LEAST_ATTAINED


def is_contention_steady(runs: Iterable[Metered]) -> bool:
    """Return True if two of these runs were contended and attained the same share.

    The cause persists, such as a job that itself needs nearly the whole machine, so another run
    would be as contended.
    """
    shares = sorted(attained_share(run) or 0.0 for run in runs if is_contended(run))
    return any(round(more - less, 6) <= SAME_SHARE for less, more in pairwise(shares))


def soundness(run: Metered) -> tuple[bool, float]:
    """Return a sort key that puts the least contended run last; undisturbed runs are equal."""
    return (True, 1.0) if not is_contended(run) else (False, attained_share(run) or 0.0)


def least_time_share(runs: Iterable[Metered]) -> float | None:
    """Return the smallest share of its time that any of these runs would have taken undisturbed.

    A run whose attained share is unknown counts as undisturbed. None if there are no runs.
    """
    shares = [attained_share(run) if is_contended(run) else 1.0 for run in runs]
    known = [share for share in shares if share is not None]
    return min(known, default=None) if len(known) == len(shares) else None


def least_attained(runs: Iterable[Metered]) -> float | None:
    """Return the least attained share, 0 to 1, of several runs; None if all are unknown."""
    known = [share for run in runs if (share := attained_share(run)) is not None]
    return min(known, default=None)


def format_attained(share: float | None) -> str:
    """Return a share in percent, rounded down to a whole number.

    It has one decimal where a whole number would look equal to LEAST_ATTAINED: 95.1% is below it.
    """
    if share is None:
        return format_percent(None)
    tenths = math.floor(round(share * 1000, 6))
    if tenths // 10 == math.floor(LEAST_ATTAINED * 100):
        return f"{tenths / 10:.1f}%"
    return format_percent(tenths // 10 / 100)


def format_least_attained() -> str:
    """Return LEAST_ATTAINED in percent, rounded up to one decimal: that much is enough."""
    return f"{math.ceil(LEAST_ATTAINED * 1000) / 10:.1f}%"
