"""Which caveats a report has, and what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.outcome.logged import CutNumber, UnmatchedMetric
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.report.tables.attempts import attempts_table
from nodesweep.scaling.report.tables.summary import main_table

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
        for o in make_outcomes(
            {1: [40.2, 41.1, 42.3, 40.4, 41.5], 2: [21.3, 22.4, 22.1, 21.2, 22.6]}, **clocks
        )
    ]
    assert make_report(outcomes, price=PRICE).caveats == ()


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
        make_outcome(2, 20.0, **starved(95.3)),
        make_outcome(4, 38.0, **starved(31.0)),
    ]
    report = make_report(outcomes)
    assert [row.flags for row in report.summary] == [(), (), ("starved", "retrograde")]
    assert report.recommendation.chosen is None
    assert report.pareto == ()
    assert (
        "no recommendation, since nodes were contended at 4 nodes, where one got less than 70% "
        "of the CPU it requested, and without them it is unknown whether more than 2 nodes pay "
        "off; 2 nodes passed all limits; `nodesweep run CONFIG --resume"
    ) in report.headline
    assert has(report, "got 31% at 4 nodes of the CPU it requested (threshold 95.3%)")
    assert not has(report, "Unknown at")
    row = main_table(report).cells.iloc[2]
    assert (row["attained"], row["status"]) == ("31%", "ok, contended, retrograde")
    assert attempts_table(report).cells["status"].iloc[-1] == "Completed, contended"


@pytest.mark.parametrize(("percent", "shown"), [(95.23, "95.2%"), (94.97, "94%")])
def test_a_share_that_just_misses_the_least_does_not_read_as_the_least(
    make_outcome, make_report, percent: float, shown: str
):
    outcomes = [make_outcome(1, 40.0, **starved(99.0)), make_outcome(2, 25.0, **starved(percent))]
    report = make_report(outcomes)
    assert has(report, f"got {shown} at 2 nodes of the CPU it requested (threshold 95.3%)")
    assert main_table(report).cells["attained"].iloc[1] == shown


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
    assert has(report, "got 40% at 2 nodes of the CPU it requested")
    assert has(report, "1 job excluded; times there are too long")
    assert not has(report, "without a readable train time")


def test_nodes_that_cannot_prove_their_share_are_told(make_outcome, make_report):
    report = make_report([make_outcome(1, 40.0, **EMULATED, utilisation={"cpu_percent": 50.0})])
    assert has(
        report, "Unknown at 1 node: whether the nodes got the CPU that their quota promised."
    )
    assert report.summary[0].flags == ()
    aws = make_report([make_outcome(1, 40.0, utilisation={"cpu_percent": 50.0})])
    assert not has(aws, "Unknown at")


def test_a_duty_cycle_is_told(make_outcome, make_report):
    device = {**METRICS["device"], "cpu_quota_cores": None}
    held = {**EMULATED, "isolation": "0.2 vCPU per node by duty cycle (cgroups not writable)"}
    report = make_report(
        [make_outcome(1, 40.0, **{**held, "metrics": {**METRICS, "device": device}})]
    )
    assert has(report, "Nodes limited by a duty cycle")
    assert not has(report, "quota not in force")


def test_a_quota_that_was_not_in_force(make_outcome, make_report):
    device = {**METRICS["device"], "cpu_quota_cores": None}
    outcomes = [
        make_outcome(1, 40.0, **EMULATED),
        make_outcome(2, 15.0, **{**EMULATED, "metrics": {**METRICS, "device": device}}),
    ]
    assert has(make_report(outcomes), "CPU quota not in force when training started at 2 nodes")


@pytest.mark.parametrize(
    ("change", "caveat"),
    [
        (
            {"steady": {"short_window": True}},
            "Short steady window (under 100 steps and 60 s) at 2 nodes",
        ),
        (
            {"data_wait_share": 0.35},
            "Share of the train time spent waiting for data: 35% at 2 nodes",
        ),
        (
            {"samples": {"processed": 1000, "padded": 15}},
            "More than 1% of the samples were padding or dropped at 2 nodes",
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
    assert has(all_fallback, "Training phase, which also includes starting the container")
    assert has(
        all_fallback,
        "the program wrote no metrics.json and logged no train_seconds=…. So there is no speedup",
    )
    mixed = make_report(
        [make_outcome(1, 40.0, phases={"Training": 60.0}), make_outcome(2, 50.0, **fallback)]
    )
    assert has(
        mixed,
        "1 of 2 jobs wrote no metrics.json and logged no train_seconds=…, and sources are never "
        "mixed",
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
    assert has(report, "Only one point (2 nodes)")
    assert has(make_report(make_outcomes({2: 21, 4: 12})), "since 1 node was not measured")


def test_superlinear_by_noise_alone_is_told_from_superlinear(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [99, 100, 101], 2: [49, 49.9, 51], 4: [20, 20, 20]}))
    assert [row.flags for row in report.summary] == [(), ("superlinear",), ("superlinear",)]
    assert has(
        report,
        "Superlinear at 2 nodes, but within the noise of the runs: the interval of the "
        "efficiency contains 100%.",
    )
    assert has(report, "Superlinear at 4 nodes: efficiency above 100%.")


def test_shape_repeats_and_price(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 100, 2: 40, 4: 60}))
    assert has(report, "Superlinear at 2 nodes")
    assert has(report, "Retrograde at 4 nodes")
    assert has(report, "n = 1 at 1, 2 and 4 nodes: no interval from repeats")
    assert has(report, "Cost unknown: no price for ml.m5.xlarge (none was given)")
    assert has(
        make_report(make_outcomes({1: 9}), price=PRICE),
        "no billable time was reported (the price is 0.23 USD",
    )


def test_few_repeats_are_told_with_what_their_intervals_are_worth(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [40, 41, 42], 2: [21, 22], 4: [10] * 5}))
    assert has(report, "n = 2 at 2 nodes: no interval from repeats")
    assert has(report, "n = 3 at 1 node: with so few runs, an interval does not reach 95% coverage")


def test_what_the_program_used_instead_of_what_it_was_given(make_outcome, make_report):
    asked = {"global_batch_size": 256, "learning_rate": 0.1}
    as_asked = make_outcome(1, 40, global_batch_size=256, learning_rate=0.1, planned=asked)
    other = make_outcome(2, 21, global_batch_size=128, learning_rate=0.1, planned=asked)
    report = make_report([as_asked, other])
    assert has(
        report,
        "Not as requested: the global batch size that the program reported at 2 nodes differs from"
        " the one it was",
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
    assert has(old, "The price is from 2025-01-01; check the current price")
    assert not has(
        make_report(outcomes, price=PRICE.model_copy(update={"date": "2025-01-03"})),
        "check the current price",
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
    assert has(report, "No batch policy: training.batch is not set")


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
    assert has(report, "Fewer samples than requested were processed at 2 nodes.")
    assert not has(make_report([run(1, 1, 1000), run(2, 1, 1000)]), "samples")


def test_costs_known_at_some_counts_only(make_outcome, make_report):
    known = make_outcome(1, 40, clocks=Clocks(train_seconds=40, billable_seconds=60))
    report = make_report([known, make_outcome(2, 21)], price=PRICE)
    assert has(report, "Cost unknown at 2 nodes: not included in cost comparisons.")


def test_the_price_of_given_costs_is_not_told_to_be_old(make_outcome, make_report):
    given = [make_outcome(nodes, 40 / nodes, given_cost_usd=3.0) for nodes in (1, 2)]
    report = make_report(given, price=PRICE.model_copy(update={"date": "2020-01-01"}))
    assert not has(report, "check the current price")
    assert [point.cost_is_given for point in report.points] == [True, True]


def test_what_a_table_tells_is_not_said_to_be_unknown(make_outcomes, make_report):
    table = {"platform_kind": "measured", "train_clock": "measured", "batch_policy": "fixed_global"}
    assert has(
        make_report(make_outcomes({1: 9}, **table)),
        "Times as given: it is unknown on which clock they were measured",
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
        "Launch path only at 2 nodes: no smddp here; such a time is not a measurement and is "
        "excluded.",
    )
    assert not has(report, "without a readable train time")
    assert not report.points[1].used


def test_without_a_completed_run_there_is_no_word_of_billable_time(make_outcome, make_report):
    assert not has(make_report([make_outcome(1)], price=PRICE), "Cost unknown")


def interrupted(make_outcome, times: int, **changes):
    return make_outcome(2, 40.0, times, metrics={"interruptions": times}, spot=True, **changes)


def test_interruptions_are_counted_with_the_time_they_cost_at_most(make_outcome, make_report):
    # 50 s in the Training phase against 40 s on the train clock, and 5 s without nodes: at most 15
    # s lost.
    first = interrupted(make_outcome, 2, phases={"Training": 50.0, "Interrupted": 5.0})
    report = make_report([make_outcome(1, 60.0), first, interrupted(make_outcome, 1)])
    assert [point.interruptions for point in report.points] == [None, 1, 2]
    assert (
        "3 interruptions of 2 jobs at 2 nodes: the train clock excludes the time lost to them, "
        "at most 15.0 s of 1 job; submit to end and the cost include it." in report.caveats
    )


def test_time_lost_by_interruptions_is_not_told_without_the_programs_clock(
    make_outcome, make_report
):
    first = interrupted(make_outcome, 1, train_clock="training_phase", phases={"Training": 50.0})
    report = make_report([make_outcome(1, 60.0), first])
    (caveat,) = (caveat for caveat in report.caveats if "interruption" in caveat)
    assert (
        caveat
        == "1 interruption of 1 job at 2 nodes: the train clock excludes the time lost to them; "
        "submit to end and the cost include it."
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
        first == "Metric accuracy was never printed in the form of its definition: 'acc=(.+)' "
        "(training.metric_definitions) found no number in the log of 1 node, repeat 1 "
        "and 2 nodes, repeat 1; the most similar line is “algo-2: accuracy: 0.9”. Make "
        "the expression match what the program prints, or change what it prints."
    )
    assert "'loss (.)'" in second and "of 1 node, repeat 1; no line there is similar. " in second
    assert not any("never printed" in other for other in others)


def test_a_number_that_would_be_read_in_part_is_named_with_its_jobs_line_and_definition(
    make_outcome, make_report
):
    by_line = CutNumber("train_seconds", "1,234.5", "algo-1: train_seconds=1,234.5;")
    by_definition = CutNumber("final_metric", "9.1e-05", "algo-1: f1 9.1e-05", "f1 ([0-9.]+)")
    report = make_report(
        [
            make_outcome(1, 40.0, cut_numbers=(by_line, by_definition)),
            make_outcome(2, 21.0, cut_numbers=(by_line._replace(line="algo-2: x"),)),
        ]
    )
    first, second = (caveat for caveat in report.caveats if "was ignored: " in caveat)
    assert first.startswith("A number in the log of 1 node, repeat 1 and 2 nodes, repeat 1 was")
    assert "“algo-1: train_seconds=1,234.5;”" in first
    assert "'f1 ([0-9.]+)' (training.metric_definitions)" in second and "'9.1e-05'" in second


def test_an_order_that_can_not_be_told_from_time_is_a_caveat(make_outcomes, make_report):
    def at(minutes: list[int], **known):
        outcomes = make_outcomes({1: [40.1, 41.2], 2: [20.1, 21.2]})
        return make_report(
            [
                replace(each, created_at=f"2026-01-02T03:{minute:02}:00+00:00")
                for each, minute in zip(outcomes, minutes, strict=True)
            ]
        )

    assert has(at([1, 2, 3, 4]), "Order and node count are confounded")
    assert not has(at([1, 4, 2, 3]), "Order and node count")
    assert not has(
        make_report(make_outcomes({1: [40.1, 41.2], 2: [20.1, 21.2]})), "Order and node count"
    )


def test_what_few_runs_promise_is_said_by_the_method(benchmark_config, make_outcomes, make_report):
    outcomes = make_outcomes({1: [40.1, 41.2, 40.6], 2: [20.1, 21.2, 20.5]})
    assert has(make_report(outcomes), "that of a speedup in about 90 if runs are independent")
    paired = make_report(outcomes, config=benchmark_config)
    assert paired.ratio_intervals == "paired"
    assert has(paired, "that of a speedup in about 95, paired by repeat")


def test_a_unit_mistake_is_not_blamed_on_the_network(make_outcomes, make_report):
    times = {1: 100.5, 2: 51.2 * 1000, 4: 26.3}
    report = make_report(make_outcomes(times))
    assert has(report, "A different unit at 2 nodes?")
    assert not has(report, "exchanging gradients") and not has(report, "Superlinear")
