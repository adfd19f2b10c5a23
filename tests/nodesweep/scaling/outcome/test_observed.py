"""A metrics.json that nodesweep wrote for a program that reports no time."""

from __future__ import annotations

import pytest

from nodesweep.scaling.outcome.logged import Logged, needs_log
from nodesweep.scaling.outcome.observed import NO_OWN_CLOCK, SWITCH
from tests.nodesweep.scaling.outcome.test_outcome import read, read_logged_run

OBSERVED = {
    "schema_version": 1,
    "train_seconds": 12.5,
    "world": {"world_size": 2},
    "steps": 96,
    "steady": {"step_seconds": 0.12},
    "observed": {"starts_at": "data_request", "data_wait_seconds": 0.4, "torch": "2.13.0"},
}
REASON = {"schema_version": 1, "observed": {"not_measured": "the program never imported torch"}}


def test_the_observed_time_is_a_clock_of_its_own():
    outcome = read_logged_run(Logged(), OBSERVED)
    assert (outcome.train_clock, outcome.clocks.train_seconds) == ("observed", 12.5)
    assert outcome.train_seconds_by == {"observed": 12.5, "training_phase": 60.0}
    assert (outcome.world_size, outcome.clocks.steady_step_seconds) == (2, 0.12)
    assert (outcome.metric_number("steps"), outcome.not_observed) == (96, None)


def test_what_the_program_says_itself_counts_before_what_was_observed():
    said = Logged({"train_seconds": 11.0, "steady_step_seconds": 0.1}, frozenset({2}))
    outcome = read_logged_run(said, {**OBSERVED, "world": {"world_size": 1}})
    assert (outcome.train_clock, outcome.clocks.train_seconds) == ("logged", 11.0)
    assert (outcome.status, outcome.world_size) == ("Completed", 2), "of the log, not 1"
    assert outcome.clocks.steady_step_seconds is None and outcome.logged["steady_step_seconds"]
    assert needs_log(OBSERVED) and not needs_log({**OBSERVED, "observed": None})


def test_observed_processes_that_never_met_contradict_the_plan():
    outcome = read_logged_run(Logged(), {**OBSERVED, "world": {"world_size": 1}})
    assert outcome.status == "Failed" and outcome.reason.startswith("world size: 2 processes")


def test_a_reason_is_no_measurement():
    outcome = read_logged_run(Logged(), REASON)
    assert (outcome.train_clock, outcome.metrics) == ("training_phase", None)
    assert outcome.not_observed == "the program never imported torch"
    odd = read({"observed": {"not_measured": 3}})
    assert (odd.not_observed, odd.train_clock) == (None, "training_phase")


def test_a_partial_run_is_told_by_its_own_numbers_alone():
    log = Logged({"steps": 30, "planned_steps": 300})
    outcome = read_logged_run(log, OBSERVED)
    assert (outcome.train_clock, outcome.metrics) == (None, None)
    assert outcome.unprojected is not None


@pytest.mark.parametrize(
    ("metrics", "logged", "clock"),
    [
        (None, Logged(), None),
        (REASON, Logged(), None),
        (None, Logged({"train_seconds": 5.0}), "logged"),
        ({"train_seconds": 5.0}, Logged(), "program"),
    ],
)
def test_measure_helper_accepts_only_the_programs_own_time(metrics, logged, clock):
    outcome = read_logged_run(logged, metrics, Environment={SWITCH: "helper"})
    assert outcome.train_clock == clock
    assert outcome.unprojected == (NO_OWN_CLOCK if clock is None else None)
    failed = read(None, "Failed", Environment={SWITCH: "helper"})
    assert failed.unprojected is None
