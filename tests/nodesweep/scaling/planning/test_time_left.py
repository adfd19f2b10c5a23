"""The remaining time of a sweep, worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.scaling.planning.time_left import (
    ArmCount,
    CompletedJob,
    PendingJob,
    TimeLeft,
    left_by_steps,
    time_left,
)


def test_nothing_is_known_before_a_job_has_ended_or_its_steps_tell() -> None:
    assert time_left([], [PendingJob(1, 30.0), PendingJob(2)], 1) is None
    assert time_left([], [], 1) == TimeLeft(0.0, 0.0, 0.0)
    assert time_left([CompletedJob(1, 100.0)], [], 1) == TimeLeft(0.0, 0.0, 0.0)


def test_a_count_that_was_measured_takes_as_long_again() -> None:
    left = time_left(
        [CompletedJob(2, 90.0), CompletedJob(2, 110.0), CompletedJob(2, 100.0)],
        [PendingJob(2), PendingJob(2)],
        1,
    )
    assert left == TimeLeft(pytest.approx(200.0), pytest.approx(180.0), pytest.approx(220.0))


def test_another_count_lies_between_no_speedup_and_the_ideal() -> None:
    left = time_left([CompletedJob(1, 100.0)], [PendingJob(4)], 1)
    assert left == TimeLeft(pytest.approx(50.0), pytest.approx(22.5), pytest.approx(110.0))
    fewer = time_left([CompletedJob(4, 100.0)], [PendingJob(1)], 1)
    assert fewer == TimeLeft(pytest.approx(200.0), pytest.approx(90.0), pytest.approx(440.0))


def test_the_nearest_count_decides() -> None:
    left = time_left([CompletedJob(1, 100.0), CompletedJob(8, 20.0)], [PendingJob(16)], 1)
    assert left is not None and left.high_seconds == pytest.approx(22.0)


def test_what_runs_has_made_a_part_of_its_way() -> None:
    left = time_left([CompletedJob(1, 100.0)], [PendingJob(1, 60.0)], 1)
    assert left is not None and left.seconds == pytest.approx(40.0)
    late = time_left([CompletedJob(1, 100.0)], [PendingJob(1, 300.0)], 1)
    assert late == TimeLeft(0.0, 0.0, 0.0)


def test_jobs_share_the_places() -> None:
    """Two places: 40 s are left of the one that runs, and two of 100 s wait."""
    to_come = [PendingJob(1, 60.0), PendingJob(1), PendingJob(1)]
    left = time_left([CompletedJob(1, 100.0)], to_come, 2)
    assert left is not None and left.seconds == pytest.approx(140.0)


def test_steps_tell_the_first_jobs_end_and_the_others_go_by_it() -> None:
    assert left_by_steps(30.0, 7, 28) == pytest.approx(90.0)
    assert left_by_steps(30.0, 2, 28) is None
    assert left_by_steps(30.0, 0, 0) is None
    assert left_by_steps(30.0, 30, 28) == 0.0
    left = time_left([], [PendingJob(1, 40.0, 60.0), PendingJob(1)], 1)
    assert left == TimeLeft(pytest.approx(160.0), pytest.approx(144.0), pytest.approx(176.0))


def test_the_check_of_a_probe_sweep_takes_what_probes_foretell_of_a_whole_job() -> None:
    """Probes of 30 s; a whole job of 2 nodes takes 200 s, foretold by what it is not one of."""
    check = PendingJob(2, is_validation_run=True)
    left = time_left([CompletedJob(2, 30.0)], [PendingJob(2), check], 4, [CompletedJob(2, 200.0)])
    assert left == TimeLeft(pytest.approx(230.0), pytest.approx(207.0), pytest.approx(253.0))
    assert time_left([CompletedJob(2, 30.0)], [check], 1) is None, "nothing foretells it"
    runs = PendingJob(2, 50.0, is_validation_run=True)
    left = time_left([CompletedJob(2, 30.0)], [runs], 1, [CompletedJob(2, 200.0)])
    assert left is not None and left.seconds == pytest.approx(150.0)
    told = PendingJob(2, 50.0, 25.0, is_validation_run=True)
    left = time_left([], [told], 1)
    assert left is not None and left.seconds == pytest.approx(25.0)
    left = time_left([], [told, PendingJob(2)], 1)
    assert left == TimeLeft(25.0, pytest.approx(22.5), math.inf), "it tells nothing of a probe"


def test_a_check_whose_count_is_not_decided_lies_between_the_counts() -> None:
    check = PendingJob(1, is_validation_run=True, or_at=(ArmCount(4),))
    left = time_left(
        [CompletedJob(1, 30.0)], [check], 1, [CompletedJob(1, 400.0), CompletedJob(4, 100.0)]
    )
    assert left == TimeLeft(pytest.approx(200.0), pytest.approx(90.0), pytest.approx(440.0))


@given(
    st.lists(
        st.builds(CompletedJob, st.integers(1, 512), st.floats(0.1, 1e5), st.just("")),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.builds(PendingJob, st.integers(1, 512), st.none() | st.floats(0, 1e5)), max_size=8),
    st.integers(1, 4),
)
def test_the_guess_lies_within_its_bounds(
    ended: list[CompletedJob], to_come: list[PendingJob], at_once: int
) -> None:
    left = time_left(ended, to_come, at_once)
    assert left is not None
    assert 0 <= left.low_seconds <= left.seconds * (1 + 1e-9) + 1e-9
    assert left.seconds <= left.high_seconds * (1 + 1e-9) + 1e-9


A, B = "ml.a", "ml.b"


def test_each_instance_type_goes_by_its_own_jobs() -> None:
    """Of a one node takes 100 s, of b two take 10: 2 of a take 50 to 100 s, 1 of b 10 to 20."""
    ended = [CompletedJob(1, 100.0, A), CompletedJob(2, 10.0, B)]
    to_come = [PendingJob(2, arm=A), PendingJob(1, arm=B)]
    left = time_left(ended, to_come, 1)
    assert left is not None
    assert left.low_seconds == pytest.approx(0.9 * (50.0 + 10.0))
    assert left.high_seconds == pytest.approx(1.1 * (100.0 + 20.0))
    assert left.seconds == pytest.approx((50 * 100) ** 0.5 + (10 * 20) ** 0.5)


def test_of_a_type_that_has_no_job_yet_only_what_the_others_take_is_known() -> None:
    to_come = [PendingJob(1, arm=A), PendingJob(1, arm=B)]
    left = time_left([CompletedJob(1, 100.0, A)], to_come, 1)
    assert left == TimeLeft(100.0, pytest.approx(90.0), math.inf)
    assert time_left([CompletedJob(1, 100.0, A)], to_come[1:], 1) is None
    runs = PendingJob(1, 40.0, 60.0, arm=B)
    left = time_left([CompletedJob(1, 100.0, A)], [to_come[0], runs, to_come[1]], 1)
    assert left is not None and left.seconds == pytest.approx(60.0 + 100.0 + 100.0)


def test_a_job_that_may_be_dropped_is_none_of_the_least() -> None:
    to_come = [PendingJob(1), PendingJob(1, may_be_dropped=True)]
    left = time_left([CompletedJob(1, 100.0)], to_come, 1)
    assert left == TimeLeft(200.0, pytest.approx(90.0), pytest.approx(220.0))


def test_the_check_of_several_types_lies_between_all_that_may_be_the_answer() -> None:
    check = PendingJob(1, is_validation_run=True, or_at=(ArmCount(1, B),), arm=A)
    foretold = [CompletedJob(1, 400.0, A), CompletedJob(1, 100.0, B)]
    left = time_left([], [check], 1, foretold)
    assert left == TimeLeft(pytest.approx(200.0), pytest.approx(90.0), pytest.approx(440.0))
    assert time_left([], [check], 1, foretold[:1]) is None
