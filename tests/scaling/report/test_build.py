"""What a report says: its facts, its headline and the caveats that apply."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from configs.catalogue import load_catalogue
from scaling.analysis.cost import Price
from scaling.analysis.speedup import MixedOutcomesError
from scaling.outcome.logged import UnmatchedMetric
from scaling.outcome.outcome import Clocks
from scaling.planning.plan import plan_sweep
from scaling.report.render import render_csv, render_html
from scaling.report.tables.attempts import attempts_table
from scaling.report.tables.summary import main_table
from scaling.secrets import HIDDEN

METRICS = {
    "train_seconds": 40.0,
    "steady": {"step_seconds": 0.05, "steps": 400, "seconds": 20.0, "short_window": False},
    "data_wait_share": 0.03,
    "samples": {"requested": 1000, "processed": 1000, "padded": 0, "dropped": 0},
    "final_metric": {"name": "val_accuracy", "value": 0.96, "goal": "maximize"},
    "device": {
        "type": "cpu",
        "name": "cpu",
        "count_per_node": 1,
        "cpu_quota_cores": 0.2,
        "threads": 1,
    },
}
EMULATED = {
    "platform_kind": "emulated",
    "instance_type": "ml.local.small",
    "isolation": "0.2 vCPU per node by cgroup v1 quota",
    "metrics": METRICS,
}
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=0.23, region="us-east-1")


def has(report, text: str) -> bool:
    return any(text in caveat for caveat in report.caveats)


def test_a_clean_sweep_on_aws_has_no_caveat(make_outcomes, make_report):
    clocks = {"metrics": METRICS}
    outcomes = [
        replace(
            o,
            clocks=Clocks(
                submit_to_end_seconds=60,
                billable_seconds=50,
                train_seconds=o.clocks.train_seconds,
                steady_step_seconds=0.05,
            ),
        )
        for o in make_outcomes({1: [40, 41, 42, 40, 41], 2: [21, 22, 22, 21, 22]}, **clocks)
    ]
    assert make_report(outcomes, price=PRICE).caveats == ()


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
    assert report.policy_label == "strong scaling (fixed global batch)"
    assert report.config["training"]["environment"] == {"HF_TOKEN": HIDDEN, "TOKENIZER": HIDDEN}
    assert report.config["platform"]["credentials"] == "chain"
    assert "s3cr3t" not in str(report.to_dict())


def test_no_outcome_and_mixed_platforms_are_errors(make_outcome, make_report):
    with pytest.raises(ValueError, match="no outcome to report"):
        make_report([])
    with pytest.raises(MixedOutcomesError, match="aws, simulated"):
        make_report([make_outcome(1, 9), make_outcome(2, 5, platform_kind="simulated")])


def test_report_does_not_depend_on_the_order_of_the_outcomes(make_outcomes, make_report):
    outcomes = make_outcomes({1: [9, 8], 2: 5, 4: 3})
    assert make_report(outcomes[::-1]) == make_report(outcomes)


def test_emulated_nodes_are_named_as_such(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}, **EMULATED))
    assert (report.platform.kind, report.platform.isolation) == ("emulated", EMULATED["isolation"])
    assert has(
        report,
        "Emulated nodes: each node was a share of one machine (0.2 vCPU per node by cgroup v1"
        " quota)",
    )
    assert not has(report, "isolated")
    assert not has(report, "quota not in force")


def test_simulated_times_are_named_as_such(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}, platform_kind="simulated"))
    assert has(report, "Simulated: no training ran; every time was computed from a model.")


def test_nodes_that_were_not_isolated(make_outcomes, make_report):
    loose = {**EMULATED, "isolation": "not isolated (cgroups not writable)"}
    report = make_report(make_outcomes({1: 40}, **loose))
    assert has(report, "Nodes not isolated")
    assert not has(report, "quota not in force")


def starved(attained_percent: float) -> dict[str, object]:
    return {**EMULATED, "utilisation": {"cpu_percent": 50.0, "attained_percent": attained_percent}}


def test_a_starved_point_is_marked_and_told_and_no_recommendation_rests_on_it(
    make_outcome, make_report
):
    outcomes = [
        make_outcome(1, 40.0, **starved(97.0)),
        make_outcome(2, 20.0, **starved(95.0)),
        make_outcome(4, 38.0, **starved(31.0)),
    ]
    report = make_report(outcomes)
    assert [row.flags for row in report.summary] == [(), (), ("starved", "retrograde")]
    assert report.recommendation.chosen.nodes == 2
    assert report.pareto == ()
    assert report.headline.endswith(
        "; starved: the nodes did not get the CPU they asked for at 4 nodes."
    )
    assert has(
        report,
        "the one that got least had 31 % at 4 nodes of the CPU it asked for, where 95 % is the"
        " least",
    )
    assert not has(report, "Not known at")
    row = main_table(report).rows[2]
    headings = [column.heading for column in main_table(report).columns]
    assert row.cells[headings.index("attained")].text == "31 %"
    assert row.cells[headings.index("status")].text == "ok, starved of CPU, retrograde"
    [*_, attempt] = attempts_table(report).rows
    assert "Completed, starved of CPU" in [cell.text for cell in attempt.cells]


def test_a_starved_run_is_left_out_beside_sound_ones(make_outcome, make_report):
    outcomes = [make_outcome(1, 40.0, **starved(99.0))]
    outcomes += [
        make_outcome(2, 21.0, 1, **starved(98.0)),
        make_outcome(2, 60.0, 2, **starved(40.0)),
    ]
    report = make_report(outcomes)
    assert [(row.n, row.train.seconds, row.flags) for row in report.summary] == [
        (1, 40.0, ()),
        (1, 21.0, ()),
    ]
    assert [point.used for point in report.points] == [True, True, False]
    assert has(report, "had 40 % at 2 nodes of the CPU it asked for")
    assert has(report, "1 job left out; times there are too long")
    assert not has(report, "without a readable train time")


def test_nodes_that_cannot_prove_their_share_are_told(make_outcome, make_report):
    report = make_report([make_outcome(1, 40.0, **EMULATED, utilisation={"cpu_percent": 50.0})])
    assert has(
        report, "Not known at 1 node: whether the nodes got the CPU that their quota promised."
    )
    assert report.summary[0].flags == ()
    aws = make_report([make_outcome(1, 40.0, utilisation={"cpu_percent": 50.0})])
    assert not has(aws, "Not known at")


def test_a_duty_cycle_is_told(make_outcome, make_report):
    device = {**METRICS["device"], "cpu_quota_cores": None}
    held = {**EMULATED, "isolation": "0.2 vCPU per node by duty cycle (cgroups not writable)"}
    report = make_report(
        [make_outcome(1, 40.0, **{**held, "metrics": {**METRICS, "device": device}})]
    )
    assert has(report, "Nodes held by a duty cycle")
    assert not has(report, "quota not in force")


def test_a_quota_that_was_not_in_force(make_outcome, make_report):
    device = {**METRICS["device"], "cpu_quota_cores": None}
    outcomes = [
        make_outcome(1, 40.0, **EMULATED),
        make_outcome(2, 15.0, **{**EMULATED, "metrics": {**METRICS, "device": device}}),
    ]
    assert has(make_report(outcomes), "CPU quota not in force when training started, at 2 nodes")


@pytest.mark.parametrize(
    ("change", "caveat"),
    [
        (
            {"steady": {"short_window": True}},
            "Short steady window (under 100 steps and 60 s) at 2 nodes",
        ),
        (
            {"data_wait_share": 0.35},
            "Share of the train time spent waiting for data: 35 % at 2 nodes",
        ),
        (
            {"samples": {"processed": 1000, "padded": 15}},
            "More than 1 % of the samples were padded or dropped, at 2 nodes",
        ),
        ({"samples": {"processed": 2000}}, "Not the same work: the samples processed at 2 nodes"),
        (
            {"final_metric": {"name": "val_accuracy", "value": 0.93, "goal": "maximize"}},
            (
                "Throughput only at 2 nodes: the final metric is not shown to be within 0.02 of the"
                " baseline's, so the time is not a time-to-train (2 nodes: 0.93 against the"
                " baseline's 0.96, tolerance 0.02"
            ),
        ),
    ],
)
def test_what_the_metrics_give_away(change, caveat, make_outcome, make_report):
    outcomes = [
        make_outcome(1, 40.0, metrics=METRICS),
        make_outcome(2, 21.0, metrics={**METRICS, **change}),
    ]
    assert has(make_report(outcomes), caveat)


def test_clock_fallback_is_told(make_outcome, make_report):
    fallback = {"phases": {"Training": 50.0}, "train_clock": "training_phase"}
    all_fallback = make_report([make_outcome(1, 50.0, **fallback)])
    assert has(all_fallback, "Training phase, which holds starting the container")
    assert has(
        all_fallback,
        "the program wrote no metrics.json and logged no train_seconds=…. So there is no speedup",
    )
    mixed = make_report(
        [make_outcome(1, 40.0, phases={"Training": 60.0}), make_outcome(2, 50.0, **fallback)]
    )
    assert has(
        mixed,
        "1 of 2 jobs wrote no metrics.json and logged no train_seconds=…, and two sources are never"
        " mixed",
    )
    assert mixed.train_seconds(mixed.points[0]) == 60.0
    untimed = make_report([make_outcome(1, 40.0), make_outcome(2, 50.0, **fallback)])
    assert has(
        untimed,
        "1 job completed without a readable train time from the Training phase, the curve's source,"
        " at 1 node",
    )


def test_failures_relative_baseline_and_missing_points(
    make_outcomes, make_outcome, make_report, make_config
):
    config = make_config(sweep={"node_counts": [1, 2, 4], "repeats": 1})
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    report = make_report([make_outcome(1), *make_outcomes({2: 21})], config=config, plan=plan)
    assert has(report, "1 of 2 jobs did not complete (1 at 1 node)")
    assert has(report, "Relative speedup: the baseline is 2 nodes, since 1 node did not complete.")
    assert has(report, "1 of 3 planned points were not run, at 4 nodes.")
    assert has(report, "One point only (2 nodes)")
    assert has(make_report(make_outcomes({2: 21, 4: 12})), "since 1 node was not measured")


def test_superlinear_by_noise_alone_is_told_from_superlinear(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [99, 100, 101], 2: [49, 49.9, 51], 4: [20, 20, 20]}))
    assert [row.flags for row in report.summary] == [(), ("superlinear",), ("superlinear",)]
    assert has(
        report,
        "Superlinear at 2 nodes by no more than the runs vary: the interval of the efficiency holds"
        " 100 %.",
    )
    assert has(report, "Superlinear at 4 nodes: efficiency above 100 %.")


def test_shape_repeats_and_price(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 100, 2: 40, 4: 60}))
    assert has(report, "Superlinear at 2 nodes")
    assert has(report, "Retrograde at 4 nodes")
    assert has(report, "n = 1 at 1, 2 and 4 nodes: no interval from repeats")
    assert has(report, "Cost unknown: no price for ml.m5.xlarge (none was given)")
    assert has(
        make_report(make_outcomes({1: 9}), price=PRICE),
        "no billable time was read (the price would be 0.23 USD",
    )


def test_few_repeats_are_told_with_what_their_intervals_are_worth(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [40, 41, 42], 2: [21, 22], 4: [10] * 5}))
    assert has(report, "n = 2 at 2 nodes: no interval from repeats")
    assert has(report, "n = 3 at 1 node: with so few runs a 95 % interval is too narrow")


def test_spot_runs_are_left_out_and_told(make_outcome, make_report):
    clocks = Clocks(train_seconds=20, billable_seconds=30)
    spot = make_outcome(2, 20, clocks=clocks, spot=True, training_time_seconds=90)
    report = make_report(
        [make_outcome(1, 40, clocks=clocks), make_outcome(2, 21), spot], price=PRICE
    )
    assert has(
        report, "1 job on spot capacity, at 2 nodes: left out of the times, kept in the cost."
    )
    assert [point.used for point in report.points] == [True, True, False]
    point = report.points[2]
    # 30 s of billed time and 90 s of training on 2 nodes at 0.23 USD/h.
    assert (point.costs.run_usd, point.costs.on_demand_usd) == pytest.approx(
        (2 * 30 * 0.23 / 3600, 2 * 90 * 0.23 / 3600)
    )
    assert report.costs.spent_usd == pytest.approx((30 + 60) * 0.23 / 3600)
    assert report.costs.attempts_without_cost == 1


def test_warm_and_cold_starts_are_told_apart_by_who_reused_whom(make_outcome, make_report):
    first = make_outcome(
        1, 40, keep_alive=True, reused_by_job="second", retained_billable_seconds=30.0
    )
    second = make_outcome(2, 21, keep_alive=True, job_name="second")
    report = make_report([first, second], price=PRICE)
    assert [point.start for point in report.points] == ["cold", "warm"]
    assert report.conditions.start == "mixed"
    assert has(report, "Some jobs started cold and some from a warm pool")
    assert report.costs.warm_pool_usd == pytest.approx(30 * 0.23 / 3600)
    assert make_report([make_outcome(1, 40, keep_alive=False)]).conditions.start == "cold"
    assert make_report([make_outcome(1, 40)]).conditions.start is None


def test_what_the_program_used_instead_of_what_it_was_given(make_outcome, make_report):
    asked = {"global_batch_size": 256, "learning_rate": 0.1}
    as_asked = make_outcome(1, 40, global_batch_size=256, learning_rate=0.1, planned=asked)
    other = make_outcome(2, 21, global_batch_size=128, learning_rate=0.1, planned=asked)
    report = make_report([as_asked, other])
    assert has(
        report,
        "Not as asked: the global batch size that the program reported at 2 nodes is not the one"
        " it was",
    )
    assert has(report, "(128 instead of 256 at 2 nodes)")
    assert not has(report, "learning rate")


def test_several_launchers_and_an_old_price_are_told(make_outcome, make_report):
    clocks = Clocks(train_seconds=20, billable_seconds=30)
    outcomes = [
        make_outcome(1, 40, launcher="mpi", clocks=clocks),
        make_outcome(2, 21, launcher="torchrun"),
    ]
    old = make_report(outcomes, price=PRICE.model_copy(update={"date": "2025-01-01"}))
    assert has(old, "Several launchers in one curve (mpi, torchrun)")
    assert has(old, "The price is of 2025-01-01; look up today's")
    assert not has(
        make_report(outcomes, price=PRICE.model_copy(update={"date": "2025-01-03"})),
        "look up today's",
    )


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
    make_outcomes, make_outcome, make_report, make_config
):
    times = {1: 100.0, 2: 55.0, 4: 32.5, 8: 21.25}  # Amdahl with sigma = 0.1
    policy = {"batch": {"policy": "fixed_per_replica", "size": 8}}
    per_replica = make_report(make_outcomes(times), config=make_config(training=policy)).fits
    assert {fit.law for fit in per_replica.laws} == {"amdahl", "usl", "ring"}
    assert per_replica.extrapolation.by_law.keys() == {"amdahl", "usl", "ring"}
    assert per_replica.laws[0].law == "amdahl"
    assert (
        make_report(make_outcomes(times)).fits.left_out["ring"]
        == "the number of optimiser steps is not known"
    )
    metrics = {"final_metric": {"name": "accuracy", "value": 0.9, "goal": "maximize"}}
    worse = {"final_metric": {"name": "accuracy", "value": 0.5, "goal": "maximize"}}
    report = make_report(
        [*make_outcomes(times, metrics=metrics), make_outcome(16, 6.0, metrics=worse)]
    )
    assert report.fits.extrapolation.nodes == 16, (
        "the throughput-only point at 16 nodes is not fitted"
    )


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


def test_a_tables_times_are_as_given(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 9}, platform_kind="measured", train_clock="measured"))
    assert has(report, "Times as given")
    assert report.policy_label == "batch policy unknown"


def test_a_sweep_without_a_batch_policy_says_so(make_outcomes, make_report, make_config):
    config = make_config(
        training={"batch": None, "learning_rate": None, "hyperparameters": {"batch-size": 32}}
    )
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    report = make_report(make_outcomes({1: 9, 2: 5}), config=config, plan=plan)
    assert (report.policy, report.conditions.learning_rate_rule) == (None, None)
    assert report.policy_label == "batch policy unknown"
    assert has(report, "No batch policy: training.batch is not given")


def test_utilisation_of_the_nodes_stands_with_its_run(make_outcome, make_report):
    report = make_report(
        [make_outcome(1, 9, utilisation={"cpu_percent": 87.5, "gpu_percent": 312.0})]
    )
    assert report.points[0].utilisation == {"cpu_percent": 87.5, "gpu_percent": 312.0}
    row = next(csv.DictReader(io.StringIO(render_csv(report))))
    assert (row["utilisation_cpu_percent"], row["utilisation_gpu_percent"]) == ("87.5", "312.0")
    html = render_html(report)
    assert "88 %" in html and "312 %" in html


def test_convergence_that_was_not_checked_is_told(make_outcomes, make_report):
    assert has(make_report(make_outcomes({1: 9, 2: 5})), "Convergence was not checked at 2 nodes")
    assert not has(make_report(make_outcomes({1: 9, 2: 5}, metrics=METRICS)), "Convergence")


def test_a_spot_run_had_its_time(make_outcome, make_report):
    report = make_report([make_outcome(1, 9), make_outcome(2, 5), make_outcome(2, 5, 2, spot=True)])
    assert not has(report, "without a readable train time")


def test_every_repeats_samples_are_checked(make_outcome, make_report):
    def run(nodes: int, repeat: int, processed: int, requested: int = 1000):
        samples = {"processed": processed, "requested": requested, "padded": 0, "dropped": 0}
        return make_outcome(nodes, 40 / nodes, repeat, metrics={**METRICS, "samples": samples})

    report = make_report([run(1, 1, 1000), run(2, 1, 500), run(2, 2, 1000)])
    assert has(report, "Not the same work: the samples processed at 2 nodes")
    assert has(report, "Fewer samples were processed than the run was asked for, at 2 nodes.")
    assert not has(make_report([run(1, 1, 1000), run(2, 1, 1000)]), "samples")


def test_costs_known_at_some_counts_only(make_outcome, make_report):
    known = make_outcome(1, 40, clocks=Clocks(train_seconds=40, billable_seconds=60))
    report = make_report([known, make_outcome(2, 21)], price=PRICE)
    assert has(report, "Cost unknown at 2 nodes: it is in no comparison of costs.")


def test_the_price_of_given_costs_is_not_told_to_be_old(make_outcome, make_report):
    given = [make_outcome(nodes, 40 / nodes, given_cost_usd=3.0) for nodes in (1, 2)]
    report = make_report(given, price=PRICE.model_copy(update={"date": "2020-01-01"}))
    assert not has(report, "look up today's")
    assert [point.cost_is_given for point in report.points] == [True, True]


def test_what_a_table_tells_is_not_said_to_be_unknown(make_outcomes, make_report):
    table = {"platform_kind": "measured", "train_clock": "measured", "batch_policy": "fixed_global"}
    assert has(
        make_report(make_outcomes({1: 9}, **table)),
        "Times as given: on which clock they were measured is not",
    )
    assert has(
        make_report(
            make_outcomes({1: 9}, **{**table, "batch_policy": None, "instance_type": None})
        ),
        "on which clock, under which batch policy and on which machines they were measured",
    )


def test_launch_path_only_is_told_and_left_out(make_outcome, make_report):
    report = make_report([make_outcome(1, 9), make_outcome(2, 5, launch_path_only="no smddp here")])
    assert has(
        report,
        "Launch path only at 2 nodes: no smddp here; such a time is no measurement and is left"
        " out.",
    )
    assert not has(report, "without a readable train time")
    assert not report.points[1].used


def test_without_a_completed_run_there_is_no_word_of_billable_time(make_outcome, make_report):
    assert not has(make_report([make_outcome(1)], price=PRICE), "Cost unknown")


def test_a_growing_batch_and_a_rate_are_named_where_they_are_read(make_outcomes, make_report):
    growing = make_report(make_outcomes({1: 40, 2: 20}, batch_policy="fixed_per_replica"))
    assert "throughput scaling under a batch that grows with the nodes" in growing.headline
    rates = make_report(make_outcomes({1: 0.02, 2: 0.01, 4: 0.005}, train_clock="throughput"))
    assert (
        rates.fits.laws[0].parameters[0].meaning
        != make_report(make_outcomes({1: 40, 2: 20, 4: 10})).fits.laws[0].parameters[0].meaning
    )


def interrupted(make_outcome, times: int, **changes):
    return make_outcome(2, 40.0, times, metrics={"interruptions": times}, spot=True, **changes)


def test_interruptions_are_counted_with_the_time_they_cost_at_most(make_outcome, make_report):
    # 50 s in the Training phase against 40 s on the train clock, and 5 s without nodes: at most 15
    # s lost.
    first = interrupted(make_outcome, 2, phases={"Training": 50.0, "Interrupted": 5.0})
    report = make_report([make_outcome(1, 60.0), first, interrupted(make_outcome, 1)])
    assert [point.interruptions for point in report.points] == [None, 1, 2]
    assert (
        "3 interruptions of 2 jobs, at 2 nodes: the train clock leaves the time lost by them out,"
        " at most 15.0 s of 1 job; submit to end and the cost have it." in report.caveats
    )


def test_time_lost_by_interruptions_is_not_told_without_the_programs_clock(
    make_outcome, make_report
):
    first = interrupted(make_outcome, 1, train_clock="training_phase", phases={"Training": 50.0})
    report = make_report([make_outcome(1, 60.0), first])
    (caveat,) = (caveat for caveat in report.caveats if "interruption" in caveat)
    assert (
        caveat
        == "1 interruption of 1 job, at 2 nodes: the train clock leaves the time lost by them out; "
        "submit to end and the cost have it."
    )


def test_runs_without_an_interruption_say_nothing_of_them(make_outcome, make_report):
    report = make_report([make_outcome(1, 60.0), interrupted(make_outcome, 0)])
    assert report.points[1].interruptions == 0
    assert not any("interruption" in caveat for caveat in report.caveats)


def test_a_metric_that_was_never_printed_is_named_with_its_jobs_and_the_nearest_line(
    make_outcome, make_report
):
    accuracy = UnmatchedMetric("accuracy", "acc=(.+)")
    outcomes = [
        make_outcome(1, 40.0, unmatched_metrics=(accuracy, UnmatchedMetric("loss", "loss (.)"))),
        make_outcome(
            2, 21.0, unmatched_metrics=(accuracy._replace(nearest="algo-2: accuracy: 0.9"),)
        ),
    ]
    first, second, *others = make_report(outcomes).caveats
    assert (
        first == "Metric accuracy was never printed as its definition has it: 'acc=(.+)'"
        " (training.metric_definitions) found no number in the log of 1 node, repeat 1 and 2"
        " nodes, repeat 1; the line most like it is “algo-2: accuracy: 0.9”. Make the expression"
        " fit what the program prints, or have it print that."
    )
    assert "'loss (.)'" in second and "of 1 node, repeat 1; no line there is like it. " in second
    assert not any("never printed" in other for other in others)
