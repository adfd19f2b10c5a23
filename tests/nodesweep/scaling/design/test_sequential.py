"""The sequential design: its next points, and when a count has a verdict, both of which depend on
the outcomes alone."""

from __future__ import annotations

import math

import pytest

from nodesweep.scaling.design.sequential import LEAST_SPREAD, Limits, replay

COUNTS = (1, 2, 4, 8)
LIMITS = Limits(min_efficiency=0.75, min_doubling_ratio=1.5)
REFERENCE = {1: 99.0, 2: 55.0, 4: 27.0, 8: 13.5}
KNEE = {1: 99.0, 2: 51.0, 4: 26.0, 8: 22.5}
# One wave of noise for each repeat: log sigma of about 2%.
WAVES = {1: 0.99, 2: 1.02, 3: 1.0, 4: 0.985, 5: 1.015}


def times_of(curve, points, noise=1.0):
    """Return times in which every second count is slow where the others are fast, so that noise
    does not cancel."""
    return {
        (nodes, repeat): curve[nodes]
        * math.exp(noise * math.log(WAVES[repeat]) * (-1 if nodes in (2, 8) else 1))
        for nodes, repeat in points
    }


def to_the_end(curve, *, noise=1.0, max_repeats=5, lost=(), counts=COUNTS, **options):
    """Request and complete runs until the design is done; return its final state."""
    times = {}
    while (progress := replay(times, counts, LIMITS, max_repeats, **options)).next_points:
        times |= times_of(curve, progress.next_points, noise)
        times |= dict.fromkeys(set(progress.next_points) & set(lost))
    return progress


def by_nodes(progress):
    return {each.nodes: each.answer for each in progress.answers}


def test_each_count_is_run_once_first(snapshot):
    progress = replay({}, COUNTS, LIMITS, 5)
    assert progress.next_points == ((1, 1), (2, 1), (4, 1), (8, 1))
    assert progress.reason == snapshot
    assert progress.answers == ()


def test_the_largest_count_and_what_it_is_compared_with_come_next(snapshot):
    progress = replay(times_of(REFERENCE, [(n, 1) for n in COUNTS]), COUNTS, LIMITS, 5)
    assert progress.next_points == ((1, 2), (4, 2), (8, 2))
    assert progress.reason == snapshot
    assert by_nodes(progress) == {8: "undecided"}


def test_a_clock_that_is_lost_after_the_first_runs_does_not_cost_all_repeats():
    """Each count gets one more round, and counts without times stay undecided."""
    lost = [(nodes, repeat) for nodes in COUNTS for repeat in range(2, 6)]
    progress = to_the_end(REFERENCE, lost=lost)
    assert len(progress.points) == 10
    assert by_nodes(progress) == {8: "undecided", 4: "undecided", 2: "undecided"}
    part = to_the_end(REFERENCE, lost=[(8, repeat) for repeat in range(2, 6)])
    assert by_nodes(part) == {8: "pass"}, "the spread of the others is known"


def test_the_reference_is_decided_with_seven_runs(snapshot):
    progress = to_the_end(REFERENCE)
    assert by_nodes(progress) == {8: "pass"}
    assert len(progress.points) == 7
    assert progress.reason == snapshot


def test_a_failed_count_hands_on_to_half_of_it(snapshot):
    progress = to_the_end(KNEE)
    assert by_nodes(progress) == {8: "fail", 4: "pass"}
    assert progress.answers[0].text == snapshot
    assert (2, 3) not in progress.points


def test_more_noise_takes_more_runs_of_the_same_three_counts():
    few, many = to_the_end(REFERENCE), to_the_end(REFERENCE, noise=4.0)
    assert len(many.points) > len(few.points)
    assert (2, 2) not in many.points


def test_it_ends_undecided_at_max_repeats(snapshot):
    progress = to_the_end(REFERENCE, noise=20.0, max_repeats=3)
    assert by_nodes(progress) == {8: "undecided", 4: "undecided", 2: "undecided"}
    assert max(repeat for _, repeat in progress.points) == 3
    assert progress.reason == snapshot


