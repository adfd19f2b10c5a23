"""The summary sentence, word by word."""

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
    """headline({nodes: seconds}, kind=…, usd={nodes: run cost}, failed=[nodes], loss=…, clock=…,
    policy=…, **goals)
    """

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


def test_reference_row(headline):
    assert (
        headline(REFERENCE)
        == "Run it on 8 nodes: 7.3x faster than 1 node at 1 h 39 min (one run each, no interval)."
    )
    assert headline(REFERENCE, kind="measured") == headline(REFERENCE)


def test_interval_cost_and_the_faster_count_that_was_not_chosen(headline):
    # S(4) = 100/27.5, between 99/28 and 101/27; E(8) = 5/8, D = 27.5/20
    assert (
        headline(REPEATED, usd={1: 10, 4: 10.9, 8: 16})
        == "Run it on 4 nodes: 3.6x faster than 1 node at 1 min 40 s (90%: 3.5x–3.7x), 9% more"
        " expensive; 8 nodes were 5.0x faster, but efficiency 62% is below 75% and doubling"
        " ratio 1.38 is below 1.50."
    )
    assert "(90%: 3.5x–3.7x), 3% cheaper; 8 nodes" in headline(REPEATED, usd={1: 10, 4: 9.7})
    assert "(90%: 3.5x–3.7x); 8 nodes" in headline(REPEATED, usd={4: 9.7})


@pytest.mark.parametrize(
    ("kind", "opening"),
    [("emulated", "On emulated nodes, "), ("simulated", "On simulated nodes, ")],
)
def test_whatever_is_not_real_opens_with_saying_so(headline, kind, opening):
    assert headline({1: 40, 2: 20}, kind=kind) == (
        opening
        + "2 are the best choice: 2.0x faster than 1 node at 40.0 s (one run each, no interval)."
    )
    assert headline({1: 40, 2: 50}, kind=kind) == (
        opening
        + "1 is the best choice (40.0 s): no larger count was faster (one run each, no interval)."
    )
    assert headline({}, kind=kind, failed=[1]) == (
        opening + "nothing to compare: none of 1 job completed with a train time."
    )
    assert headline({4: 40}, kind=kind) == (
        opening + "only one node count, 4 nodes (40.0 s), so there is no speedup to show."
    )
    assert headline({1: 40, 2: 20}, kind=kind, deadline_seconds=9).startswith(
        opening + "no measured count trains"
    )


def test_stay_where_no_larger_count_is_efficient(headline):
    assert (
        headline({1: 40, 2: 30})
        == "Stay on 1 node (40.0 s): 2 nodes were 1.3x faster, but efficiency 67% is below 75% "
        "and doubling ratio 1.33 is below 1.50 (one run each, no interval)."
    )
    assert (
        headline({1: [40, 40, 41], 2: [50, 51, 52]})
        == "Stay on 1 node (40.0 s): no larger count was faster."
    )
    assert "2 nodes were barely faster, but" in headline({1: 40, 2: 39.5})
    assert headline({1: [40, 41], 2: 50}).endswith(
        "no larger count was faster (too few runs for an interval)."
    )


def test_runs_without_an_interval_are_told(headline):
    assert "(too few runs for an interval)" in headline({1: [40, 41], 2: 20})
    assert "(too few runs for an interval)" in headline({1: [40, 41, 42], 2: 20})


def test_relative_baseline_and_failures_are_said(headline):
    assert (
        headline({2: 60, 4: 30}, failed=[1, 8])
        == "Run it on 4 nodes: 2.0x faster than the relative baseline of 2 nodes at 1 min 0 s "
        "(one run each, no interval); 2 of 4 jobs did not complete."
    )
    assert headline({2: 60, 4: 61}).startswith(
        "Stay on 2 nodes, the relative baseline (1 min 0 s): no larger"
    )


def test_one_count_and_none(headline):
    assert headline({4: 40}) == (
        "Only one node count, 4 nodes (40.0 s), so there is no speedup to show."
    )
    assert headline({1: 40}, failed=[2]).endswith(
        "no speedup to show; 1 of 2 jobs did not complete."
    )
    assert (
        headline({}, failed=[1, 2])
        == "Nothing to compare: none of 2 jobs completed with a train time."
    )


def test_deadline(headline):
    assert (
        headline(REFERENCE, usd={1: 10, 2: 11, 4: 13, 8: 15}, deadline_seconds=3600)
        == "Run it on 2 nodes, the cheapest count that meets the deadline (start-up not included):"
        " 1.8x faster than 1 node at 1 h 39 min (one run each, no interval), 10% more expensive; 8"
        " nodes were 7.3x faster, but run cost $15.00 is above the $11.00 of 2 nodes."
    )
    assert headline(REFERENCE, usd={1: 10, 2: 11, 4: 13, 8: 15}, deadline_seconds=6000).startswith(
        "Stay on 1 node (1 h 39 min), the cheapest count that meets the deadline (start-up not"
        " included): 8 nodes were 7.3x faster, but run cost $15.00 is above the $10.00 of 1 node"
    )
    assert headline(REFERENCE, deadline_seconds=600).startswith(
        "No measured count trains within 10 min 0 s (start-up not included); at the fastest, 8"
        " nodes, train time 13 min 30 s misses"
    )


