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

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.design.sequential import Limits, Point, run_through

REFERENCE_MINUTES: Mapping[int, float] = {1: 99.0, 2: 55.0, 4: 27.0, 8: 13.5}
"""Train time by nodes, of one run each (docs/method.md, "Speedup")."""
NOISE = 0.02
"""Assumed spread of a run, sigma of the logarithm."""
SIMULATED_SWEEPS = 50
REFERENCE_STEPS = 5000
"""Assumed steps of a run: the reference does not say how many it made."""
STEP_NOISE = 0.05
"""Assumed spread of a step, as a share of the mean."""
_LEAST_PROBE_STEPS = 30  # ten to warm up and twenty to look at: infra/image/nodesweep_clock.py
_WARM_UP_STEPS = 10
_NORMAL = 1.96  # 95 %, both-sided


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
    minutes = {nodes: reference_minutes(nodes) for nodes in counts}
    node_minutes = {nodes: nodes * minutes[nodes] for nodes in counts}
    generator = random.Random(1)

    def hours(draw: Callable[[], float]) -> float:
        points = run_through(
            counts, limits, max_repeats, lambda nodes: minutes[nodes] * math.exp(draw())
        )
        return sum(node_minutes[nodes] for nodes, _ in points) / 60

    runs = [hours(lambda: generator.gauss(0, NOISE)) for _ in range(SIMULATED_SWEEPS)]
    least = hours(lambda: 0.0)
    return DesignCost(min(least, *runs), fmean(runs), full_cost(counts, max_repeats))


def probe_cost(
    counts: Sequence[int],
    goals: RecommendationConfig,
    repeats: int,
    precision: float,
    max_steps: int,
    types: int = 1,
) -> DesignCost:
    """Node-hours on the reference curve, start-up not included: the probes by how many steps each
    makes, and the check. Least: the fewest steps, and a check where it is cheapest; most: max_steps
    each, and a check where it is dearest.

    Of several instance types each is taken to be as fast as the reference, so that none is expected
    to be beaten; least: after the second pass one arm is left.
    """
    steady = (_NORMAL * STEP_NOISE / precision) ** 2
    whole = full_cost(counts, repeats) * types
    checks = {nodes: full_cost([nodes], 1) for nodes in counts}
    least = whole
    if types > 1 and repeats > 2:
        least = full_cost(counts, 2) * types + (repeats - 2) * min(checks.values())

    def hours(whole: float, steps: float, check: float) -> float:
        made = min(max(steps, _LEAST_PROBE_STEPS), max_steps, REFERENCE_STEPS)
        return whole * made / REFERENCE_STEPS + check

    return DesignCost(
        least=hours(least, 0, min(checks.values())),
        expected=hours(whole, _WARM_UP_STEPS + steady, checks[_reference_choice(counts, goals)]),
        most=hours(whole, max_steps, max(checks.values())),
    )


def _reference_choice(counts: Sequence[int], goals: RecommendationConfig) -> int:
    """The largest count that passes the limits by the reference's own times, else the smallest."""
    base = min(counts)

    def passes(nodes: int) -> bool:
        efficiency = reference_minutes(base) * base / reference_minutes(nodes) / nodes
        half = reference_minutes(nodes // 2) if nodes // 2 in counts and nodes % 2 == 0 else None
        ratio = math.inf if half is None else half / reference_minutes(nodes)
        return efficiency >= goals.min_efficiency and ratio >= goals.min_doubling_ratio

    return max((nodes for nodes in counts if nodes != base and passes(nodes)), default=base)


def _node_hours(points: Sequence[Point]) -> float:
    return sum(nodes * reference_minutes(nodes) for nodes, _ in points) / 60
