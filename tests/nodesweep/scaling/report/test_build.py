"""A report: the facts of its runs, its conditions, costs, laws and recommendation."""

from __future__ import annotations

import csv
import io

import pytest

from nodesweep.scaling.analysis.speedup import MixedOutcomesError
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report.render import render_csv, render_html
from nodesweep.scaling.secrets import HIDDEN
from tests.nodesweep.scaling.report.test_caveats import METRICS, PRICE


def test_facts_of_a_point_come_from_its_metrics(make_outcome, make_report):
    (point,) = make_report([make_outcome(1, 40.0, metrics=METRICS, world_size=1)]).points
    assert (point.used, point.world_size, point.data_wait_share) == (True, 1, 0.03)
    assert (point.steady.steps, point.samples.processed, point.device.cpu_quota_cores) == (
        400,
        1000,
        0.2,
    )
    assert (point.final_metric.name, point.final_metric.value) == ("val_accuracy", 0.96)


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        {},
        [],
        {"final_metric": None, "samples": [], "steady": 3, "device": "cpu"},
        {
            "data_wait_share": float("nan"),
            "samples": {"padded": "few"},
            "final_metric": {"value": float("inf")},
        },
    ],
)
def test_an_odd_metrics_file_of_a_users_program_gives_unknowns(metrics, make_outcome, make_report):
    (point,) = make_report([make_outcome(1, 40.0, metrics=metrics)]).points
    assert (
        point.final_metric,
        point.samples,
        point.steady,
        point.device,
        point.data_wait_share,
    ) == (None,) * 5


def test_config_policy_and_title(make_outcomes, make_report, make_config):
    config = make_config(training={"environment": {"HF_TOKEN": "s3cr3t", "TOKENIZER": "bert"}})
    report = make_report(
        make_outcomes({1: 9}), config=config, provenance={"aws": {"secret_access_key": "s3cr3t"}}
    )
    assert (report.title, report.policy) == ("bench", "fixed_global")
    assert report.config["training"]["environment"] == {"HF_TOKEN": HIDDEN, "TOKENIZER": HIDDEN}
    assert report.config["platform"]["credentials"] == "chain"
    assert "s3cr3t" not in str(report.model_dump(mode="json"))


@pytest.mark.parametrize("policy", ["fixed_global", "fixed_per_replica", None])
def test_the_batch_policy_has_a_label(policy, make_outcomes, make_report, snapshot):
    assert make_report(make_outcomes({1: 9}, batch_policy=policy)).policy_label == snapshot


def test_no_outcome_and_mixed_platforms_are_errors(make_outcome, make_report, snapshot):
    with pytest.raises(ValueError) as refused:
        make_report([])
    assert str(refused.value) == snapshot
    with pytest.raises(MixedOutcomesError) as refused:
        make_report([make_outcome(1, 9), make_outcome(2, 5, platform_kind="simulated")])
    assert str(refused.value) == snapshot


def test_report_does_not_depend_on_the_order_of_the_outcomes(make_outcomes, make_report):
    outcomes = make_outcomes({1: [9, 8], 2: 5, 4: 3})
    assert make_report(outcomes[::-1]) == make_report(outcomes)


def test_spot_runs_are_left_out_and_told(make_outcome, make_report, added, snapshot):
    clocks = Clocks(train_seconds=20, billable_seconds=30)
    spot = make_outcome(2, 20, clocks=clocks, spot=True, training_time_seconds=90)
    report = make_report(
        [make_outcome(1, 40, clocks=clocks), make_outcome(2, 21), spot], price=PRICE
    )
    assert added(report) == snapshot
    assert [point.used for point in report.points] == [True, True, False]
    point = report.points[2]
    # 30 s of billed time and 90 s of training on 2 nodes at 0.23 USD/h.
    assert (point.costs.run_usd, point.costs.on_demand_usd) == pytest.approx(
        (2 * 30 * 0.23 / 3600, 2 * 90 * 0.23 / 3600)
    )
    assert report.costs.spent_usd == pytest.approx((30 + 60) * 0.23 / 3600)
    assert report.costs.attempts_without_cost == 1