def test_a_cheaper_slower_count_is_not_called_faster(headline):
    text = headline({1: 40, 2: 50}, usd={1: 9, 2: 3}, deadline_seconds=60)
    assert text.startswith(
        "Run it on 2 nodes, the cheapest count that meets the deadline (start-up not included): "
        "0.8x as fast as 1 node at 40.0"
    )
    assert (
        "67% cheaper; 1 node was faster, but run cost $9.00 is above the $3.00 of 2 nodes." in text
    )


def test_throughput_only_is_named_as_the_reason(headline):
    assert (
        headline({1: 40, 2: 20}, loss={1: 0.5, 2: 0.9})
        == "Stay on 1 node (40.0 s): 2 nodes were 2.0x faster, but the final metric is not shown to"
        " be within the tolerance of the baseline's, so its time is not a time-to-train (one run"
        " each, no interval)."
    )


def test_a_rates_time_is_per_sample(headline):
    assert "2.0x faster than 1 node at 4 ms per sample (" in headline(
        {1: 0.004, 2: 0.002}, clock="throughput"
    )
    assert "Stay on 1 node (4 ms per sample):" in headline({1: 0.004, 2: 0.005}, clock="throughput")


def test_a_sweep_on_spot_capacity_alone_says_why_there_is_nothing_to_compare(make_outcome):
    rows = summarise([make_outcome(1, 40, spot=True), make_outcome(2, 21, spot=True)])
    assert (
        write_headline("aws", None, rows, 2, None)
        == "Nothing to compare: all completed runs were on spot capacity, which never counts "
        "for the headline."
    )
    # A failed job changes nothing; an on-demand one that completed without a time does.
    rows = summarise([make_outcome(1, 40, spot=True), make_outcome(2)])
    assert "all completed runs were on spot capacity" in write_headline("aws", None, rows, 2, None)
    rows = summarise(
        [make_outcome(1, 40, spot=True), make_outcome(2, status="Completed", reason=None)]
    )
    assert (
        write_headline("aws", None, rows, 2, None)
        == "Nothing to compare: none of 2 jobs completed on demand with a train time, and spot "
        "runs never count for the headline."
    )


def test_a_superlinear_choice_is_qualified(headline):
    assert (
        "2.5x faster than 1 node at 1 min 40 s (one run each, no interval), superlinear: repeat the"
        " baseline first" in (headline({1: 100, 2: 40}))
    )


def test_a_choice_that_is_superlinear_by_noise_alone_is_not_qualified(headline):
    # E(2) = 100/49.9/2 > 1, and its interval holds 1
    assert "superlinear" not in headline({1: [99, 100, 101], 2: [49, 49.9, 51]})
    assert "superlinear: repeat" in headline({1: [99, 100, 101], 2: [39, 40, 41]})


def test_a_batch_that_grows_with_the_nodes_is_called_throughput_scaling(headline):
    usd = {1: 10, 2: 11}
    assert (
        headline({1: 40, 2: 20}, usd=usd, policy="fixed_per_replica")
        == "Run it on 2 nodes: 2.0x faster than 1 node at 40.0 s (one run each, no interval), "
        "throughput scaling with a batch that grows with the nodes, 10% more expensive."
    )
    assert headline({1: 40, 2: 30}, policy="fixed_per_replica").endswith(
        "(one run each, no interval), throughput scaling with a batch that grows with the nodes."
    )
    assert headline({1: 40, 2: 20}, policy="fixed_global") == headline({1: 40, 2: 20})


def test_a_deadline_that_includes_waiting_says_so(make_outcome):
    times = {1: (100, 120), 2: (55, 80)}
    outcomes = [
        make_outcome(nodes, train, clocks=Clocks(submit_to_end_seconds=whole, train_seconds=train))
        for nodes, (train, whole) in times.items()
    ]
    rows = summarise(outcomes)
    recommendation = recommend(rows, RecommendationConfig(deadline_seconds=90))
    assert write_headline("aws", baseline_of(rows), rows, 2, recommendation).startswith(
        "Run it on 2 nodes, the cheapest count that meets the deadline (waiting included): 1.8x"
        " faster than 1 node"
    )


def test_starved_nodes_are_said_once(make_outcome, make_report):
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

    assert headline(99.0, 99.0, 40.0).endswith(
        "; contended: the nodes did not get the CPU they requested at 4 nodes."
    )
    none = headline(99.0, 40.0, 40.0)
    assert none.startswith("No recommendation") and none.count("were contended") == 1
