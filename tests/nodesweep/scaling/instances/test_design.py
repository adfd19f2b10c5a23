"""The arms with which a probe sweep of several types continues."""

from __future__ import annotations

import random

import pytest

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.arms import Arm, Cell
from nodesweep.scaling.instances.design import ERROR, Sample, find_beaten, replay_rounds

A, B, C = (Cell(Arm(name, name), 1) for name in "abc")
NO_GOALS = RecommendationConfig()
IN_TIME = RecommendationConfig(deadline_seconds=1000)
WAVE = (1.0, 1.01, 0.99)


def samples(seconds, usd, n=2, waited=None):
    return [
        Sample(seconds * WAVE[at], None if usd is None else usd * WAVE[at], waited)
        for at in range(n)
    ]


def runs_of(**means):
    """Return {arm: {repeat: sample}} of arms that all have three repeats."""
    return {
        Cell(Arm(name, name), 1): {at + 1: sample for at, sample in enumerate(samples(*mean, n=3))}
        for name, mean in means.items()
    }


def of_types(**costs):
    """Return {arm: {repeat: sample}} of types with these costs that scale ideally, 800 s at one
    node."""
    return {
        Cell(Arm(name, name), nodes): {
            at + 1: sample for at, sample in enumerate(samples(800 / nodes, usd, n=3))
        }
        for name, usd in costs.items()
        for nodes in (1, 2, 4, 8)
    }


def beaten(given, goals=NO_GOALS, **more):
    return find_beaten(given, list(given), goals, 0.001, **more)


def test_an_arm_is_beaten_where_another_is_faster_and_cheaper(snapshot):
    given = {A: samples(100, 1.0), B: samples(200, 2.0), C: samples(50, 4.0)}
    assert beaten(given) == snapshot


@pytest.mark.parametrize(("seconds", "usd"), [(200, 0.5), (50, 2.0), (101, 1.01), (200, None)])
def test_an_arm_is_not_beaten_for_being_slower_or_dearer_or_as_good(seconds, usd):
    given = {A: samples(100, 1.0), B: samples(seconds, usd)}
    assert beaten(given) == {}


def test_a_single_run_decides_by_half_as_much_again_and_four_standard_errors():
    assert beaten({A: samples(100, 1.0, n=1), B: samples(140, 1.4, n=1)}) == {}
    assert list(beaten({A: samples(100, 1.0, n=1), B: samples(160, 1.6, n=1)})) == [B]
    noisy = [Sample(60, 0.6), Sample(140, 1.4)]  # a spread of 60%
    assert beaten({A: samples(100, 1.0, n=1), B: samples(160, 1.6, n=1), C: noisy}) == {}


def test_limits_that_are_missed_for_sure_drop_an_arm(snapshot):
    given = {A: samples(100, None), B: samples(300, None)}
    late = RecommendationConfig(deadline_seconds=150)
    assert beaten(given, late) == snapshot
    close = RecommendationConfig(deadline_seconds=301)
    assert beaten({B: samples(300, None)}, close) == {}
    given = {A: samples(100, 1.0), B: samples(50, 3.0), C: samples(20, None)}
    dear = RecommendationConfig(budget_usd_per_run=2)
    assert beaten(given, dear) == snapshot


def test_a_goal_drops_what_another_arm_surely_answers_better(snapshot):
    """Both arms are on the time-cost front."""
    given = {A: samples(200, 1.0), B: samples(100, 2.0)}
    assert beaten(given) == {}
    budget = RecommendationConfig(budget_usd_per_run=3)
    both = RecommendationConfig(deadline_seconds=1000, budget_usd_per_run=3)
    assert [beaten(given, goals) for goals in (IN_TIME, budget)] == snapshot
    assert beaten(given, both) == {}
    given[C] = samples(150, 1.5)  # neither the cheapest nor the fastest
    assert beaten(given, both) == snapshot


