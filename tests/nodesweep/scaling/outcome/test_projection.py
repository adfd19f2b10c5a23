"""A full run projected from a probe, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from nodesweep.scaling.job import LogLine
from nodesweep.scaling.outcome.logged import Logged, read_logged
from nodesweep.scaling.outcome.projection import (
    ASKED_BY,
    MOST_STEPS,
    half_width,
    partial_run_steps,
    project,
    step_trend,
)
from tests.nodesweep.scaling.outcome.test_outcome import description, job, read, read_logged_run

# 50 of 300 steps in 27 s, of which the steady ones took 0.5 s each, ± 0.01 s.
PROBE = {
    "ended": "precise",
    "planned_steps": 300,
    "planned_epochs": 6.0,
    "step_seconds": 0.5,
    "step_error_seconds": 0.01,
}
METRICS = {
    "schema_version": 1,
    "train_seconds": 27.0,
    "steps": 50,
    "epochs": 1.0,
    "steady": {"step_seconds": 0.49},
    "samples": {"processed": 5000},
    "final_metric": {"name": "accuracy", "value": 0.4, "goal": "maximize"},
    "validations": [{"elapsed_seconds": 27.0, "value": 0.4}],
    "world": {"world_size": 1},
    "probe": PROBE,
}


def with_probe(**changes):
    return {**METRICS, "probe": {**PROBE, **changes}}


def test_steps_alone():
    """27 s + 250 steps of 0.5 s; 250 x 0.01 s of error."""
    projection = project(METRICS, {})
    assert projection.train_seconds == pytest.approx(152.0)
    assert projection.error_seconds == pytest.approx(2.5)
    assert projection.extra_seconds == pytest.approx(125.0)
    assert (projection.steps, projection.planned_steps) == (50, 300)
    assert (projection.ended, projection.measured_seconds) == ("precise", 27.0)
    assert [(part.name, part.left_out) for part in projection.parts] == [("steps", 250)]


def test_checkpoints_are_trained_through_and_validations_are_not():
    """Checkpoints: 5 planned, 1 made in the training of 2 timed: 4 of 2 s more. By Student's t of
    one degree of freedom, 12.706, half of their interval is 12.706 x 0.1414 / sqrt(2) = 1.2706 s
    each. Validations: 6 planned, 1 made: 5 of 3 s more, ± 25% since it was timed once.
    """
    projection = project(
        with_probe(
            checkpoints={"planned": 5, "made": 1, "seconds": [1.9, 2.1]},
            validations={"planned": 6, "seconds": [3.0]},
        ),
        {},
    )
    assert projection.train_seconds == pytest.approx(152.0 + 8.0)
    assert projection.error_seconds == pytest.approx((2.5**2 + (4 * 1.2706) ** 2) ** 0.5, rel=1e-3)
    assert projection.extra_seconds == pytest.approx(125.0 + 8.0 + 15.0)
    errors = {part.name: part.error_seconds for part in projection.parts}
    assert errors["validations"] == pytest.approx(5 * 0.75)


def test_what_the_end_of_an_epoch_adds_is_added_for_each_that_is_left():
    """Of 5 ends, 2 were crossed and added 4 and 5 s: 3 of 4.5 s more. Half of their interval is
    12.706 x 0.7071 / sqrt(2) = 6.353 s each.
    """
    projection = project(with_probe(epochs={"planned": 5, "made": 2, "seconds": [4.0, 5.0]}), {})
    assert projection.train_seconds == pytest.approx(152.0 + 13.5)
    assert projection.error_seconds == pytest.approx((2.5**2 + (3 * 6.353) ** 2) ** 0.5, rel=1e-3)
    assert (projection.epochs_seen, projection.checkpoints_seen) == (2, None)
    assert projection.unseen == ()
    lucky = project(with_probe(epochs={"planned": 5, "made": 1, "seconds": [-0.5]}), {})
    assert lucky.train_seconds == pytest.approx(152.0 - 2.0)
    assert lucky.error_seconds == pytest.approx((2.5**2 + 0.5**2) ** 0.5)


def test_an_end_of_an_epoch_that_was_never_seen_is_named_and_leaves_the_error_open():
    projection = project(with_probe(epochs={"planned": 5, "made": 0, "seconds": []}), {})
    assert projection.train_seconds == pytest.approx(152.0)
    assert projection.error_seconds is None
    assert (projection.unseen, projection.epochs_seen) == (("epochs",), 0)
    single = project(with_probe(epochs={"planned": 0, "made": 0, "seconds": []}), {})
    assert (single.unseen, single.error_seconds) == ((), pytest.approx(2.5))


@pytest.mark.parametrize(("trend", "error"), [(0.04, 2.5 + 2.5), (-0.04, 5.0), (0.005, 2.5)])
def test_a_trend_widens_the_error_by_half_of_it(trend, error):
    """250 steps of 0.5 s, each 2% longer or shorter than the mean: 2.5 s more."""
    projection = project(with_probe(step_trend=trend), {})
    assert projection.error_seconds == pytest.approx(error)
    assert projection.step_trend == trend
    assert projection.is_trending == (abs(trend) > 0.01)


def test_probes_of_earlier_versions_say_nothing_of_what_they_saw():
    projection = project(METRICS, {})
    assert (projection.epochs_seen, projection.validations_seen) == (None, None)
    assert projection.step_trend is None and not projection.is_trending
    assert {"epochs_seen", "step_trend"}.isdisjoint(projection.model_dump())


def test_of_one_time_the_error_is_a_quarter():
    assert half_width([4.0]) == 1.0
    assert half_width([1.0, 1.0, 1.0]) == 0.0


def test_what_was_never_made_is_not_counted_and_leaves_the_error_open():
    projection = project(with_probe(checkpoints={"planned": 5, "seconds": []}), {})
    assert projection.train_seconds == pytest.approx(152.0)
    assert projection.error_seconds is None
    checkpoints = projection.parts[1]
    assert (checkpoints.left_out, checkpoints.seconds_each, checkpoints.seconds) == (5, None, 0.0)


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ({"step_error_seconds": None}, None),
        ({"step_error_seconds": -1.0}, None),
        ({"step_error_seconds": 0.0}, 0.0),
        ({"validations": {"planned": 3, "seconds": "soon"}}, 2.5),
        ({"checkpoints": "none"}, 2.5),
        ({"ended": ["precise"]}, 2.5),
    ],
)
def test_odd_or_missing_errors(odd, error):
    projection = project(with_probe(**odd), {})
    assert projection.error_seconds == error
    assert projection.train_seconds == pytest.approx(152.0)
    assert projection.ended in ("precise", None)


def test_a_job_that_made_all_its_steps_is_whole():
    assert project(METRICS | {"steps": 300}, {}) is None
    assert partial_run_steps(METRICS | {"steps": 300}, {}) is None
    assert project({key: METRICS[key] for key in METRICS if key != "probe"}, {}) is None
    assert project(None, {}) is None


def test_by_the_log():
    numbers = {"steps": 20, "planned_steps": 100, "train_seconds": 12.0, "steady_step_seconds": 0.5}
    projection = project(None, numbers)
    assert projection.train_seconds == pytest.approx(12.0 + 80 * 0.5)
    assert projection.error_seconds is None and projection.ended is None
    without = {name: value for name, value in numbers.items() if name != "steady_step_seconds"}
    assert project(None, without) is None


def test_by_the_lines_of_the_log_that_tell_each_step():
    """Ten batches of two steps with means of 0.4 and 0.6 s in turn: s = 0.10541, t(9) = 2.2622."""
    numbers = {"steps": 30, "planned_steps": 100, "train_seconds": 15.0}
    steady = [0.4, 0.4, 0.6, 0.6] * 5
    projection = project(None, numbers, steady)
    assert projection.step_trend == 0.0
    assert projection.train_seconds == pytest.approx(15.0 + 70 * 0.5)
    assert projection.error_seconds == pytest.approx(70 * 2.2622 * 0.10541 / 10**0.5, rel=1e-3)
    assert project(None, numbers, steady[:19]).error_seconds is None


def test_the_lines_of_a_log_show_a_trend():
    """Batches of 0.5025, 0.5125, … s: nine times a slope of 0.01 s, of a mean of 0.5475 s."""
    numbers = {"steps": 30, "planned_steps": 100, "train_seconds": 15.0}
    rising = [0.5 + 0.005 * n for n in range(20)]
    assert project(None, numbers, rising).step_trend == pytest.approx(0.09 / 0.5475)
    assert step_trend(rising[:19]) is None


def test_the_lines_of_a_log_are_read():
    lines = [LogLine(1000 * n, "algo-1", f"step={n}; step_seconds=0.5;") for n in range(1, 41)]
    lines.append(LogLine(50_000, "algo-1", "steps=40; planned_steps=400; train_seconds=20.5;"))
    outcome = read_logged_run(read_logged(job(), lines), world_size=1, nodes=1)
    assert outcome.train_seconds_by == {"projected": pytest.approx(20.5 + 360 * 0.5)}
    assert outcome.projection.error_seconds == 0.0


def test_a_probe_is_read_as_the_whole_run_that_it_foretells():
    outcome = read(METRICS, Environment={ASKED_BY: "0.01"})
    assert outcome.train_clock == "projected"
    assert outcome.train_seconds_by == {"projected": pytest.approx(152.0)}
    assert outcome.clocks.train_seconds == pytest.approx(152.0)
    assert outcome.clocks.billable_seconds == 70.0  # what was paid is measured
    assert outcome.whole_run_clocks.billable_seconds == pytest.approx(195.0)
    assert outcome.whole_run_clocks.submit_to_end_seconds == pytest.approx(82.0 + 125.0)
    assert outcome.phases["Training"] == 60
    assert outcome.whole_run_phases["Training"] == pytest.approx(185.0)
    assert outcome.final_metric is None and outcome.validations == ()
    assert outcome.metric_number("epochs") == 6.0
    assert outcome.metric("samples") is None


def test_whole_runs_keep_their_clocks():
    outcome = read({"train_seconds": 48.0, "world": {"world_size": 1}})
    assert outcome.projection is None
    assert outcome.whole_run_clocks is outcome.clocks
    assert outcome.whole_run_phases is outcome.phases


def test_unknown_clocks_of_a_probe_stay_unknown():
    given = description(BillableTimeInSeconds=None, SecondaryStatusTransitions=[])
    outcome = read(METRICS, **given)
    assert outcome.whole_run_clocks.billable_seconds is None
    assert outcome.whole_run_clocks.submit_to_end_seconds is None
    assert outcome.whole_run_phases == {}


def test_a_probe_that_made_all_its_steps_is_measured_on_both_clocks():
    outcome = read(METRICS | {"steps": 300}, Environment={ASKED_BY: "0.01"})
    assert outcome.train_clock == "program"
    assert outcome.train_seconds_by["projected"] == outcome.train_seconds_by["program"] == 27.0
    assert outcome.final_metric.value == 0.4
    assert outcome.unprojected is None


ASKED = {ASKED_BY: "0.01", MOST_STEPS: "2000"}


def test_a_probe_that_tells_no_time_has_none_by_its_phase_which_may_be_that_of_a_part(snapshot):
    for metrics in (None, {"world": {}}):
        outcome = read(metrics, Environment=ASKED)
        assert (outcome.train_clock, outcome.train_seconds_by) == (None, {})
        assert outcome.unprojected == snapshot
    assert read(None).train_clock == "training_phase", "no probe: it is the whole phase"
    assert read(None, "Failed", Environment=ASKED).unprojected is None


def test_a_probe_that_was_cut_off_and_tells_not_of_how_many_steps_is_no_whole_run(snapshot):
    """It ended where it was asked to at the latest: all that it trained is a part."""
    outcome = read({"train_seconds": 60.0, "steps": 2000}, Environment=ASKED)
    assert outcome.train_seconds_by == {}
    assert outcome.unprojected == snapshot  # fmt: skip
    by_log = read_logged_run(
        Logged({"steps": 2000.0, "train_seconds": 60.0}, frozenset({2})), Environment=ASKED
    )
    assert by_log.train_seconds_by == {} and by_log.unprojected is not None


COMPLETE = {"planned_steps": 2000, "ended": "complete"}


@pytest.mark.parametrize(
    ("metrics", "logged", "is_whole"),
    [
        ({}, {}, False),
        ({"steps": 80}, {}, False),
        ({}, {"planned_steps": 500.0}, False),
        ({}, {"steps": 120.0, "planned_steps": 100.0}, False),
        ({}, {"steps": 2000.0, "planned_steps": 2000.0}, False),
        ({}, {"steps": 80.0, "planned_steps": 80.0}, True),
        ({"steps": 80}, {"planned_steps": 80.0}, True),
        ({"steps": 2000, "probe": COMPLETE}, {}, True),
        ({"steps": 2001, "probe": COMPLETE}, {}, True),
    ],
)
def test_only_what_is_known_to_be_whole_is_taken_for_whole(metrics, logged, is_whole, snapshot):
    """A program that ends early and says no more than train_seconds=…: 60 s may be all of it."""
    numbers = {"train_seconds": 60.0, "world_size": 2.0, **logged}
    outcome = read_logged_run(Logged(numbers, frozenset({2})), metrics, Environment=ASKED)
    assert (outcome.unprojected is None) == is_whole
    if is_whole:
        assert outcome.train_seconds_by["projected"] == 60.0
    else:
        assert outcome.unprojected == snapshot
        assert (outcome.train_clock, outcome.train_seconds_by) == (None, {})
    unasked = read_logged_run(Logged(numbers, frozenset({2})), metrics)
    assert unasked.unprojected is None
    assert unasked.train_seconds_by["logged"] == 60.0


def test_steps_of_which_none_was_timed_foretell_nothing(snapshot):
    logged = Logged({"train_seconds": 60.0, "planned_steps": 500.0}, frozenset({2}))
    for environment in ({"Environment": ASKED}, {}):
        outcome = read_logged_run(logged, {"steps": 50}, **environment)
        assert (outcome.train_clock, outcome.train_seconds_by) == (None, {})
        assert outcome.unprojected == snapshot


def test_steps_of_the_file_and_of_the_log_make_one_projection():
    numbers = {"planned_steps": 300.0, "train_seconds": 27.0, "steady_step_seconds": 0.5}
    projection = project({"steps": 50}, numbers)
    assert (projection.steps, projection.planned_steps) == (50, 300)
    assert projection.train_seconds == pytest.approx(152.0)
    both = {**numbers, "steps": 40.0}
    assert project({"steps": 50}, both).steps == 40, "what one source says of both comes first"


def test_a_whole_job_that_ended_itself_early_and_timed_no_step_says_so(snapshot):
    outcome = read(with_probe(step_seconds=None))
    assert outcome.unprojected == snapshot
    assert read(with_probe(step_seconds=None), "Failed").unprojected is None


def test_a_probe_that_ended_before_a_steady_step_says_what_to_do(snapshot):
    given = with_probe(step_seconds=None)
    outcome = read({**given, "steps": 30}, Environment={**ASKED, MOST_STEPS: "30"})
    assert outcome.train_seconds_by == {}
    assert outcome.unprojected == snapshot


def test_a_part_whose_steps_took_an_unknown_time_is_no_time_to_train():
    outcome = read(with_probe(step_seconds=None))
    assert outcome.projection is None
    assert (outcome.train_clock, outcome.clocks.train_seconds) == (None, None)
    assert outcome.train_seconds_by == {}


def test_a_probe_by_its_log_alone():
    numbers = {
        "steps": 20.0,
        "planned_steps": 100.0,
        "train_seconds": 12.0,
        "steady_step_seconds": 0.5,
        "final_metric": 0.3,
        "world_size": 2.0,
    }
    outcome = read_logged_run(Logged(numbers, frozenset({2})))
    assert outcome.train_seconds_by == {"projected": pytest.approx(52.0)}
    assert outcome.logged == {"steady_step_seconds": 0.5, "world_size": 2.0}