def test_a_value_within_two_percent_of_its_limit_is_on_the_limit(snapshot):
    on_it = {1: 100.0, 2: 51.0, 4: 26.0, 8: 100 / 8 / 0.752}
    progress = to_the_end(on_it, noise=0.1)
    assert by_nodes(progress) == {8: "on_the_limit", 4: "pass"}
    assert progress.answers[0].text == snapshot


def test_runs_without_any_spread_are_not_taken_for_exact():
    progress = to_the_end(REFERENCE, noise=0.0)
    efficiency = progress.answers[0].limits[-1]
    assert efficiency.high / efficiency.low > 1 + LEAST_SPREAD


def test_whole_seconds_may_hide_half_a_second():
    """10 s may be 9.6 s: an efficiency of 76% that whole seconds show exactly is not shown."""
    whole = {1: 61.0, 8: 10.0}
    points = [(nodes, repeat) for nodes in whole for repeat in (1, 2)]
    times = {point: whole[point[0]] for point in points}
    progress = replay(times, [1, 8], LIMITS, 2)
    assert by_nodes(progress) == {8: "undecided"}
    finer = {point: seconds + 0.01 for point, seconds in times.items()}
    assert by_nodes(replay(finer, [1, 8], LIMITS, 2)) == {8: "pass"}
    # of an hour, half a second is less than the spread assumed anyway
    long = {point: seconds * 360 for point, seconds in times.items()}
    assert by_nodes(replay(long, [1, 8], LIMITS, 2)) == {8: "pass"}


def test_what_has_ended_decides_alone_whatever_the_order():
    """After a crash the same outcomes give the same next points, and later outcomes change
    nothing."""
    first = replay({}, COUNTS, LIMITS, 5).next_points
    times = times_of(REFERENCE, first, 6.0)
    times |= times_of(REFERENCE, [(1, 2), (4, 2), (8, 2)], 6.0)
    again = dict(reversed(times.items()))
    assert replay(times, COUNTS, LIMITS, 5) == replay(again, COUNTS, LIMITS, 5)
    later = times | {(8, 5): 1.0}
    assert replay(later, COUNTS, LIMITS, 5) == replay(times, COUNTS, LIMITS, 5)


def test_points_that_still_run_are_asked_for_again():
    times = times_of(REFERENCE, [(n, 1) for n in COUNTS] + [(4, 2)])
    assert replay(times, COUNTS, LIMITS, 5).next_points == ((1, 2), (8, 2))


def test_a_run_without_a_time_is_made_up_for_by_a_further_repeat():
    progress = to_the_end(REFERENCE, noise=4.0, lost={(8, 2)})
    assert by_nodes(progress) == {8: "pass"}
    assert (8, 3) in progress.points


def test_a_count_without_a_time_is_left_out():
    progress = to_the_end(REFERENCE, lost={(8, 1)})
    assert by_nodes(progress) == {4: "pass"}
    assert (8, 2) not in progress.points


def test_without_a_time_at_one_node_the_next_count_is_the_baseline():
    progress = to_the_end(REFERENCE, lost={(1, 1)})
    assert by_nodes(progress) == {8: "pass"}
    assert {each.than for each in progress.answers[0].limits} == {2, 4}
    assert (1, 2) not in progress.points


def test_a_count_that_can_not_be_compared_is_not_looked_at():
    progress = to_the_end(REFERENCE, not_comparable={8})
    assert by_nodes(progress) == {4: "pass"}
    assert (8, 2) not in progress.points


def test_half_a_count_that_can_not_be_compared_is_not_compared():
    progress = to_the_end(REFERENCE, not_comparable={4})
    assert [each.criterion for each in progress.answers[0].limits] == ["efficiency", "faster"]
    assert (4, 2) not in progress.points