def test_warm_and_cold_starts_are_told_apart_by_who_reused_whom(
    make_outcome, make_report, added, snapshot
):
    first = make_outcome(
        1, 40, keep_alive=True, reused_by_job="second", retained_billable_seconds=30.0
    )
    second = make_outcome(2, 21, keep_alive=True, job_name="second")
    report = make_report([first, second], price=PRICE)
    assert [point.start for point in report.points] == ["cold", "warm"]
    assert report.conditions.start == "mixed"
    assert added(report) == snapshot
    assert report.costs.warm_pool_usd == pytest.approx(30 * 0.23 / 3600)
    assert make_report([make_outcome(1, 40, keep_alive=False)]).conditions.start == "cold"
    assert make_report([make_outcome(1, 40)]).conditions.start is None


def test_conditions_come_from_the_jobs_and_the_provenance(make_outcome, make_report, make_config):
    outcomes = [
        make_outcome(
            1,
            40,
            region="eu-west-1",
            image_uri="repo@sha256:aa",
            launcher="plain",
            keep_alive=False,
        )
    ]
    provenance = {"dataset_digest": "d1", "image_uri": "ignored", "region": "ignored"}
    conditions = make_report(outcomes, config=make_config(), provenance=provenance).conditions
    assert conditions.model_dump() == {
        "platform": "aws",
        "instance_type": "ml.m5.xlarge",
        "region": "eu-west-1",
        "image_uri": "repo@sha256:aa",
        "dataset_digest": "d1",
        "launcher": "plain",
        "batch_policy": "fixed_global",
        "learning_rate_rule": "linear",
        "start": "cold",
        "train_clock": "program",
    }
    given = make_report(
        [make_outcome(1, 40)], provenance={"image_uri": "repo@sha256:bb", "region": "us-east-1"}
    ).conditions
    assert (given.image_uri, given.region, given.batch_policy) == (
        "repo@sha256:bb",
        "us-east-1",
        None,
    )


def test_laws_are_fitted_to_times_to_train_under_the_batch_policy(
    make_outcomes, make_outcome, make_report, make_config, snapshot
):
    times = {1: 100.0, 2: 55.0, 4: 32.5, 8: 21.25}  # Amdahl with sigma = 0.1
    policy = {"batch": {"policy": "fixed_per_replica", "size": 8}}
    per_replica = make_report(make_outcomes(times), config=make_config(training=policy)).fits
    assert {fit.law for fit in per_replica.laws} == {"amdahl", "usl", "ring"}
    assert per_replica.laws[0].law == "amdahl"
    assert make_report(make_outcomes(times)).fits.left_out == snapshot
    metrics = {"final_metric": {"name": "accuracy", "value": 0.9, "goal": "maximize"}}
    worse = {"final_metric": {"name": "accuracy", "value": 0.5, "goal": "maximize"}}
    report = make_report(
        [*make_outcomes(times, metrics=metrics), make_outcome(16, 6.0, metrics=worse)]
    )
    assert report.fits.extrapolation.nodes == 16, (
        "the throughput-only point at 16 nodes is not fitted"
    )


def test_prediction_rests_on_the_runs_and_says_what_it_takes_for_granted(
    make_outcome, make_outcomes, make_report, snapshot
):
    times = {
        nodes: [100 * (1 + 0.02 * (nodes - 1)) / nodes * factor for factor in (0.999, 1, 1.001)]
        for nodes in (1, 2, 4, 8)
    }
    # One that failed is no run of the curve.
    failed = make_outcome(1, None, 4)
    found = make_report([*make_outcomes(times), failed]).fits.extrapolation
    assert found.train_seconds == pytest.approx(8.125)
    assert found.interval.low < 8.125 < found.interval.high < 1.1 * 8.125
    assert found.assumes == snapshot(name="assumes")
    few = {nodes: at[:2] for nodes, at in times.items()}
    refused = make_report(make_outcomes(few)).fits.extrapolation
    assert refused.supported.reason == snapshot(name="not supported")
    assert (refused.train_seconds, refused.interval, refused.assumes) == (None, None, None)


