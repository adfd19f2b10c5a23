"""Which arms a probe sweep of several types goes on with."""

from __future__ import annotations

import random

import pytest

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.arms import Arm, Cell
from nodesweep.scaling.instances.design import ERROR, Sample, find_dominated, replay_passes

A, B, C = (Cell(Arm(name, name), 1) for name in "abc")
NO_GOALS = RecommendationConfig()
WAVE = (1.0, 1.01, 0.99)


def samples(seconds, usd, n=2):
    return [Sample(seconds * WAVE[at], None if usd is None else usd * WAVE[at]) for at in range(n)]


def runs_of(**means):
    """{arm: {repeat: sample}} of arms that all have three repeats."""
    return {
        Cell(Arm(name, name), 1): {at + 1: sample for at, sample in enumerate(samples(*mean, n=3))}
        for name, mean in means.items()
    }


def test_an_arm_is_beaten_where_another_is_faster_and_cheaper(snapshot):
    given = {A: samples(100, 1.0), B: samples(200, 2.0), C: samples(50, 4.0)}
    assert find_dominated(given, NO_GOALS, 0.001) == snapshot


@pytest.mark.parametrize(("seconds", "usd"), [(200, 0.5), (50, 2.0), (101, 1.01), (200, None)])
def test_an_arm_is_not_beaten_for_being_slower_or_dearer_or_as_good(seconds, usd):
    given = {A: samples(100, 1.0), B: samples(seconds, usd)}
    assert find_dominated(given, NO_GOALS, 0.001) == {}


def test_one_run_each_shows_no_spread():
    given = {A: samples(100, 1.0, n=1), B: samples(900, 9.0, n=1)}
    assert find_dominated(given, NO_GOALS, 0.001) == {}


def test_limits_that_are_missed_for_sure_drop_an_arm(snapshot):
    given = {A: samples(100, None), B: samples(300, None)}
    late = RecommendationConfig(deadline_seconds=150)
    assert find_dominated(given, late, 0.001) == snapshot
    close = RecommendationConfig(deadline_seconds=301)
    assert find_dominated(given, close, 0.001) == {}
    given = {A: samples(100, 1.0), B: samples(50, 3.0), C: samples(20, None)}
    dear = RecommendationConfig(budget_usd_per_run=2)
    assert find_dominated(given, dear, 0.001) == snapshot


def test_every_arm_is_probed_twice_before_one_is_dropped():
    runs = runs_of(a=(100, 1.0), b=(200, 2.0))
    first = replay_passes({}, [A, B], 3, NO_GOALS)
    assert first.asked == first.missing == ((A, 1), (B, 1))
    assert first.later == ((A, 2), (B, 2), (A, 3), (B, 3))
    assert replay_passes({}, [A, B], 3, NO_GOALS, lost=[B]).later == ((A, 2), (A, 3))
    second = replay_passes({arm: {1: own[1]} for arm, own in runs.items()}, [A, B], 3, NO_GOALS)
    assert second.missing == ((A, 2), (B, 2))
    two = {arm: {1: own[1], 2: own[2]} for arm, own in runs.items()}
    third = replay_passes(two, [A, B], 3, NO_GOALS)
    assert third.missing == ((A, 3),) and list(third.dropped) == [B]
    assert (second.later, third.later) == (((A, 3), (B, 3)), ())
    done = replay_passes(runs, [A, B], 3, NO_GOALS)
    assert done.missing == () and done.asked == third.asked


def test_what_is_asked_for_does_not_change_with_later_runs():
    """A pure function of what has ended: a run that nobody asked for changes nothing."""
    runs = runs_of(a=(100, 1.0), b=(200, 2.0))
    runs[B][3] = Sample(1.0, 0.01)
    assert replay_passes(runs, [A, B], 3, NO_GOALS).asked == (
        (A, 1), (B, 1), (A, 2), (B, 2), (A, 3)
    )  # fmt: skip


def test_an_arm_without_a_time_or_without_memory_is_asked_no_more():
    runs = {A: {1: Sample(100, 1.0)}, B: {1: None}}
    assert replay_passes(runs, [A, B], 2, NO_GOALS).missing == ((A, 2),)
    assert replay_passes({}, [A, B], 2, NO_GOALS, lost=[B]).missing == ((A, 1),)
    tried = {A: {1: Sample(100, 1.0)}, B: {1: Sample(90, 1.0)}}
    assert replay_passes(tried, [A, B], 2, NO_GOALS, lost=[B]).asked == ((A, 1), (B, 1), (A, 2))


def test_two_passes_leave_nothing_to_drop():
    runs = runs_of(a=(100, 1.0), b=(200, 2.0))
    assert replay_passes(runs, [A, B], 2, NO_GOALS).dropped == {}


def test_an_arm_of_the_front_is_dropped_in_at_most_the_promised_share():
    """Arms that are equal in truth, so that each belongs on the front: the worst case."""
    generator = random.Random(7)
    cells = [Cell(Arm(str(number), str(number)), 1) for number in range(4)]
    wrong = 0
    for _ in range(1000):
        runs = {
            cell: {
                repeat: Sample(100 * (factor := generator.lognormvariate(0, 0.05)), factor)
                for repeat in (1, 2, 3)
            }
            for cell in cells
        }
        wrong += bool(replay_passes(runs, cells, 3, NO_GOALS).dropped)
    assert wrong / 1000 <= ERROR


def test_a_pass_without_a_time_counts_as_no_run():
    runs = runs_of(a=(100, 1.0), b=(200, 2.0))
    gap = {A: {1: runs[A][1], 2: None}, B: {1: runs[B][1], 2: runs[B][2]}}
    assert replay_passes(gap, [A, B], 3, NO_GOALS).missing == ((A, 3),)


def test_an_arm_with_failed_attempts_rules_out_no_other():
    given = {A: samples(100, 1.0), B: samples(200, 2.0), C: samples(300, 3.0)}
    assert list(find_dominated(given, NO_GOALS, 0.001)) == [B, C]
    assert list(find_dominated(given, NO_GOALS, 0.001, failing=[A])) == [C]
    runs = runs_of(a=(100, 1.0), b=(200, 2.0))
    assert list(replay_passes(runs, [A, B], 3, NO_GOALS).dropped) == [B]
    assert replay_passes(runs, [A, B], 3, NO_GOALS, failing=[A]).dropped == {}
    assert list(replay_passes(runs, [A, B], 3, NO_GOALS, failing=[B]).dropped) == [B]
