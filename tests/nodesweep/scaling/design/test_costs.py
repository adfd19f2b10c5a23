"""Costs of each design on the reference curve, before any measurement."""

from __future__ import annotations

import math
import random

import pytest

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.design import sequential
from nodesweep.scaling.design.costs import full_cost, reference_minutes
from nodesweep.scaling.design.probe import probe_cost
from nodesweep.scaling.design.sequential import Limits, replay, sequential_cost, simulate_points

COUNTS = (1, 2, 4, 8)


def test_the_reference_and_what_lies_between_and_beyond_its_counts():
    assert [reference_minutes(nodes) for nodes in COUNTS] == pytest.approx([99, 55, 27, 13.5])
    assert 27 < reference_minutes(3) < 55
    assert 16 * reference_minutes(16) == pytest.approx(8 * 13.5)


def test_a_full_design_costs_the_same_whatever_comes():
    once = (99 + 2 * 55 + 4 * 27 + 8 * 13.5) / 60
    assert full_cost(COUNTS, 1) == pytest.approx(once)
    assert full_cost(COUNTS, 5) == pytest.approx(5 * once)


def test_a_sequential_design_costs_a_third_where_the_answer_is_clear():
    cost = sequential_cost(COUNTS, RecommendationConfig(), 5)
    full = full_cost(COUNTS, 5)
    again = (99 + 4 * 27 + 8 * 13.5) / 60
    assert cost.least == pytest.approx(full / 5 + again)
    assert cost.least <= cost.expected < 0.45 * full
    assert cost.most == full
    assert sequential_cost(COUNTS, RecommendationConfig(), 5) == cost


def test_a_limit_near_the_curve_costs_more():
    near = sequential_cost(COUNTS, RecommendationConfig(min_efficiency=0.9), 5)
    assert near.expected > 1.5 * sequential_cost(COUNTS, RecommendationConfig(), 5).expected


def test_probes_cost_a_part_of_their_steps_and_one_check():
    """At 1%: (1.96 x 5% / 1%)^2 = 96.04 steady steps, after an epoch of 100 and ten more; the
    reference recommends 8 nodes, the largest, where a run takes 1.8 node-hours as on 4; one on a
    single node takes 1.65, and on 2 nodes, the dearest, 1.83.
    """
    whole = full_cost(COUNTS, 3)
    cost = probe_cost(COUNTS, RecommendationConfig(), 3, 0.01, 1000)
    assert cost.least == pytest.approx(whole * 30 / 5000 + 1.65)
    assert cost.expected == pytest.approx(whole * 206.04 / 5000 + 1.8)
    assert cost.most == pytest.approx(whole * 1000 / 5000 + 2 * 55 / 60 + 1.8)
    short = probe_cost(COUNTS, RecommendationConfig(), 3, 0.01, 129)
    assert short.expected == pytest.approx(whole * 106.04 / 5000 + 1.8)


def test_probes_cost_no_more_than_whole_runs():
    cost = probe_cost(COUNTS, RecommendationConfig(), 1, 0.001, 10**6)
    assert cost.most == pytest.approx(full_cost(COUNTS, 1) + 2 * 55 / 60 + 1.8)


def test_a_probe_sweep_checks_the_count_that_the_reference_recommends():
    """The sweep also validates the next larger count, on 2 nodes."""
    high = RecommendationConfig(min_efficiency=1.0)
    cost = probe_cost(COUNTS, high, 1, 0.2, 30)
    assert cost.expected == pytest.approx(full_cost(COUNTS, 1) * 30 / 5000 + 1.65 + 2 * 55 / 60)
    apart = probe_cost((1, 4), RecommendationConfig(), 1, 0.2, 30)
    assert apart.expected == pytest.approx(full_cost((1, 4), 1) * 30 / 5000 + 1.8)


@pytest.mark.parametrize(
    ("goals", "first"),
    [({}, COUNTS), ({"deadline_seconds": 60}, (1, 8)), ({"budget_usd_per_run": 5}, (1, 8))],
)
def test_of_several_types_all_but_one_arm_may_be_beaten_after_the_first_round(goals, first):
    """Least: a probe of each arm, or each end, two more of one on a single node, and a check."""
    one, two = (
        probe_cost(COUNTS, RecommendationConfig(**goals), 3, 0.01, 1000, types) for types in (1, 2)
    )
    of_arms = 2 * full_cost(first, 1) + 2 * 1.65
    assert two.least == pytest.approx(of_arms * 30 / 5000 + 1.65)
    assert two.most == pytest.approx(2 * (one.most - 2 * 55 / 60 - 1.8) + 2 * 55 / 60)


@pytest.mark.parametrize(("least", "repeats"), [(0.75, 5), (0.3, 3), (0.95, 2)])
def test_sweeps_are_simulated_as_the_design_is_followed(least, repeats):
    """The points and the order of draws are the same as with a new replay() after each step."""
    goals = RecommendationConfig(min_efficiency=least)
    limits, counts = Limits(least, goals.min_doubling_ratio), (1, 2, 3, 4, 6, 8, 12, 16)
    drawn, again = random.Random(1), random.Random(1)
    for _ in range(20):
        points = simulate_points(
            counts, limits, repeats, lambda n: reference_minutes(n) * math.exp(drawn.gauss(0, 0.02))
        )
        times = {}
        while (progress := replay(times, counts, limits, repeats)).next_points:
            for nodes, repeat in progress.next_points:
                times[nodes, repeat] = reference_minutes(nodes) * math.exp(again.gauss(0, 0.02))
        assert points == progress.points


def test_a_design_of_hundreds_of_counts_is_gone_through_once(monkeypatch):
    """Restarted after each step, 100 counts took minutes."""
    drawn, looks, judge = [], [], sequential.judge
    monkeypatch.setattr(sequential, "judge", lambda *given: looks.append(1) or judge(*given))

    def seconds(nodes):
        drawn.append(nodes)
        return reference_minutes(nodes) * (1 + 0.02 * math.sin(len(drawn)))

    points = simulate_points(range(1, 513), Limits(0.99, 1.5), 2, seconds)
    assert len(drawn) == len(points) <= 2 * 512
    assert 511 <= len(looks) <= 2 * 511