@pytest.mark.parametrize("lost", [{(2, 1), (4, 1), (8, 1)}, {(n, 1) for n in COUNTS}])
def test_one_count_has_nothing_to_be_compared_with(lost, snapshot):
    progress = to_the_end(REFERENCE, lost=lost)
    assert progress.answers == () and len(progress.points) == 4
    assert progress.reason == snapshot


def test_a_count_slower_than_a_smaller_one_fails_by_that_too(snapshot):
    progress = to_the_end({1: 99.0, 2: 51.0, 3: 34.0, 4: 38.0}, counts=(1, 2, 3, 4))
    faster = {each.than: each for each in progress.answers[0].limits if each.criterion == "faster"}
    assert faster[3].answer == "fail"
    assert progress.answers[0].text == snapshot


def test_a_low_limit_of_efficiency_does_not_let_a_slower_count_pass():
    """An E of 45% at two nodes is slower than one node."""
    times = {(1, 1): 100.0, (1, 2): 101.0, (4, 1): 110.0, (4, 2): 111.0}
    progress = replay(times, (1, 4), Limits(0.2, 1.0), 2)
    assert {each.criterion: each.answer for each in progress.answers[0].limits} == {
        "efficiency": "pass",
        "faster": "fail",
    }


def test_errors_are_spent_over_counts_and_looks():
    """The same times must meet a stricter bound if more counts may be wrong."""
    times = times_of(REFERENCE, [(n, r) for n in (1, 8) for r in (1, 2)])
    wide = replay(times | times_of(REFERENCE, [(2, 1), (4, 1), (4, 2)]), COUNTS, LIMITS, 2)
    narrow = replay(times, (1, 8), LIMITS, 2)
    bounds = [each.answers[0].limits[0] for each in (wide, narrow)]
    assert bounds[0].criterion == bounds[1].criterion == "efficiency"
    assert bounds[0].value == pytest.approx(bounds[1].value)
    spread = [math.log(each.value / each.low) for each in bounds]
    assert spread[0] != pytest.approx(spread[1], rel=0.01)


def test_a_contended_first_run_takes_the_repeat_that_was_made_for_it():
    """The sweep is from before contended runs were repeated as further attempts at their point."""
    first = times_of(REFERENCE, [(n, 1) for n in COUNTS]) | {(2, 1): None, (8, 1): None}
    whole = first | {(2, 2): None} | times_of(REFERENCE, [(8, 2), (2, 3)])
    progress = replay(whole, COUNTS, LIMITS, 5, contended={(2, 1), (2, 2), (8, 1)})
    assert progress.next_points == ((1, 2), (4, 2))
    assert by_nodes(progress) == {8: "undecided"}


def test_a_count_that_stays_contended_is_left_out():
    progress = to_the_end(REFERENCE, lost={(8, 1)}, contended={(8, 1)})
    assert by_nodes(progress) == {4: "pass"}
    assert [point for point in progress.points if point[0] == 8] == [(8, 1)]


def test_a_baseline_that_stays_contended_ends_the_sweep(snapshot):
    progress = to_the_end(REFERENCE, lost={(1, 1)}, contended={(1, 1)}, max_repeats=3)
    assert progress.reason == snapshot
    assert progress.answers == ()
    assert set(progress.points) == {(1, 1), (2, 1), (4, 1), (8, 1)}


def test_contended_repeats_are_no_lost_clock():
    """One more round follows the contended one."""
    contended = {(1, 2), (4, 2), (8, 2)}
    progress = to_the_end(REFERENCE, lost=contended, contended=contended)
    assert by_nodes(progress) == {8: "pass"}


def test_times_that_differ_by_orders_of_magnitude_have_bounds_that_a_float_holds():
    """Two runs that differ 10,000-fold leave one degree of freedom, and e to more than 709."""
    counts = tuple(range(1, 65))
    times = {(nodes, 1): 100.0 / nodes for nodes in counts} | {(64, 2): 60_000.0, (1, 2): None}
    progress = replay(times | {(32, 2): None}, counts, LIMITS, 5)
    assert by_nodes(progress)[64] == "undecided"
    assert all(math.isfinite(each.high) for each in progress.answers[0].limits)
