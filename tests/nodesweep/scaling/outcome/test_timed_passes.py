"""Passes at smaller batches in metrics.json: ratios by hand, and what is not usable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.outcome.timed_passes import read_timed_passes
from tests.nodesweep.scaling.conftest import probe

PASSES = [
    {"samples": 64, "seconds": [0.4, 0.8, 0.4]},
    {"samples": 16, "seconds": [0.1, 0.2, 0.1]},
    {"samples": 8, "seconds": [0.05, 0.04, 0.06]},
]
METRICS = {
    "passes": PASSES,
    "passes_seconds": 9,
    "world": {"world_size": 1},
    "batch": {"global_batch_size": 64},
    "steps": 10,
    "budget": [{"seconds": {"forward": 2.0, "backward": 3.0, "data": 0.0}}],
}


def test_ratios_are_those_of_each_round():
    found = read_timed_passes(METRICS).ratios
    assert found[16] == pytest.approx((0.25, 0.0, 0.8))  # 0.4 s of 0.5 s
    ratio, error, _ = found[8]
    assert ratio == 0.125  # of 0.125, 0.05 and 0.15
    assert error == pytest.approx(1.25 * 0.05204 / 3**0.5 / 0.125, rel=1e-3)
    assert set(found) == {16, 8}


def test_a_smaller_batch_takes_no_longer():
    slow = [PASSES[0], {"samples": 8, "seconds": [4.0, 0.1, 9.0]}]
    assert read_timed_passes(METRICS | {"passes": slow}).ratios[8].ratio == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"passes": None},
        {"passes": {}},
        {"passes": PASSES[:1]},
        {"passes": PASSES[::-1]},
        {"passes": [PASSES[0], PASSES[0]]},
        {"passes": [1, 2]},
        {"passes": [PASSES[0], {"samples": 8, "seconds": [0.1] * 4}]},
        {"passes": [{**each, "seconds": each["seconds"][:2]} for each in PASSES]},
        {"passes": [{**each, "samples": 10 * each["samples"]} for each in PASSES]},
        {"passes_seconds": None},
        {"world": {"world_size": 2}},
        {"batch": None},
        {"steps": 0},
        {"budget": []},
        {"budget": 2 * METRICS["budget"]},
        {"budget": [{"seconds": {"forward": 2.0}}]},
        *(
            {"passes": [PASSES[0], {"samples": 8, "seconds": [0.1, 0.1, wrong]}]}
            for wrong in (0, -1.0, 1e-300, float("nan"), float("inf"), 10**400, True, "1", None)
        ),
        *({"passes_seconds": wrong} for wrong in (0, -1.0, float("nan"), 1e300, 10**400, "9")),
        *(
            {"passes": [{"samples": wrong, "seconds": [0.1] * 3}, PASSES[1]]}
            for wrong in (0, 64.5, 10**400, True, "64")
        ),
    ],
)
def test_passes_that_cannot_be_are_unknown(changes):
    assert read_timed_passes(METRICS | changes) is None


@pytest.mark.parametrize("metrics", [None, {}, [], 1])
def test_most_runs_have_none(metrics):
    assert read_timed_passes(metrics) is None


def test_a_full_run_does_not_take_the_time_of_the_timing(make_outcome):
    clocks = Clocks(train_seconds=48.0, billable_seconds=70.0, submit_to_end_seconds=82.0)
    phases = {"Training": 60.0, "Starting": 10.0}
    run = make_outcome(1, 48.0, metrics=METRICS, clocks=clocks, phases=phases)
    whole = run.whole_run_clocks
    assert (whole.billable_seconds, whole.submit_to_end_seconds) == (61.0, 73.0)
    assert whole.train_seconds == 48.0
    assert run.whole_run_phases == {"Training": 51.0, "Starting": 10.0}
    assert run.clocks is clocks  # what was paid
    of_probe = probe(1, metrics=METRICS)
    assert of_probe.whole_run_clocks.billable_seconds == pytest.approx(30.0 + 72.0 - 9.0)


def test_a_timing_longer_than_the_job_is_ignored(make_outcome):
    metrics = METRICS | {"passes_seconds": 1e5}
    clocks = Clocks(train_seconds=48.0, billable_seconds=70.0)
    run = make_outcome(1, 48.0, metrics=metrics, clocks=clocks)
    assert run.whole_run_clocks is clocks
    assert replace(run, phases={"Training": 60.0}).whole_run_phases == {"Training": 60.0}