def test_rules_of_the_config_decide_parity_target_and_recommendation(
    make_outcome, make_report, make_config
):
    def run(nodes: int, seconds: float, value: float):
        metrics = {
            "final_metric": {"name": "accuracy", "value": value, "goal": "maximize"},
            "validations": [{"elapsed_seconds": seconds / 2, "value": value}],
        }
        return make_outcome(nodes, seconds, metrics=metrics)

    outcomes = [run(1, 100, 0.95), run(2, 70, 0.90)]
    assert make_report(outcomes).summary[1].flags == ("throughput_only",)
    rules = {
        "parity": {"tolerance": 0.05, "target_metric": 0.8},
        "recommendation": {"min_efficiency": 0.7, "min_doubling_ratio": 1.4},
    }
    report = make_report(outcomes, config=make_config(report=rules))
    assert (report.summary[1].flags, report.summary[1].parity.verdict) == ((), "reached_target")
    assert (report.points[1].seconds_to_target, report.summary[1].seconds_to_target) == (35, 35)
    assert report.recommendation.chosen.nodes == 2
    assert (
        make_report(
            outcomes, config=make_config(report={"parity": rules["parity"]})
        ).recommendation.chosen.nodes
        == 1
    )


def test_utilisation_of_the_nodes_stands_with_its_run(make_outcome, make_report):
    report = make_report(
        [make_outcome(1, 9, utilisation={"cpu_percent": 87.5, "gpu_percent": 312.0})]
    )
    assert report.points[0].utilisation == {"cpu_percent": 87.5, "gpu_percent": 312.0}
    row = next(csv.DictReader(io.StringIO(render_csv(report))))
    assert (row["utilisation_cpu_percent"], row["utilisation_gpu_percent"]) == ("87.5", "312.0")
    html = render_html(report)
    assert "88%" in html and "312%" in html


def test_a_growing_batch_and_a_rate_are_named_where_they_are_read(
    make_outcomes, make_report, snapshot
):
    metrics = {"final_metric": {"name": "accuracy", "value": 0.9, "goal": "maximize"}}
    growing = make_report(
        make_outcomes({1: 40, 2: 20}, batch_policy="fixed_per_replica", metrics=metrics)
    )
    assert growing.headline == snapshot
    rates = make_report(make_outcomes({1: 0.02, 2: 0.01, 4: 0.005}, train_clock="throughput"))
    assert (
        rates.fits.laws[0].parameters[0].meaning
        != make_report(make_outcomes({1: 40, 2: 20, 4: 10})).fits.laws[0].parameters[0].meaning
    )


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param("1,5.940\n2,3.300\n4,1.620\n8,810", id="thousands separators"),
        pytest.param("1,5.940\n2,3300", id="a separator, two counts"),
        pytest.param("1,5.94\n2,3.3\n4,1620\n8,810", id="two counts each"),
        pytest.param("1,5.940\n1,5981\n1,5902\n2,3300", id="among repeats"),
        pytest.param("1,99\n2,3300\n4,1620", id="minutes at the baseline"),
        pytest.param("1,5940\n2,3300\n4,27\n8,13.5", id="minutes at the largest"),
        pytest.param("1,100\n8,750", id="minutes at a distance"),
    ],
)
def test_a_unit_in_doubt_is_asked_for_instead_of_recommending(make_report, rows, snapshot):
    report = make_report(read_measured(f"nodes,train_seconds\n{rows}\n"))
    assert report.recommendation.chosen is None
    assert report.headline == snapshot


@pytest.mark.parametrize(
    "rows",
    [
        "1,5940\n2,3300\n4,1620\n8,810",
        "1,100\n64,101",
        "1,100\n2,180",
        "1,100\n2,40\n4,300",
    ],
)
def test_slow_counts_are_no_doubt_about_the_unit(make_report, rows):
    report = make_report(read_measured(f"nodes,train_seconds\n{rows}\n"))
    assert "until the times are checked" not in report.headline
