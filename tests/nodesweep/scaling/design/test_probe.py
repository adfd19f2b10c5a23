"""The probe design: the jobs that it requests, and its comparison with a validation run."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.design.progress import asked_points, is_complete, points_done, progress_of
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.report import analyse
from tests.nodesweep.scaling.conftest import PROBED_SECONDS

PROBES = [(1, 1), (2, 1), (4, 1)]


def test_every_count_is_probed_then_one_whole_job_checks_the_answer(
    probe_config, probes, whole, snapshot
):
    one = probe_config()
    assert progress_of(one, []).next_points == tuple(PROBES)
    assert progress_of(one, probes(PROBES[:2])).next_points == ((4, 1),)
    decided = progress_of(one, probes(PROBES))
    assert decided.next_points == ((4, 2),)
    assert decided.reason == snapshot
    done = progress_of(one, [*probes(PROBES), whole(4, 21.3)])
    assert done.next_points == () and done.points == (*PROBES, (4, 2))
    assert asked_points(one, probes(PROBES)) == [*PROBES, (4, 2)]


def test_repeats_are_probes_and_the_check_is_one_more(probe_config, probes):
    two = probe_config(repeats=2)
    points = [(nodes, repeat) for nodes in (1, 2, 4) for repeat in (1, 2)]
    assert progress_of(two, []).next_points == tuple(points)
    assert progress_of(two, probes(points)).next_points == ((4, 3),)
    assert [repeat for repeat in (1, 2, 3) if two.sweep.is_validation_run(repeat)] == [3]
    assert not probe_config(design="full").sweep.is_validation_run(2)


def test_a_failed_probe_is_left_out_of_the_answer(probe_config, probes, make_outcome):
    outcomes = [*probes(PROBES[:2]), make_outcome(4)]
    assert progress_of(probe_config(), outcomes).next_points == ((2, 2),)


def test_nothing_to_check_where_no_time_is_projected(probe_config, whole, snapshot):
    every = [whole(nodes, seconds, 1) for nodes, seconds in PROBED_SECONDS.items()]
    progress = progress_of(probe_config(), every)
    assert progress.next_points == ()
    assert progress.reason == snapshot


def test_a_count_whose_probes_made_all_their_steps_needs_no_check(
    probe_config, probes, whole, make_report, snapshot
):
    """4 nodes made too few steps for a projection, so that their time is that of a full run."""
    made_all = whole(4, 21.0, 1, train_seconds_by={"program": 21.0, "projected": 21.0})
    outcomes = [*probes(PROBES[:2]), made_all]
    progress = progress_of(probe_config(), outcomes)
    assert progress.next_points == ()
    assert progress.reason == snapshot
    report = make_report(outcomes, config=probe_config())
    assert report.train_clock == "projected" and report.recommendation.chosen.nodes == 4
    assert report.caveats == snapshot
    assert is_complete(probe_config(), report)


def test_one_count_alone_is_checked_too(probe_config, probes, snapshot):
    progress = progress_of(probe_config(node_counts=[2]), probes([(2, 1)]))
    assert progress.next_points == ((2, 2),)
    assert progress.reason == snapshot


def test_no_check_without_a_recommendation(make_config, probes, snapshot):
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 1},
        report={"recommendation": {"deadline_seconds": 1}},
    )
    progress = progress_of(config, probes(PROBES))
    assert progress.next_points == ()
    assert progress.reason == snapshot


def test_a_deadline_that_probes_cannot_decide_is_validated_where_it_may_be_met(make_config, probes):
    """Single probes say 58.9 s of 4 nodes: only a deadline of twice that is sure to be met."""
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 1},
        report={"recommendation": {"deadline_seconds": 60}},
    )
    progress = progress_of(config, probes(PROBES))
    assert progress.next_points == ((4, 2),)
    assert "does not rule out 4 nodes" in progress.reason


def test_a_budget_per_run_is_held_against_projected_costs(make_config, probes):
    """At 0.23 USD an hour: 102 s of 1 node, 2 x 66.9 s, 4 x 48.9 s are billed. That 4 nodes cost
    too much decides.
    """
    sweep = {"design": "probe", "node_counts": [1, 2, 4], "repeats": 1}
    tight = {"recommendation": {"budget_usd_per_run": 0.01}}
    config = make_config(sweep=sweep, report=tight)
    assert progress_of(config, probes(PROBES)).next_points == ((2, 2), (4, 2))


def checked(config, outcomes):
    return checks_of(config, outcomes)[0]


def checks_of(config, outcomes):
    runs = summarise_runs(outcomes)[1]
    return design_of(config.sweep).find_checks(config, runs, progress_of(config, outcomes))


def test_the_check_is_within_the_error_or_outside_it(probe_config, probes, whole, snapshot):
    near = checked(probe_config(), [*probes(PROBES), whole(4, 21.4)])
    assert (near.nodes, near.projected_seconds, near.measured_seconds) == (4, 21.0, 21.4)
    assert near.difference == pytest.approx(0.4 / 21.0)
    assert near.is_within_error is True
    assert near.text == snapshot
    far = checked(probe_config(), [*probes(PROBES), whole(4, 20.0)])
    assert far.is_within_error is False
    assert far.text == snapshot


def test_an_unknown_error_says_nothing_of_the_check(probe_config, probes, whole, snapshot):
    check = checked(probe_config(), [*probes(PROBES, error=None), whole(4, 21.4)])
    assert check.error_seconds is None and check.is_within_error is None
    assert check.text == snapshot


def test_three_probes_show_how_runs_differ(probe_config, probes, whole):
    """21, 22 and 23 s: s = 1; t(2) = 4.303; 4.303 x 1 x sqrt(1 + 1/3) = 4.968."""
    points = [(nodes, repeat) for nodes in (1, 2, 4) for repeat in (1, 2, 3)]
    check = checked(probe_config(repeats=3), [*probes(points), whole(4, 26.0, 4)])
    assert (check.probes, check.projected_seconds) == (3, 22.0)
    assert check.error_seconds == pytest.approx(4.968, abs=1e-3)
    assert check.is_within_error is True


def test_the_latest_completed_check_counts(probe_config, probes, whole, make_outcome):
    failed = make_outcome(4, None, 2)
    early = whole(4, 25.0, created_at="2026-01-01T00:00:00+00:00")
    late = whole(4, 21.0, attempt=2, created_at="2026-01-02T00:00:00+00:00")
    assert checked(probe_config(), [*probes(PROBES), failed]) is None
    assert checked(probe_config(), [*probes(PROBES), early, late]).measured_seconds == 21.0


def test_a_check_of_another_count_stays_beside_that_of_the_answer(
    probe_config, probes, whole, snapshot
):
    """The probe at 4 nodes failed first, so that 2 nodes were validated; then the probe
    succeeded."""
    earlier = whole(2, 41.2, created_at="2026-01-03T00:00:00+00:00")
    check, others = checks_of(probe_config(), [*probes(PROBES), earlier])
    assert check is None and [each.nodes for each in others] == [2]
    check, others = checks_of(probe_config(), [*probes(PROBES), earlier, whole(4, 21.0)])
    assert check is not None and check.nodes == 4
    assert [each.text for each in others] == snapshot


def test_jobs_of_a_probe_sweep_are_probes_or_checks(probe_config, make_config):
    kinds = [probe_config(repeats=2).kind_of_job(repeat) for repeat in (1, 2, 3)]
    assert kinds == ["probe", "probe", "check"]
    assert make_config().kind_of_job(1) == "run"


def test_a_check_without_a_time_or_a_projection_checks_nothing(probe_config, probes, whole):
    untimed = whole(4, 21.0, train_seconds_by={}, train_clock="training_phase")
    assert checked(probe_config(), [*probes(PROBES), untimed]) is None
    assert checked(probe_config(), [*probes(PROBES[:2]), whole(4, 21.0)]) is None


def report_of(config, outcomes):
    return analyse(
        "bench-20260102030405-0a1b2c3d", config, None, outcomes, None, {}, datetime.now(UTC)
    )


def test_a_sweep_is_complete_with_its_check(probe_config, probes, whole):
    one = probe_config()
    without = report_of(one, probes(PROBES))
    assert points_done(one, without) == (3, 4) and not is_complete(one, without)
    with_check = report_of(one, [*probes(PROBES), whole(4, 21.3)])
    assert points_done(one, with_check) == (4, 4) and is_complete(one, with_check)
