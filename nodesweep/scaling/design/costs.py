"""The cost of a design before anything is measured: least, expected on the reference curve, most.

The reference's four times predict nothing about another job. The expected cost is that of the runs
that the design would make on that curve, at the run time that the config allows.
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
"""Train time of one run each by node count (docs/method.md, "Speedup")."""
NOISE = 0.02
"""Assumed spread of a run: sigma of the logarithm."""
SIMULATED_SWEEPS = 50
REFERENCE_STEPS = 5000
"""Assumed steps of a run; the reference does not report its number."""
STEP_NOISE = 0.05
"""Assumed spread of a step as a share of the mean."""
_LEAST_PROBE_STEPS = 30  # 10 warm-up and 20 timed steps: infra/image/nodesweep_clock.py
_WARM_UP_STEPS = 10
_NORMAL = 1.96  # two-sided 95% quantile


@dataclass(frozen=True)
class DesignCost:
    """Node-hours of a design on the reference curve; `expected` is the mean of simulated sweeps."""

    least: float
    expected: float
    most: float


def reference_minutes(nodes: int) -> float:
    """Return the reference's train time in minutes at any node count.

    Between its counts the time is interpolated on a log-log scale; beyond them the efficiency of
    the nearest count is kept.
    """
    known = sorted(REFERENCE_MINUTES)
    if nodes >= known[-1]:
        return REFERENCE_MINUTES[known[-1]] * known[-1] / nodes
    low = max(count for count in known if count <= nodes)
    high = min(count for count in known if count > nodes)
    share = math.log(nodes / low) / math.log(high / low)
    return REFERENCE_MINUTES[low] ** (1 - share) * REFERENCE_MINUTES[high] ** share


def full_cost(counts: Sequence[int], repeats: int) -> float:
    """Return the node-hours of that many runs of each count on the reference curve."""
    return _node_hours([(nodes, repeat) for nodes in counts for repeat in range(repeats)])


def sequential_cost(
    counts: Sequence[int], goals: RecommendationConfig, max_repeats: int
) -> DesignCost:
    """Return the sequential design's node-hours on the reference curve; deterministic.

    The least is the cheapest simulated sweep, one without noise included. The most is every repeat
    of every count.
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
    """Return the probe design's node-hours on the reference curve, without start-up.

    The least has the fewest steps per probe and the validation run at the cheapest count; the most
    has max_steps per probe and the validation run at the most expensive count. With several
    instance types, each is assumed to be as fast as the reference, so that the expected cost drops
    none of them; for the least, one arm is left after the second pass.

    Args:
        counts: The sweep's node counts.
        goals: The limits of the recommendation, which decide the validation run's count.
        repeats: Probes per count.
        precision: Target half width of the 95% interval of a step's time, as a share of the time.
        max_steps: Steps after which a probe ends at the latest.
        types: Number of instance types.
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
    """Return the largest count that passes the limits on the reference curve, else the smallest."""
    base = min(counts)

    def passes(nodes: int) -> bool:
        efficiency = reference_minutes(base) * base / reference_minutes(nodes) / nodes
        half = reference_minutes(nodes // 2) if nodes // 2 in counts and nodes % 2 == 0 else None
        ratio = math.inf if half is None else half / reference_minutes(nodes)
        return efficiency >= goals.min_efficiency and ratio >= goals.min_doubling_ratio

    return max((nodes for nodes in counts if nodes != base and passes(nodes)), default=base)


def _node_hours(points: Sequence[Point]) -> float:
    return sum(nodes * reference_minutes(nodes) for nodes, _ in points) / 60