def test_an_arm_that_may_miss_a_limit_beats_none():
    given = {A: samples(990, 1.0), B: samples(100, 2.0)}
    assert beaten(given, IN_TIME) == {}
    given[A] = [Sample(each, 1.0) for each in (600, 800, 600)]  # the next run may take 1,100 s
    assert beaten(given, IN_TIME) == {}


def test_the_deadline_includes_waiting_where_every_run_has_it():
    given = {A: samples(900, 1.0, waited=1500), B: samples(100, 2.0, waited=800)}
    assert list(beaten(given, IN_TIME)) == [A]
    given[B] = samples(100, 2.0)
    assert beaten(given, IN_TIME) == {}


def test_without_prices_the_fastest_in_time_is_the_answer(snapshot):
    given = {A: samples(200, None), B: samples(100, None)}
    assert beaten(given, IN_TIME) == snapshot


def test_every_count_is_probed_once_if_each_type_has_its_own_recommendation():
    runs = runs_of(a=(100, 1.0), b=(150, 1.5))
    first = replay_rounds({}, [A, B], 3, NO_GOALS)
    assert first.asked == first.missing == ((A, 1), (B, 1))
    assert first.later == ((A, 2), (B, 2), (A, 3), (B, 3))
    assert replay_rounds({}, [A, B], 3, NO_GOALS, lost=[B]).later == ((A, 2), (A, 3))
    second = replay_rounds({arm: {1: own[1]} for arm, own in runs.items()}, [A, B], 3, NO_GOALS)
    assert second.missing == ((A, 2), (B, 2)) and second.number == 2
    two = {arm: {1: own[1], 2: own[2]} for arm, own in runs.items()}
    third = replay_rounds(two, [A, B], 3, NO_GOALS)
    assert third.missing == ((A, 3),) and list(third.dropped) == [B]
    assert (second.later, third.later) == (((A, 3), (B, 3)), ())
    done = replay_rounds(runs, [A, B], 3, NO_GOALS)
    assert done.missing == () and done.asked == third.asked
    every = list(of_types(a=1.0))
    assert replay_rounds({}, every, 3, NO_GOALS).missing == tuple((arm, 1) for arm in every)


def test_with_a_goal_the_ends_come_first_then_the_counts_between():
    runs = of_types(a=1.0, b=1.02)
    made, rounds = {}, []
    for _ in range(4):
        now = replay_rounds(made, list(runs), 3, IN_TIME).missing
        rounds.append([(arm.nodes, repeat) for arm, repeat in now])
        for arm, repeat in now:
            made.setdefault(arm, {})[repeat] = runs[arm][repeat]
    assert rounds == [
        [(1, 1), (8, 1)] * 2,
        [(2, 1), (4, 1)] * 2,
        [(1, 2), (2, 2), (4, 2), (8, 2)] * 2,
        [(1, 3), (2, 3), (4, 3), (8, 3)] * 2,
    ]
    done = replay_rounds(runs, list(runs), 3, IN_TIME)
    assert done.missing == () and done.dropped == {} and len(done.asked) == 24


def test_a_type_that_costs_too_much_at_its_ends_is_not_probed_between(snapshot):
    runs = of_types(a=1.0, b=2.0)
    found = replay_rounds(runs, list(runs), 3, IN_TIME)
    assert {cell.nodes for cell, _ in found.asked if cell.arm.name == "b"} == {1, 8}
    assert found.dropped == snapshot
    near = of_types(a=1.0, b=1.8)  # between its ends, as little as 1.44 times as much
    found = replay_rounds(near, list(near), 3, IN_TIME)
    assert {cell.nodes for cell, _ in found.asked if cell.arm.name == "b"} == {1, 2, 4, 8}


