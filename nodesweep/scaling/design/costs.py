"""The minimum, expected and maximum cost of a design, before anything is measured.

The costs show how the designs compare on the reference curve (docs/method.md, "Speedup"), whose
four times predict nothing about a different job. The expected cost is the cost of the runs that the
design would request on that curve, within the repeats that the config allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodesweep.scaling.design.base import Point

REFERENCE_MINUTES: Mapping[int, float] = {1: 99.0, 2: 55.0, 4: 27.0, 8: 13.5}
"""Train time of the reference in minutes by node count."""
NOISE = 0.02
"""Assumed spread of run times: the standard deviation of their logarithms."""


@dataclass(frozen=True)
class DesignCost:
    """Minimum, expected and maximum node-hours of a design on the reference curve."""

    least: float
    expected: float
    most: float


@dataclass(frozen=True)
class Estimate:
    """The cost of a design, labeled with its name and repeats; `note` states the assumptions."""

    label: str
    cost: DesignCost
    note: str = ""


def reference_minutes(nodes: int) -> float:
    """Return the reference's train time in minutes at any node count.

    Between the reference's node counts, the time is interpolated on a log-log scale. Above the
    largest one, the efficiency is assumed to stay the same.
    """
    known = sorted(REFERENCE_MINUTES)
    if nodes >= known[-1]:
        return REFERENCE_MINUTES[known[-1]] * known[-1] / nodes
    low = max(count for count in known if count <= nodes)
    high = min(count for count in known if count > nodes)
    share = math.log(nodes / low) / math.log(high / low)
    return REFERENCE_MINUTES[low] ** (1 - share) * REFERENCE_MINUTES[high] ** share


def full_cost(counts: Sequence[int], repeats: int) -> float:
    """Return the node-hours of `repeats` runs at each node count on the reference curve."""
    return _node_hours([(nodes, repeat) for nodes in counts for repeat in range(repeats)])


def _node_hours(points: Sequence[Point]) -> float:
    return sum(nodes * reference_minutes(nodes) for nodes, _ in points) / 60
