"""Jobs that a sweep of either design has requested, derived from its outcomes and from its
report."""

from __future__ import annotations

import pytest

from nodesweep.scaling.design.progress import asked_points, is_complete, progress_of

SECONDS = {1: 80.0, 2: 41.0, 4: 21.0}
FIRST = [(1, 1), (2, 1), (4, 1)]
ALL = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2)]
WAVE = {1: 1.0, 2: 1.01}


@pytest.fixture
def sequential(make_config):
    return make_config(
        sweep={"design": "sequential", "node_counts": [1, 2, 4], "repeats": 3, "max_repeats": 4}
    )


@pytest.fixture
def runs(make_outcome):
    """Return a completed run of each point, as in runs(points, nodes=changes)."""

    def make(points, **changes):
        return [
            make_outcome(
                nodes, SECONDS[nodes] * WAVE[repeat], repeat, **changes.get(f"n{nodes}", {})
            )
            for nodes, repeat in points
        ]

    return make


def test_a_full_sweep_asks_for_all(make_config):
    config = make_config(sweep={"node_counts": [1, 2], "repeats": 2})
    assert progress_of(config, []) is None
    assert asked_points(config, []) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_sequential_sweep_asks_for_what_it_needs(sequential, runs):
    assert asked_points(sequential, []) == FIRST
    assert asked_points(sequential, runs(FIRST)) == ALL
    assert progress_of(sequential, runs(FIRST)).next_points == ((1, 2), (2, 2), (4, 2))
    assert progress_of(sequential, runs(ALL)).next_points == ()


def test_spot_and_failed_runs_have_no_time(sequential, runs, make_outcome):
    spot = runs(FIRST, n4={"spot": True})
    assert progress_of(sequential, spot).next_points == ((1, 2), (2, 2))
    failed = [*runs(FIRST[:2]), make_outcome(4)]
    assert progress_of(sequential, failed).next_points == ((1, 2), (2, 2))


def test_a_later_attempt_gives_the_time(sequential, runs, make_outcome):
    outcomes = [
        make_outcome(4),
        *runs(FIRST[:2]),
        make_outcome(4, 21.0, attempt=2),
        make_outcome(4),
    ]
    assert progress_of(sequential, outcomes).next_points == ((1, 2), (2, 2), (4, 2))


def test_another_model_is_not_looked_at(sequential, runs):
    metric = {"final_metric": {"name": "accuracy", "goal": "maximize", "value": 0.9}}
    worse = {"final_metric": {"name": "accuracy", "goal": "maximize", "value": 0.5}}
    outcomes = runs(FIRST, n1={"metrics": metric}, n2={"metrics": metric}, n4={"metrics": worse})
    assert progress_of(sequential, outcomes).next_points == ((1, 2), (2, 2))


def test_the_sound_attempt_of_a_contended_point_gives_its_time(sequential, runs, make_outcome):
    contended, sound = {"attained_percent": 60.0}, {"attained_percent": 99.0}
    first = runs(FIRST, n4={"utilisation": contended})
    assert progress_of(sequential, first).next_points == ((1, 2), (2, 2))
    again = [*first, make_outcome(4, 21.0, attempt=2, utilisation=sound)]
    assert progress_of(sequential, again).next_points == ((1, 2), (2, 2), (4, 2))


def test_the_repeat_that_made_up_for_a_contended_run_counts(sequential, runs, make_outcome):
    """Sweeps have such a repeat from before contended runs were repeated as attempts at their
    point."""
    contended, sound = {"attained_percent": 60.0}, {"attained_percent": 99.0}
    first = runs(FIRST, n4={"utilisation": contended})
    again = [*first, make_outcome(4, 21.0, 2, utilisation=sound)]
    assert progress_of(sequential, again).next_points == ((1, 2), (2, 2))
    assert asked_points(sequential, again) == ALL


def test_times_that_hold_start_up_decide_nothing(sequential, runs, snapshot):
    phase = {"train_clock": "training_phase"}
    progress = progress_of(sequential, runs(FIRST, n1=phase, n2=phase, n4=phase))
    assert progress.next_points == ()
    assert progress.reason == snapshot


def test_a_report_is_complete_where_each_point_that_was_asked_for_has_a_run(
    sequential, make_config, runs, make_report
):
    full = make_config(sweep={"node_counts": [1, 2, 4], "repeats": 2})
    report = make_report(runs(ALL), config=sequential)
    assert is_complete(sequential, report) and is_complete(full, report)
    begun = make_report(runs(FIRST), config=sequential)
    assert not is_complete(sequential, begun) and not is_complete(full, begun)
    one = make_config(sweep={"node_counts": [1, 2, 4], "repeats": 1})
    assert is_complete(one, begun)