def test_counts_between_are_not_ruled_out_by_an_end_without_a_time():
    runs = of_types(a=1.0, b=9.0)
    smallest = Cell(Arm("b", "b"), 1)
    runs[smallest] = {1: None}
    found = replay_rounds(runs, list(runs), 3, IN_TIME)
    asked = [(cell.nodes, repeat) for cell, repeat in found.asked if cell.arm.name == "b"]
    assert asked == [(1, 1), (8, 1), (2, 1), (4, 1)]
    assert {arm.nodes for arm in found.dropped} == {2, 4, 8}


def test_an_arm_is_probed_again_once_the_better_one_turns_out_to_be_late():
    runs = runs_of(a=(700, 1.0), b=(100, 2.0))
    two = {arm: {1: own[1], 2: own[2]} for arm, own in runs.items()}
    before = replay_rounds(two, [A, B], 3, IN_TIME)
    assert before.missing == ((A, 3),)
    runs[A][3] = Sample(1100, 1.0)
    after = replay_rounds({**runs, B: {1: runs[B][1], 2: runs[B][2]}}, [A, B], 3, IN_TIME)
    assert after.missing == ((B, 3),) and after.dropped == {}


def test_what_is_asked_for_does_not_change_with_later_runs():
    """The result is a pure function of the ended runs; a run that was not requested changes
    nothing."""
    runs = runs_of(a=(100, 1.0), b=(150, 1.5))
    runs[B][3] = Sample(1.0, 0.01)
    assert replay_rounds(runs, [A, B], 3, NO_GOALS).asked == (
        (A, 1), (B, 1), (A, 2), (B, 2), (A, 3)
    )  # fmt: skip


def test_an_arm_without_a_time_or_without_memory_is_asked_no_more():
    runs = {A: {1: Sample(100, 1.0)}, B: {1: None}}
    assert replay_rounds(runs, [A, B], 2, NO_GOALS).missing == ((A, 2),)
    assert replay_rounds({}, [A, B], 2, NO_GOALS, lost=[B]).missing == ((A, 1),)
    tried = {A: {1: Sample(100, 1.0)}, B: {1: Sample(90, 1.0)}}
    assert replay_rounds(tried, [A, B], 2, NO_GOALS, lost=[B]).asked == ((A, 1), (B, 1), (A, 2))
    assert replay_rounds({A: {1: None}}, [A], 2, NO_GOALS).missing == ()


@pytest.mark.parametrize("goals", [NO_GOALS, RecommendationConfig(deadline_seconds=110)])
def test_the_best_arm_is_dropped_in_at_most_the_promised_share(goals):
    """The arms are truly equal, which is the worst case, so that each dropped arm is an error."""
    generator = random.Random(7)
    arms = [Cell(Arm(str(number), str(number)), 1) for number in range(4)]
    wrong = 0
    for _ in range(500):
        runs = {
            arm: {
                repeat: Sample(100 * (factor := generator.lognormvariate(0, 0.05)), factor)
                for repeat in (1, 2, 3)
            }
            for arm in arms
        }
        wrong += bool(replay_rounds(runs, arms, 3, goals).dropped)
    assert wrong / 500 <= ERROR


def test_a_probe_without_a_time_counts_as_no_run():
    runs = runs_of(a=(100, 1.0), b=(250, 2.5))
    gap = {A: {1: runs[A][1], 2: None}, B: {1: runs[B][1], 2: runs[B][2]}}
    assert replay_rounds(gap, [A, B], 3, NO_GOALS).missing == ((A, 3),)


def test_an_arm_with_failed_attempts_rules_out_no_other():
    given = {A: samples(100, 1.0), B: samples(200, 2.0), C: samples(300, 3.0)}
    assert list(beaten(given)) == [B, C]
    assert list(beaten(given, failing=[A])) == [C]
    runs = runs_of(a=(100, 1.0), b=(200, 2.0))
    assert list(replay_rounds(runs, [A, B], 3, NO_GOALS).dropped) == [B]
    assert replay_rounds(runs, [A, B], 3, NO_GOALS, failing=[A]).dropped == {}
    assert list(replay_rounds(runs, [A, B], 3, NO_GOALS, failing=[B]).dropped) == [B]
