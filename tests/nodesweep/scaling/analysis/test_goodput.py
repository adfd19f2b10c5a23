"""Goodput: the share of billed time that trained, from the times that a job recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodesweep.scaling.analysis.goodput import Goodput, goodput, total_goodput
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.job import JobStatus, PhaseVisit
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome, read_outcome
from nodesweep.scaling.report.facts import sweep_facts
from nodesweep.scaling.report.tables.attempts import attempts_table
from nodesweep.scaling.report.terminal import render_terminal
from tests.nodesweep.scaling.conftest import outcome, probe

CREATED = datetime(2026, 11, 27, tzinfo=UTC)
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=3.6)
INTERRUPTED = (
    ("Downloading", 10, 20),
    ("Training", 20, 80),  # 5 s of start-up
    ("Interrupted", 80, 80),
    ("Pending", 80, 120),
    ("Downloading", 120, 130),
    ("Training", 130, 200),  # of which the last 5 s are not training
    ("Uploading", 200, 210),
)
RESUMED = {
    "train_seconds": 100,
    "interruptions": 1,
    "run_start_unix_seconds": CREATED.timestamp() + 25,
    "run_stop_unix_seconds": CREATED.timestamp() + 195,
}


def at(seconds: float) -> datetime:
    return CREATED + timedelta(seconds=seconds)


def spot_run(metrics: dict[str, Any] | None, **changes: Any) -> JobOutcome:
    """Return a run on 2 spot nodes that lost them for 40 of 200 s; 30% of the rest is billed."""
    status: dict[str, Any] = {
        "state": "completed",
        "created_at": at(0),
        "billing_began_at": at(10),
        "billing_ended_at": at(210),
        "ended_at": at(210),
        "training_seconds": 160,
        "billable_seconds": 48,
        "nodes": 2,
        "spot": True,
        "visits": tuple(PhaseVisit(name, at(start), at(end)) for name, start, end in INTERRUPTED),
        **changes,
    }
    return read_outcome(JobStatus("job", **status), metrics, nodes=2, repeat=1, attempt=1)


def parts(found: Goodput | None) -> tuple[float | None, ...]:
    """Return share, trained, checkpoints, start, restarts, incomplete and warm pools."""
    assert found is not None
    return tuple(
        value
        for name, value in found
        if name not in ("billed_node_seconds", "unknown_jobs", "exceeding_jobs")
    )


def test_an_interrupted_job_trained_for_what_its_checkpoints_kept():
    # 15 s up to the first start and 15 s from the last stop; the other 30 s are restarts
    found = goodput(spot_run(RESUMED))
    assert parts(found) == (100 / 160, 200, None, 60, 60, 0, 0)
    assert found.billed_node_seconds == 320, "before the spot discount"


@pytest.mark.parametrize("missing", ["run_start_unix_seconds", "run_stop_unix_seconds"])
def test_start_up_and_restarts_are_not_told_apart_without_the_first_start_and_last_stop(missing):
    metrics = {name: value for name, value in RESUMED.items() if name != missing}
    assert parts(goodput(spot_run(metrics))) == (100 / 160, 200, None, None, None, 0, 0)


@pytest.mark.parametrize(
    "changes",
    [{"billing_began_at": None}, {"billing_ended_at": None}, {"billing_began_at": at(99)}],
)
def test_times_of_another_clock_say_nothing_about_restarts(changes):
    assert spot_run(RESUMED, **changes).around_seconds is None


@pytest.mark.parametrize("backend", ["spot", "requeued by Slurm"])
def test_the_start_of_a_job_that_lost_all_its_work_is_no_first_start(backend):
    # it began again without a checkpoint, so its metrics have only its second start
    lost = {
        "train_seconds": 60,
        "run_start_unix_seconds": CREATED.timestamp() + 135,
        "run_stop_unix_seconds": CREATED.timestamp() + 195,
    }
    visits = [("Pending", 0, 20), ("Training", 20, 80), ("Training", 130, 200)]
    changes: dict[str, Any] = {
        "spot": False,
        "visits": tuple(PhaseVisit(name, at(start), at(end)) for name, start, end in visits),
        "billing_began_at": at(20),
        "billing_ended_at": at(200),
        "billable_seconds": 160,
    }
    run = spot_run(lost, **(changes if backend != "spot" else {}))
    assert parts(goodput(run)) == (60 / 160, 120, None, None, None, 0, 0)


@pytest.mark.parametrize(("stopped", "known"), [(24, True), (23, False), (None, False)])
def test_the_first_start_lies_in_the_first_training_phase(stopped, known):
    first = PhaseVisit("Training", at(20), None if stopped is None else at(stopped))
    run = spot_run(RESUMED, visits=(first, PhaseVisit("Training", at(130), at(200))))
    assert (run.around_seconds is not None) is known, "the program started at 25 s"


def test_of_an_interrupted_job_only_a_clock_kept_in_its_checkpoints_counts():
    assert parts(goodput(spot_run(None)))[:2] == (None, None)
    observed = {**RESUMED, "observed": {"starts_at": "data_request"}}
    assert parts(goodput(spot_run(observed)))[:2] == (None, None)
    assert goodput(spot_run(observed)).unknown_jobs == 1


def timed(train: float | None, billed: float | None, nodes: int = 1, **changes: Any) -> JobOutcome:
    clocks = Clocks(train_seconds=train, billable_seconds=billed)
    return outcome(nodes, train, clocks=clocks, **changes)


def test_the_rest_of_an_uninterrupted_job_is_start_up_and_end():
    assert parts(goodput(timed(80, 100, 4))) == (0.8, 320, None, 80, 0, 0, 0)
    kept = timed(80, 100, retained_billable_seconds=60.0)
    assert parts(goodput(kept)) == (0.5, 80, None, 20, 0, 0, 60)


def test_checkpoints_of_an_observed_program_are_told_apart():
    ranks = [{"seconds": {"checkpoint": 5.0}}, {"seconds": {"checkpoint": 1.0}}, {"seconds": None}]
    run = timed(80, 100, train_clock="observed", metrics={"budget": ranks})
    assert parts(goodput(run)) == (0.8, 75, 5, 20, 0, 0, 0), "within the train time"


def test_the_parts_of_a_sweep_are_all_that_was_billed(snapshot):
    ranks = [{"seconds": {"checkpoint": 5.0}}]
    split = goodput(timed(80, 100, train_clock="observed", metrics={"budget": ranks}))
    unsplit, failed = goodput(timed(80, 100, 4)), goodput(timed(None, 50))
    sweeps = ([split], [unsplit, split], [total_goodput([unsplit, split]), split, failed])
    for each in sweeps:
        share, *spent = parts(found := total_goodput(each))
        assert sum(seconds or 0 for seconds in spent) == found.billed_node_seconds
        assert share == (found.trained_node_seconds + (spent[1] or 0)) / found.billed_node_seconds
    assert [total_goodput(each).text for each in sweeps] == snapshot


def test_an_attempt_that_did_not_complete_trained_for_nothing():
    assert parts(goodput(timed(None, 50, 2))) == (0, 0, 0, 0, 0, 100, 0)
    assert goodput(timed(None, None)) is None, "it never got its nodes"


def test_a_probe_trained_for_as_long_as_it_ran():
    assert parts(goodput(probe(1)))[:2] == (8 / 30, 8)


def test_billed_seconds_are_rounded():
    assert parts(goodput(timed(70.4, 70)))[:2] == (1, 70)
    longer = goodput(timed(75, 70))
    assert parts(longer) == (None, None, None, None, None, 0, 0), "it holds what was not billed"
    assert (longer.unknown_jobs, longer.exceeding_jobs) == (0, 1)


def test_a_time_longer_than_billed_is_not_called_unknown(snapshot):
    longer, unknown = goodput(timed(75, 70)), goodput(timed(60, 70, train_clock="training_phase"))
    sweeps = ([longer], [longer, longer], [longer, unknown, unknown], [unknown])
    assert [total_goodput(each).text for each in sweeps] == snapshot


def test_the_times_of_a_table_are_train_times(make_report):
    table = make_report(read_measured("nodes,train_seconds,billable_seconds\n1,80,100\n2,45,50\n"))
    assert parts(table.costs.goodput) == (170 / 200, 170, None, 30, 0, 0, 0)


def test_a_rate_says_nothing_about_the_billed_time(make_report):
    rows = ["1,8,100,Completed", "2,15,60,Completed", "4,,60,Failed"]
    header = "nodes,samples_per_second,billable_seconds,status"
    table = make_report(read_measured("\n".join([header, *rows])))
    assert table.train_clock == "throughput"
    assert table.costs.goodput is None, "the failed attempt is not all that was billed"


def test_the_sweeps_goodput_is_unknown_if_that_of_a_job_is():
    unknown = goodput(timed(60, 70, train_clock="training_phase"))
    known = [goodput(timed(80, 100)), goodput(timed(None, 100)), goodput(timed(None, None))]
    found = total_goodput(known)
    assert (found.share, found.billed_node_seconds, found.unknown_jobs) == (0.4, 200, 0)
    found = total_goodput([found, None, unknown])
    assert (found.share, found.billed_node_seconds, found.unknown_jobs) == (None, 270, 1)
    assert total_goodput([None]) is None


def test_the_report_shows_it_once_per_run_and_once_per_sweep(make_report, snapshot):
    base = timed(80, 100, retained_billable_seconds=30.0)
    report = make_report([base, timed(None, 50, 2), spot_run(RESUMED)], price=PRICE)
    assert [point.goodput and point.goodput.share for point in report.points] == [
        80 / 130,
        0,
        0.625,
    ]
    assert list(attempts_table(report).cells["goodput"]) == ["62%", "0%", "62%"]
    unsplit, unknown = (
        make_report([base, spot_run(metrics)]) for metrics in ({"train_seconds": 100}, None)
    )
    assert [dict(sweep_facts(each))["goodput"] for each in (report, unsplit, unknown)] == snapshot
    shown = [str(part) for part in render_terminal(report).renderables]
    assert any("Goodput: " in line for line in shown)


def test_a_sweep_without_billed_times_has_none(make_report):
    report = make_report([outcome(1, 40.0), outcome(2, 21.0)])
    assert report.costs.goodput is None
    assert "goodput" not in dict(sweep_facts(report))
    assert "goodput" not in attempts_table(report).cells
    assert "goodput" not in report.model_dump_json()
    assert not any("Goodput" in str(part) for part in render_terminal(report).renderables)


def test_a_result_on_spot_costs_all_its_attempts(make_report, snapshot):
    def spot(nodes: int, train: float | None, billed: float | None, **changes: Any) -> JobOutcome:
        created = {"created_at": "2026-11-27T00:00:00+00:00", "spot": True}
        return timed(train, billed, nodes, **created | changes)

    first, second = spot(1, 900, 1000), spot(1, 900, 1000, repeat=2)
    failed = spot(2, None, 400, attempt=2)
    waited = spot(2, None, None, attempt=3, phases={"Starting": 5.0})
    stopped = spot(2, None, 300, attempt=4, status="Stopped", reason="stopped on request")
    outcomes = [first, second, spot(2, 500, 600), failed, waited, stopped]
    rows = {row.nodes: row for row in make_report(outcomes, price=PRICE).summary}
    assert {n: row.spot_usd_per_result for n, row in rows.items()} == pytest.approx({1: 1, 2: 2})
    told = [each for each in make_report(outcomes, price=PRICE).caveats if "spot" in each]
    one = [each for each in make_report([first], price=PRICE).caveats if "spot" in each]
    unpriced = [each for each in make_report(outcomes).caveats if "spot" in each]
    assert [told, one, unpriced] == snapshot
    unknown = spot(1, None, None, attempt=2, phases={"Training": 9.0})
    assert make_report([first, unknown], price=PRICE).summary[0].spot_usd_per_result is None
