"""What a sweep of a design costs before anything is measured: least, expected on the reference
curve, most.

The reference's four times are no promise about another job: the expected cost is what the design
would run on that curve, priced by the times that the config allows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from configs.models import RecommendationConfig
from scaling.design.sequential import Limits, Point, Progress, follow

REFERENCE_MINUTES: Mapping[int, float] = {1: 99.0, 2: 55.0, 4: 27.0, 8: 13.5}
"""Train time by nodes, of one run each (docs/method.md, "Speedup")."""
NOISE = 0.02
"""Assumed spread of a run, sigma of the logarithm."""
SIMULATED_SWEEPS = 50


@dataclass(frozen=True)
class DesignCost:
    """Node-hours of a design on the reference curve; `expected` is the mean of simulated sweeps."""

    least: float
    expected: float
    most: float


def reference_minutes(nodes: int) -> float:
    """The reference's time; between its counts on the line through the logarithms, beyond them at
    the efficiency of the nearest.
    """
    known = sorted(REFERENCE_MINUTES)
    if nodes >= known[-1]:
        return REFERENCE_MINUTES[known[-1]] * known[-1] / nodes
    low = max(count for count in known if count <= nodes)
    high = min(count for count in known if count > nodes)
    share = math.log(nodes / low) / math.log(high / low)
    return REFERENCE_MINUTES[low] ** (1 - share) * REFERENCE_MINUTES[high] ** share


def full_cost(counts: Sequence[int], repeats: int) -> float:
    """Node-hours of that many runs of each count on the reference curve."""
    return _node_hours([(nodes, repeat) for nodes in counts for repeat in range(repeats)])


def sequential_cost(
    counts: Sequence[int], goals: RecommendationConfig, max_repeats: int
) -> DesignCost:
    """Node-hours on the reference curve. Least: without any noise that matters; most: all repeats
    of all counts. The same for the same arguments.
    """
    limits = Limits(goals.min_efficiency, goals.min_doubling_ratio)
    generator = random.Random(1)

    def hours(draw: Callable[[], float]) -> float:
        return _node_hours(_simulate(counts, limits, max_repeats, draw).points)

    runs = [hours(lambda: generator.gauss(0, NOISE)) for _ in range(SIMULATED_SWEEPS)]
    least = hours(lambda: 0.0)
    return DesignCost(min(least, *runs), fmean(runs), full_cost(counts, max_repeats))


def _simulate(
    counts: Sequence[int], limits: Limits, max_repeats: int, draw: Callable[[], float]
) -> Progress:
    times: dict[Point, float] = {}
    while (progress := follow(times, counts, limits, max_repeats)).next_points:
        for nodes, repeat in progress.next_points:
            times[nodes, repeat] = reference_minutes(nodes) * math.exp(draw())
    return progress


def _node_hours(points: Sequence[Point]) -> float:
    return sum(nodes * reference_minutes(nodes) for nodes, _ in points) / 60
