"""All numbers of a curve have the same source, the best that every node count has."""

from __future__ import annotations

from nodesweep.scaling.analysis.sources import choose_train_clock
from nodesweep.scaling.outcome.outcome import Clocks
from tests.nodesweep.scaling.analysis.test_speedup import column
from tests.nodesweep.scaling.conftest import summarise


def test_mixed_clocks_fall_back_to_the_training_phase_of_all(make_outcome):
    with_program = make_outcome(1, 90, phases={"Training": 120.0})
    fallback = make_outcome(2, 70, phases={"Training": 70.0}, train_clock="training_phase")
    phaseless = make_outcome(4, 20)
    rows = summarise([with_program, fallback, phaseless])
    assert choose_train_clock([with_program, fallback]) == "training_phase"
    assert column(rows, "seconds") == [120, 70, None]
    assert column(rows, "n") == [1, 1, 0]


def test_a_spot_run_does_not_choose_the_clock(make_outcome):
    spot = make_outcome(2, 70, spot=True, phases={"Training": 70.0}, train_clock="training_phase")
    outcomes = [make_outcome(1, 90, phases={"Training": 120.0}), make_outcome(2, 45, 2), spot]
    assert choose_train_clock(outcomes) == "program"
    assert column(summarise(outcomes), "seconds") == [90, 45]


def logged(make_outcome, nodes: int, seconds: float, repeat: int = 1, **changes):
    """Return a run without metrics.json whose log has its train time."""
    times = {"logged": seconds, "training_phase": seconds + 100}
    facts = {
        "train_clock": "logged",
        "train_seconds_by": times,
        "logged": {"train_seconds": seconds},
        **changes,
    }
    return make_outcome(nodes, seconds, repeat, **facts)


def test_the_best_source_that_every_node_count_has_is_the_curves(make_outcome):
    both = make_outcome(
        1, 10.0, train_seconds_by={"program": 10.0, "logged": 10.5, "training_phase": 110.0}
    )
    outcomes = [both, logged(make_outcome, 2, 6.0)]
    assert choose_train_clock(outcomes) == "logged"
    rows = summarise(outcomes)
    assert column(rows, "seconds") == [10.5, 6.0]
    assert column(rows, "speedup") == [1, 1.75]


def test_a_run_that_lacks_the_source_of_the_others_at_its_count_is_left_out(make_outcome):
    phase_only = make_outcome(
        2, 150.0, 2, train_clock="training_phase", train_seconds_by={"training_phase": 150.0}
    )
    rows = summarise([logged(make_outcome, 1, 10.0), logged(make_outcome, 2, 6.0), phase_only])
    assert column(rows, "seconds") == [10.0, 6.0]
    assert column(rows, "n") == [1, 1]


def test_a_node_count_without_the_source_takes_it_from_all(make_outcome):
    phase_only = make_outcome(
        2, 150.0, train_clock="training_phase", train_seconds_by={"training_phase": 150.0}
    )
    rows = summarise([logged(make_outcome, 1, 10.0), phase_only])
    assert column(rows, "seconds") == [110.0, 150.0]
    assert column(rows, "speedup") == column(rows, "efficiency") == [None, None], (
        "it holds start-up"
    )
    assert rows[0].accelerator_efficiency is None


def test_final_metric_and_step_time_each_have_one_source_for_the_curve(make_outcome):
    metrics = {"final_metric": {"name": "accuracy", "value": 0.5, "goal": "maximize"}}
    said = {"train_seconds": 10.0, "final_metric": 0.9, "steady_step_seconds": 0.2}
    with_file = logged(
        make_outcome,
        1,
        10.0,
        metrics=metrics,
        logged=said,
        clocks=Clocks(train_seconds=10.0, steady_step_seconds=9.0),
    )
    without = logged(
        make_outcome, 2, 6.0, logged=said | {"final_metric": 0.89, "steady_step_seconds": 0.1}
    )
    rows = summarise([with_file, without])
    assert [row.final_metric.value for row in rows] == [0.9, 0.89]
    assert [row.steady_step_seconds for row in rows] == [0.2, 0.1]
    assert rows[1].flags == (), "0.01 is within the tolerance"
    silent = logged(make_outcome, 4, 4.0)
    assert [
        row.final_metric and row.final_metric.value
        for row in summarise([with_file, without, silent])
    ] == [
        0.5,
        None,
        None,
    ]
    failed_too = summarise([with_file, without, make_outcome(2, None, 2)])
    assert [row.final_metric.value for row in failed_too] == [0.9, 0.89]


def test_a_failed_run_with_the_log_of_a_metric_less_program_has_no_metric(make_outcome):
    said = {"train_seconds": 10.0, "final_metric": 0.9}
    runs = [logged(make_outcome, 1, 10.0, logged=said), make_outcome(1, None, 2)]
    assert summarise(runs)[0].final_metric.value == 0.9
