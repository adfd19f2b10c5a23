"""What a report says: its facts, its headline and the caveats that apply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.catalogue import load_catalogue
from scaling.cost import Price
from scaling.outcome import Clocks
from scaling.plan import plan_sweep
from scaling.report.build import HIDDEN
from scaling.speedup import MixedOutcomesError

METRICS = {
    "train_seconds": 40.0,
    "steady": {"step_seconds": 0.05, "steps": 400, "seconds": 20.0, "short_window": False},
    "data_wait_share": 0.03,
    "samples": {"requested": 1000, "processed": 1000, "padded": 0, "dropped": 0},
    "final_metric": {"name": "val_accuracy", "value": 0.96, "goal": "maximize"},
    "device": {"type": "cpu", "name": "cpu", "count_per_node": 1, "cpu_quota_cores": 0.2, "threads": 1},
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
        replace(o, clocks=Clocks(60, 50, o.clocks.train_seconds, 0.05))
        for o in make_outcomes({1: [40, 41, 42], 2: [21, 22, 22]}, **clocks)
    ]
    assert make_report(outcomes, price=PRICE).caveats == ()


def test_facts_of_a_point_come_from_its_metrics(make_outcome, make_report):
    (point,) = make_report([make_outcome(1, 40.0, metrics=METRICS, world_size=1)]).points
    assert (point.used, point.world_size, point.data_wait_share) == (True, 1, 0.03)
    assert (point.steady.steps, point.samples.processed, point.device.cpu_quota_cores) == (400, 1000, 0.2)
    assert (point.final_metric.name, point.final_metric.value) == ("val_accuracy", 0.96)


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        {},
        [],
        {"final_metric": None, "samples": [], "steady": 3, "device": "cpu"},
        {"data_wait_share": float("nan"), "samples": {"padded": "few"}, "final_metric": {"value": float("inf")}},
    ],
)
def test_an_odd_metrics_file_of_a_users_program_gives_unknowns(metrics, make_outcome, make_report):
    (point,) = make_report([make_outcome(1, 40.0, metrics=metrics)]).points
    assert (point.final_metric, point.samples, point.steady, point.device, point.data_wait_share) == (None,) * 5


def test_config_policy_and_title(make_outcomes, make_report, make_config):
    config = make_config(training={"environment": {"HF_TOKEN": "s3cr3t", "TOKENIZER": "bert"}})
    report = make_report(make_outcomes({1: 9}), config=config, provenance={"aws": {"secret_access_key": "s3cr3t"}})
    assert (report.title, report.policy) == ("bench", "fixed_global")
    assert report.policy_label == "strong scaling (fixed global batch)"
    assert report.config["training"]["environment"] == {"HF_TOKEN": HIDDEN, "TOKENIZER": "bert"}
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


@pytest.mark.parametrize(
    ("times", "headline"),
    [
        ({1: 40, 8: 6.9}, "8 nodes: 5.8x faster than 1 (efficiency 72 %, 40.0 s → 6.9 s)."),
        (
            {1: 40, 2: 20, 4: 25},
            "2 nodes: 2.0x faster than 1 (efficiency 100 %, 40.0 s → 20.0 s); 4 were slower (1.6x).",
        ),
        ({1: 40, 2: 41}, "No node count was faster than 1 node (40.0 s)."),
        ({4: 40}, "One node count only, 4 nodes (40.0 s): there is no speedup to show."),
    ],
)
def test_headline(times, headline, make_outcomes, make_report):
    assert make_report(make_outcomes(times)).headline == headline


def test_headline_says_emulated_and_counts_failures(make_outcomes, make_outcome, make_report):
    outcomes = [*make_outcomes({1: 40, 2: 20}, **EMULATED), make_outcome(4, None, **EMULATED)]
    assert make_report(outcomes).headline == (
        "2 emulated nodes: 2.0x faster than 1 (efficiency 100 %, 40.0 s → 20.0 s); 1 of 3 jobs did not complete."
    )
    assert make_report([make_outcome(1)]).headline == ("Nothing to compare: none of 1 job completed with a train time.")


def test_emulated_nodes_are_named_as_such(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}, **EMULATED))
    assert (report.platform.kind, report.platform.isolation) == ("emulated", EMULATED["isolation"])
    assert has(report, "Emulated nodes: each node was a share of one machine (0.2 vCPU per node by cgroup v1 quota)")
    assert not has(report, "isolated")
    assert not has(report, "quota not in force")


def test_nodes_that_were_not_isolated(make_outcomes, make_report):
    loose = {**EMULATED, "isolation": "not isolated (cgroups not writable)"}
    report = make_report(make_outcomes({1: 40}, **loose))
    assert has(report, "Nodes not isolated")
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
        ({"steady": {"short_window": True}}, "Short steady window (under 100 steps and 60 s) at 2 nodes"),
        ({"data_wait_share": 0.35}, "Waiting for data took 35 % at 2 nodes"),
        (
            {"samples": {"processed": 1000, "padded": 15}},
            "More than 1 % of the samples were padded or dropped, at 2 nodes",
        ),
        ({"samples": {"processed": 2000}}, "Not the same work: the samples processed at 2 nodes"),
        (
            {"final_metric": {"name": "val_accuracy", "value": 0.93, "goal": "maximize"}},
            "Throughput only at 2 nodes: the final metric differs from the baseline's by more than 0.02",
        ),
    ],
)
def test_what_the_metrics_give_away(change, caveat, make_outcome, make_report):
    outcomes = [make_outcome(1, 40.0, metrics=METRICS), make_outcome(2, 21.0, metrics={**METRICS, **change})]
    assert has(make_report(outcomes), caveat)


def test_clock_fallback_is_told(make_outcome, make_report):
    fallback = {"phases": {"Training": 50.0}, "train_clock": "training_phase"}
    all_fallback = make_report([make_outcome(1, 50.0, **fallback)])
    assert has(
        all_fallback, "Training phase, which includes starting the program and loading its libraries: the program"
    )
    mixed = make_report([make_outcome(1, 40.0, phases={"Training": 60.0}), make_outcome(2, 50.0, **fallback)])
    assert has(mixed, "1 of 2 jobs wrote no metrics.json, and two clocks are never mixed")
    assert mixed.train_seconds(mixed.points[0]) == 60.0
    untimed = make_report([make_outcome(1, 40.0), make_outcome(2, 50.0, **fallback)])
    assert has(untimed, "1 job completed without a readable train time, at 1 node")


def test_failures_relative_baseline_and_missing_points(make_outcomes, make_outcome, make_report, make_config):
    config = make_config(sweep={"node_counts": [1, 2, 4], "repeats": 1})
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    report = make_report([make_outcome(1), *make_outcomes({2: 21})], config=config, plan=plan)
    assert has(report, "1 of 2 jobs did not complete (1 at 1 node)")
    assert has(report, "Relative speedup: the baseline is 2 nodes, since 1 node did not complete.")
    assert has(report, "1 of 3 planned points were not run, at 4 nodes.")
    assert has(report, "One point only (2 nodes)")
    assert has(make_report(make_outcomes({2: 21, 4: 12})), "since 1 node was not measured")


def test_shape_repeats_and_price(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 100, 2: 40, 4: 60}))
    assert has(report, "Superlinear at 2 nodes")
    assert has(report, "Retrograde at 4 nodes")
    assert has(report, "n = 1 at 1, 2 and 4 nodes: no interval from repeats")
    assert has(report, "Cost unknown: no price for ml.m5.xlarge (none was given)")
    assert has(
        make_report(make_outcomes({1: 9}), price=PRICE), "no billable time was read (the price would be 0.23 USD"
    )


def test_a_tables_times_are_as_given(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 9}, platform_kind="measured", train_clock="measured"))
    assert has(report, "Times as given")
    assert report.policy_label == "batch policy unknown"
