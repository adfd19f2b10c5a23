"""The summary sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.speedup import baseline_of
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report.headline import write_headline
from tests.nodesweep.scaling.conftest import summarise

REFERENCE = {1: 99 * 60.0, 2: 55 * 60.0, 4: 27 * 60.0, 8: 13.5 * 60.0}
REPEATED = {1: [99, 100, 101], 4: [27, 27.5, 28], 8: [20, 20, 20]}


@pytest.fixture
def headline(make_outcome, make_outcomes):
    """Return a headline, as in headline({nodes: seconds}, kind=…, usd={nodes: run cost},
    failed=[nodes], loss=…, clock=…, policy=…, **goals)."""

    def write(times, kind="aws", usd=None, failed=(), loss=None, clock=None, policy=None, **goals):
        outcomes = [*make_outcomes(times), *(make_outcome(nodes) for nodes in failed)]
        outcomes = [
            replace(
                each,
                given_cost_usd=(usd or {}).get(each.nodes),
                metrics=(
                    {
                        "final_metric": {
                            "name": "loss",
                            "goal": "minimize",
                            "value": loss[each.nodes],
                        }
                    }
                    if loss
                    else None
                ),
            )
            for each in outcomes
        ]
        rows = summarise(outcomes)
        recommendation = recommend(rows, RecommendationConfig(**goals))
        return write_headline(
            kind, baseline_of(rows), rows, len(outcomes), recommendation, clock, policy
        )

    return write


USD = {1: 10, 2: 11, 4: 13, 8: 15}
GROWING = "fixed_per_replica"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"times": REFERENCE}, id="reference"),
        # S(4) = 100/27.5 within 3%; E(8) = 5/8, D = 27.5/20
        pytest.param({"times": REPEATED, "usd": {1: 10, 4: 10.9, 8: 16}}, id="dearer"),
        pytest.param({"times": REPEATED, "usd": {1: 10, 4: 9.7}}, id="cheaper"),
        pytest.param({"times": REPEATED, "usd": {4: 9.7}}, id="cost of the baseline unknown"),
        pytest.param({"times": {1: 40, 2: 30}}, id="stay, not efficient"),
        pytest.param({"times": {1: [40, 40, 41], 2: [50, 51, 52]}}, id="stay, slower"),
        pytest.param({"times": {1: 40, 2: 39.5}}, id="barely faster"),
        pytest.param({"times": {1: [40, 41], 2: 50}}, id="two runs, stay"),
        pytest.param({"times": {1: [40, 41], 2: 20}}, id="two runs"),
        pytest.param({"times": {1: [40, 41, 42], 2: 20}}, id="three runs and one"),
        pytest.param({"times": {2: 60, 4: 30}, "failed": [1, 8]}, id="relative baseline, failures"),
        pytest.param({"times": {2: 60, 4: 61}}, id="stay on the relative baseline"),
        pytest.param({"times": {4: 40}}, id="one count"),
        pytest.param({"times": REFERENCE, "usd": USD, "hour_value_usd": 50}, id="hour's value"),
        pytest.param({"times": REFERENCE, "usd": USD, "hour_value_usd": 1}, id="cheap hours"),
        pytest.param(
            {"times": REFERENCE, "usd": USD, "hour_value_usd": 50, "budget_usd_per_run": 10.5},
            id="hour's value, budget",
        ),
        pytest.param({"times": REFERENCE, "hour_value_usd": 50}, id="hour's value, no costs"),
        pytest.param({"times": {1: 40}, "failed": [2]}, id="one count, a failure"),
        pytest.param({"times": {}, "failed": [1, 2]}, id="none"),
        pytest.param({"times": REFERENCE, "usd": USD, "deadline_seconds": 6600}, id="deadline"),
        pytest.param(
            {"times": REFERENCE, "usd": USD, "deadline_seconds": 12_000},
            id="stay within a deadline",
        ),
        pytest.param({"times": REFERENCE, "deadline_seconds": 600}, id="missed deadline"),
        pytest.param(
            {"times": {1: 40, 2: 50}, "usd": {1: 9, 2: 3}, "deadline_seconds": 100},
            id="cheaper and slower",
        ),
        pytest.param({"times": {1: 40, 2: 20}, "loss": {1: 0.5, 2: 0.9}}, id="throughput only"),
        pytest.param({"times": {1: 0.004, 2: 0.002}, "clock": "throughput"}, id="rate"),
        pytest.param({"times": {1: 0.004, 2: 0.005}, "clock": "throughput"}, id="rate, stay"),
        pytest.param({"times": {1: 100, 2: 40}}, id="superlinear"),
        # E(2) = 100/49.9/2 > 1, and its interval holds 1
        pytest.param({"times": {1: [99, 100, 101], 2: [49, 49.9, 51]}}, id="superlinear by noise"),
        pytest.param({"times": {1: [99, 100, 101], 2: [39, 40, 41]}}, id="superlinear for certain"),
        pytest.param(
            {"times": {1: 40, 2: 20}, "usd": {1: 10, 2: 11}, "policy": GROWING}, id="growing batch"
        ),
        pytest.param({"times": {1: 40, 2: 30}, "policy": GROWING}, id="growing batch, stay"),
    ],
)
def test_the_headline(case, headline, snapshot):
    assert headline(**case) == snapshot


@pytest.mark.parametrize("kind", ["emulated", "simulated"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"times": {1: 40, 2: 20}}, id="run on more"),
        pytest.param({"times": {1: 40, 2: 50}}, id="stay"),
        pytest.param({"times": {}, "failed": [1]}, id="none"),
        pytest.param({"times": {4: 40}}, id="one count"),
        pytest.param({"times": {1: 40, 2: 20}, "deadline_seconds": 9}, id="missed deadline"),
    ],
)
def test_whatever_is_not_real_opens_with_saying_so(headline, kind, case, snapshot):
    assert headline(**case, kind=kind) == snapshot


def test_given_times_and_a_constant_batch_are_not_mentioned(headline):
    assert headline(REFERENCE, kind="measured") == headline(REFERENCE)
    assert headline({1: 40, 2: 20}, policy="fixed_global") == headline({1: 40, 2: 20})


def test_a_sweep_on_spot_capacity_alone_says_why_there_is_nothing_to_compare(
    make_outcome, snapshot
):
    def of(*outcomes) -> str:
        return write_headline("aws", None, summarise(outcomes), 2, None)

    on_spot = make_outcome(1, 40, spot=True)
    text = of(on_spot, make_outcome(2, 21, spot=True))
    assert text == snapshot(name="spot alone")
    # A failed job changes nothing; an on-demand one that completed without a time does.
    assert of(on_spot, make_outcome(2)) == text
    untimed = of(on_spot, make_outcome(2, status="Completed", reason=None))
    assert untimed == snapshot(name="none with a time")


def test_a_deadline_that_includes_waiting_says_so(make_outcome, snapshot):
    times = {1: (160, 180), 2: (82, 85)}
    outcomes = [
        make_outcome(nodes, train, clocks=Clocks(submit_to_end_seconds=whole, train_seconds=train))
        for nodes, (train, whole) in times.items()
    ]
    rows = summarise(outcomes)
    recommendation = recommend(rows, RecommendationConfig(deadline_seconds=170))
    assert write_headline("aws", baseline_of(rows), rows, 2, recommendation) == snapshot


def test_three_runs_decide_a_deadline_for_the_next_one(make_outcomes):
    rows = summarise(make_outcomes({1: [100.0, 101.0, 102.0], 2: [55.0, 55.5, 56.0]}))
    recommendation = recommend(rows, RecommendationConfig(deadline_seconds=60))
    text = write_headline("aws", baseline_of(rows), rows, 6, recommendation)
    assert "undecided" not in text
    few = summarise(make_outcomes({1: [100.0, 101.0], 2: [55.0, 55.5]}))
    recommendation = recommend(few, RecommendationConfig(deadline_seconds=60))
    assert recommendation.chosen is None
    assert "not ruled out" in write_headline("aws", baseline_of(few), few, 4, recommendation)


def test_starved_nodes_are_said_once(make_outcome, make_report, snapshot):
    """Where they are the reason that there is no recommendation, as they are after one that rests
    on other counts.
    """

    def headline(*attained_percents: float) -> str:
        pairs = zip((1, 2, 4), (40.0, 38.0, 30.0), attained_percents, strict=True)
        outcomes = [
            make_outcome(nodes, seconds, utilisation={"attained_percent": got})
            for nodes, seconds, got in pairs
        ]
        return make_report(outcomes).headline

    assert headline(99.0, 99.0, 40.0) == snapshot(name="after a recommendation")
    assert headline(99.0, 40.0, 40.0) == snapshot(name="no recommendation")


GROWN = {1: 256, 2: 512, 4: 1024, 8: 65_536}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"platform_kind": "measured", "train_clock": "measured"}, id="table"),
        pytest.param({"platform_kind": "measured"}, id="runs"),
        pytest.param({"platform_kind": "aws"}, id="sweep"),
        pytest.param({"platform_kind": "emulated"}, id="emulated"),
    ],
)
def test_unknown_convergence_gives_rates_no_node_count_and_what_settles_it(
    fields, make_outcome, make_report, snapshot
):
    times = {1: 100, 2: 51, 4: 26, 8: 13.5}
    outcomes = [
        make_outcome(nodes, seconds, global_batch_size=GROWN[nodes], **fields)
        for nodes, seconds in times.items()
    ]
    headline = make_report(outcomes).headline
    assert "Run it on" not in headline and "Stay on" not in headline
    assert headline == snapshot


def test_probes_of_a_growing_batch_need_full_runs(probes, probe_config, make_report, snapshot):
    runs = probes([(1, 1), (2, 1), (4, 1)], batch_policy="fixed_per_replica")
    report = make_report(runs, config=probe_config())
    assert report.recommendation.chosen is None
    assert report.headline == snapshot
