"""The caveats of a report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.outcome.logged import CutNumber, UnmatchedMetric
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.report.tables.attempts import attempts_table
from nodesweep.scaling.report.tables.summary import main_table
from tests.nodesweep.scaling.analysis.test_step_budget import rank, run

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
WORSE = {"name": "val_accuracy", "value": 0.93, "goal": "maximize"}
NO_QUOTA = {**METRICS, "device": {**METRICS["device"], "cpu_quota_cores": None}}
SOUND = {"metrics": METRICS, "launcher": "torchrun"}
GIVEN = {"platform_kind": "measured", "train_clock": "measured"}
EMULATED = {
    "platform_kind": "emulated",
    "instance_type": "ml.local.small",
    "isolation": "0.2 vCPU per node by cgroup v1 quota",
    "metrics": METRICS,
}
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=0.23, region="us-east-1")


def with_samples(**samples: int) -> dict[str, object]:
    return {**METRICS, "samples": samples}


def few_runs(report) -> list[str]:
    return [caveat for caveat in report.caveats if caveat.startswith("n = ")]


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


@pytest.mark.parametrize("times", [{1: 40, 2: 21}, {4: 12}, {2: 21, 4: 12}], ids=str)
def test_a_sweep_of_one_run_each_without_metrics_or_price(
    times, make_outcomes, make_report, snapshot
):
    assert make_report(make_outcomes(times)).caveats == snapshot


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(EMULATED, id="emulated"),
        pytest.param({**EMULATED, "isolation": "not isolated (cgroups not writable)"}, id="loose"),
        pytest.param(
            {
                **EMULATED,
                "isolation": "0.2 vCPU per node by duty cycle (cgroups not writable)",
                "metrics": NO_QUOTA,
            },
            id="duty cycle",
        ),
        pytest.param({"platform_kind": "simulated"}, id="simulated"),
        pytest.param({**GIVEN, "batch_policy": "fixed_global"}, id="given"),
        pytest.param({**GIVEN, "instance_type": None}, id="given, batch and machines unknown"),
    ],
)
def test_a_platform_other_than_aws_is_named(runs, make_outcomes, make_report, added, snapshot):
    report = make_report(make_outcomes({1: 40, 2: 21}, **runs))
    expected = (runs["platform_kind"], runs.get("isolation"))
    assert (report.platform.kind, report.platform.isolation) == expected
    found = added(report, platform_kind="aws", isolation=None)
    assert found == list(report.caveats[: len(found)]), "the gravest come first"
    assert found == snapshot


def starved(attained_percent: float) -> dict[str, object]:
    return {**EMULATED, "utilisation": {"cpu_percent": 90.0, "attained_percent": attained_percent}}


def test_a_starved_point_is_marked_and_told_and_no_recommendation_rests_on_it(
    make_outcome, make_report, added, snapshot
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
    assert report.headline == snapshot(name="headline")
    assert added(report) == snapshot(name="caveats")
    cells = main_table(report).cells
    assert list(cells["attained"]) == ["97%", "95.3%", "31%"]
    assert list(cells["status"]) == snapshot(name="status")
    assert list(attempts_table(report).cells["status"]) == snapshot(name="status of each run")


@pytest.mark.parametrize(("percent", "shown"), [(95.23, "95.2%"), (94.97, "94%")])
def test_a_share_that_just_misses_the_least_does_not_read_as_the_least(
    make_outcome, make_report, added, percent: float, shown: str
):
    outcomes = [make_outcome(1, 40.0, **starved(99.0)), make_outcome(2, 25.0, **starved(percent))]
    report = make_report(outcomes)
    assert any(f" {shown} at 2 nodes" in caveat for caveat in added(report))
    assert main_table(report).cells["attained"].iloc[1] == shown


def test_a_starved_run_is_left_out_beside_sound_ones(make_outcome, make_report, added, snapshot):
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
    assert added(report) == snapshot


def test_nodes_that_cannot_prove_their_share_are_told(make_outcome, make_report, added, snapshot):
    report = make_report([make_outcome(1, 40.0, **EMULATED, utilisation={"cpu_percent": 90.0})])
    assert added(report) == snapshot
    assert report.summary[0].flags == ()
    assert added(make_report([make_outcome(1, 40.0, utilisation={"cpu_percent": 350.0})])) == []


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            {**EMULATED, "metrics": NO_QUOTA, "isolation": EMULATED["isolation"]}, id="no quota"
        ),
        pytest.param({"metrics": {**METRICS, "steady": {"short_window": True}}}, id="short window"),
        pytest.param({"metrics": {**METRICS, "data_wait_share": 0.35}}, id="waits for data"),
        pytest.param({"metrics": with_samples(processed=1000, padded=15)}, id="padded"),
        pytest.param({"metrics": with_samples(processed=2000)}, id="other work"),
        pytest.param({"metrics": {**METRICS, "final_metric": WORSE}}, id="other final metric"),
        pytest.param({"metrics": METRICS, "launch_path_only": "no smddp here"}, id="launch path"),
        pytest.param({"metrics": METRICS, "launcher": "mpi"}, id="launcher"),
        pytest.param(
            {
                "metrics": METRICS,
                "global_batch_size": 128,
                "learning_rate": 0.1,
                "planned": {"global_batch_size": 256, "learning_rate": 0.1},
            },
            id="other batch than asked",
        ),
    ],
)
def test_a_limit_at_one_node_count_is_named(run, make_outcome, make_report, added, snapshot):
    sound = {**run, **SOUND} if run.get("platform_kind") == "emulated" else SOUND
    report = make_report([make_outcome(1, 40.0, **sound), make_outcome(2, 21.0, **run)])
    assert added(report) == snapshot
    assert report.points[1].used == ("launch_path_only" not in run)


def test_clock_fallback_is_told(make_outcome, make_report, added, snapshot):
    fallback = {"phases": {"Training": 50.0}, "train_clock": "training_phase"}
    assert added(make_report([make_outcome(1, 50.0, **fallback)])) == snapshot(name="everywhere")
    mixed = make_report(
        [make_outcome(1, 40.0, phases={"Training": 60.0}), make_outcome(2, 50.0, **fallback)]
    )
    assert added(mixed) == snapshot(name="of one run")
    assert mixed.train_seconds(mixed.points[0]) == 60.0
    untimed = make_report([make_outcome(1, 40.0), make_outcome(2, 50.0, **fallback)])
    assert added(untimed) == snapshot(name="without a Training phase")


@pytest.mark.parametrize(
    ("header", "failed", "told"),
    [
        ("train_seconds,cost_usd", ",", "time and cost"),
        ("train_seconds,cost_usd", ",2.5", "time"),
        ("train_seconds,cost_usd", "31,", "cost"),
        ("train_seconds,billable_seconds", ",31", None),
        ("samples_per_second,cost_usd", ",", "cost"),
    ],
)
def test_what_a_failed_row_does_not_tell_counts_as_in_a_completed_run(
    make_report, header, failed, told
):
    rows = ["1,1,100.5,1,", "4,1,30.2,2,", f"4,2,{failed},Failed"]
    outcomes = read_measured("\n".join([f"nodes,repeat,{header},status", *rows]))
    columns = (told or "").replace("time", "billable_seconds").replace("cost", "cost_usd")
    found = [each for each in make_report(outcomes).caveats if each.startswith("Unknown ")]
    assert found == (
        [
            f"Unknown {told} of 1 failed attempt at 4 nodes: assumed to be as in a completed run; "
            f"add {columns} to the table."
        ]
        if told
        else []
    )


def test_failures_relative_baseline_and_missing_points(
    make_outcomes, make_outcome, make_report, make_config, added, snapshot
):
    config = make_config(sweep={"node_counts": [1, 2, 4], "repeats": 1})
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    report = make_report([make_outcome(1), *make_outcomes({2: 21})], config=config, plan=plan)
    assert added(report) == snapshot


@pytest.mark.parametrize("changes", [{"train_clock": None}, {"spot": True}], ids=str)
def test_a_count_that_completed_without_a_usable_time_did_complete(
    changes, make_outcomes, make_outcome, make_report, added, snapshot
):
    seconds = None if "train_clock" in changes else 100
    smallest = make_outcome(1, seconds, status="Completed", reason=None, **changes)
    assert added(make_report([smallest, *make_outcomes({2: 50, 4: 25})])) == snapshot


def test_superlinear_by_noise_alone_is_told_from_superlinear(
    make_outcomes, make_report, added, snapshot
):
    report = make_report(make_outcomes({1: [99, 100, 101], 2: [49, 49.9, 51], 4: [20, 20, 20]}))
    assert [row.flags for row in report.summary] == [(), ("superlinear",), ("superlinear",)]
    assert added(report) == snapshot


@pytest.mark.parametrize(
    "times", [{1: 100, 2: 40, 4: 60}, {1: 100.5, 2: 51.2 * 1000, 4: 26.3}], ids=str
)
def test_the_shape_of_the_curve_is_explained(times, make_outcomes, make_report, added, snapshot):
    """Thousands of seconds among tens are a mistake in the unit, which no network causes."""
    assert added(make_report(make_outcomes(times))) == snapshot


def test_few_repeats_are_told_with_what_their_intervals_are_worth(
    make_outcomes, make_report, benchmark_config, snapshot
):
    report = make_report(make_outcomes({1: [40, 41, 42], 2: [21, 22], 4: [10] * 5}))
    assert few_runs(report) == snapshot(name="2 and 3 runs")
    outcomes = make_outcomes({1: [40.1, 41.2, 40.6], 2: [20.1, 21.2, 20.5]})
    paired = make_report(outcomes, config=benchmark_config)
    assert paired.ratio_intervals == "paired"
    assert few_runs(paired) == snapshot(name="paired by repeat")


def test_costs_that_are_not_known_and_old_prices_are_told(
    make_outcome, make_outcomes, make_report, added, snapshot
):
    assert added(make_report(make_outcomes({1: 9}), price=PRICE)) == snapshot(name="not billed")
    clocks = Clocks(train_seconds=40, billable_seconds=60)
    outcomes = [make_outcome(1, 40, clocks=clocks), make_outcome(2, 21)]
    assert added(make_report(outcomes, price=PRICE)) == snapshot(name="at one count")
    old, recent = (
        added(make_report(outcomes, price=PRICE.model_copy(update={"date": date})))
        for date in ("2025-10-03", "2025-10-04")
    )
    assert [caveat for caveat in old if caveat not in recent] == snapshot(name="old")


def test_the_price_of_given_costs_is_not_told_to_be_old(make_outcome, make_report, added):
    given = [make_outcome(nodes, 40 / nodes, given_cost_usd=3.0) for nodes in (1, 2)]
    report = make_report(given, price=PRICE.model_copy(update={"date": "2020-01-01"}))
    assert added(report) == []
    assert [point.cost_is_given for point in report.points] == [True, True]


def test_a_sweep_without_a_batch_policy_says_so(
    make_outcomes, make_report, make_config, added, snapshot
):
    config = make_config(
        training={"batch": None, "learning_rate": None, "hyperparameters": {"batch-size": 32}}
    )
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    report = make_report(make_outcomes({1: 9, 2: 5}), config=config, plan=plan)
    assert (report.policy, report.conditions.learning_rate_rule) == (None, None)
    assert added(report) == snapshot


def test_every_repeats_samples_are_checked(make_outcome, make_report, added, snapshot):
    def run(nodes: int, repeat: int, processed: int):
        metrics = with_samples(processed=processed, requested=1000, padded=0, dropped=0)
        return make_outcome(nodes, 40 / nodes, repeat, metrics=metrics)

    assert added(make_report([run(1, 1, 1000), run(2, 1, 500), run(2, 2, 1000)])) == snapshot
    assert added(make_report([run(1, 1, 1000), run(2, 1, 1000)])) == []


def test_without_a_completed_run_there_is_no_word_of_billable_time(
    make_outcome, make_report, snapshot
):
    assert make_report([make_outcome(1)], price=PRICE).caveats == snapshot


def interrupted(make_outcome, times: int, **changes):
    return make_outcome(2, 40.0, times, metrics={"interruptions": times}, spot=True, **changes)


def test_interruptions_are_counted_with_the_time_they_cost_at_most(
    make_outcome, make_report, added, snapshot
):
    # 50 s in the Training phase against 40 s on the train clock, and 5 s without nodes: at most 15
    # s lost.
    first = interrupted(make_outcome, 2, phases={"Training": 50.0, "Interrupted": 5.0})
    report = make_report([make_outcome(1, 60.0), first, interrupted(make_outcome, 1)])
    assert [point.interruptions for point in report.points] == [None, 1, 2]
    assert added(report) == snapshot


def test_time_lost_by_interruptions_is_not_told_without_the_programs_clock(
    make_outcome, make_report, added, snapshot
):
    first = interrupted(make_outcome, 1, train_clock="training_phase", phases={"Training": 50.0})
    assert added(make_report([make_outcome(1, 60.0), first])) == snapshot


def test_runs_without_an_interruption_say_nothing_of_them(make_outcome, make_report):
    report = make_report([make_outcome(1, 60.0), interrupted(make_outcome, 0)])
    assert report.points[1].interruptions == 0
    assert not any("interruption" in caveat for caveat in report.caveats)


def test_a_metric_that_was_never_printed_is_named_with_its_jobs_and_the_nearest_line(
    make_outcome, make_report, added, snapshot
):
    accuracy = UnmatchedMetric("accuracy", "acc=(.+)")
    outcomes = [
        make_outcome(1, 40.0, unmatched_metrics=(accuracy, UnmatchedMetric("loss", "loss (.)"))),
        make_outcome(
            2, 21.0, unmatched_metrics=(accuracy._replace(nearest="algo-2: accuracy: 0.9"),)
        ),
    ]
    report = make_report(outcomes)
    assert added(report) == list(report.caveats[:2]) == snapshot


def test_a_number_that_would_be_read_in_part_is_named_with_its_jobs_line_and_definition(
    make_outcome, make_report, added, snapshot
):
    by_line = CutNumber("train_seconds", "1,234.5", "algo-1: train_seconds=1,234.5;")
    by_definition = CutNumber("final_metric", "9.1e-05", "algo-1: f1 9.1e-05", "f1 ([0-9.]+)")
    report = make_report(
        [
            make_outcome(1, 40.0, cut_numbers=(by_line, by_definition)),
            make_outcome(2, 21.0, cut_numbers=(by_line._replace(line="algo-2: x"),)),
        ]
    )
    assert added(report) == snapshot


def test_an_order_that_can_not_be_told_from_time_is_a_caveat(
    make_outcomes, make_report, added, snapshot
):
    def at(minutes: list[int]):
        outcomes = make_outcomes({1: [40.1, 41.2], 2: [20.6, 21.2]})
        return make_report(
            [
                replace(each, created_at=f"2026-01-02T03:{minute:02}:00+00:00")
                for each, minute in zip(outcomes, minutes, strict=True)
            ]
        )

    assert added(at([1, 2, 3, 4])) == snapshot
    assert added(at([1, 4, 2, 3])) == []
    assert added(make_report(make_outcomes({1: [40.1, 41.2], 2: [20.6, 21.2]}))) == []


@pytest.mark.parametrize(
    ("sizes", "fields"),
    [
        pytest.param({1: 256, 2: 512, 4: 1024, 8: 65_536}, {}, id="jump"),
        pytest.param({1: 256, 2: 512, 4: 1024, 8: 2048}, {}, id="in proportion"),
        pytest.param({1: 256, 2: 512, 4: None, 8: 2048}, {}, id="one unknown"),
        pytest.param(
            dict.fromkeys((1, 2, 4, 8)), {"batch_policy": "fixed_per_replica"}, id="by policy"
        ),
    ],
)
def test_a_growing_batch_without_a_metric_is_judged_by_what_is_known(
    sizes, fields, make_outcome, make_report, added, snapshot
):
    times = {1: 100, 2: 51, 4: 26, 8: 13.5}
    outcomes = [
        make_outcome(n, times[n], global_batch_size=size, **fields) for n, size in sizes.items()
    ]
    assert added(make_report(outcomes)) == snapshot


def test_a_jump_is_by_processes_where_they_are_known(make_outcome, make_report, snapshot):
    def caveats(*worlds):
        outcomes = [
            make_outcome(n, 100 / n, global_batch_size=size, world_size=world, metrics=METRIC)
            for n, size, world in zip((1, 2), (256, 1024), worlds, strict=True)
        ]
        return [each for each in make_report(outcomes).caveats if "Irregular global batch" in each]

    assert caveats(4, 16) == []
    assert caveats(4, None) == caveats(4, 8) == snapshot


METRIC = {"final_metric": {"name": "accuracy", "goal": "maximize", "value": 0.9}}


def test_weak_scaling_says_what_it_takes_for_granted(make_outcomes, make_report, snapshot):
    table = {"batch_policy": "fixed_per_replica", "platform_kind": "measured"}
    report = make_report(make_outcomes({1: 100, 2: 100, 4: 102}, **table))
    assert [caveat for caveat in report.caveats if "eak scaling" in caveat] == snapshot


def test_samples_that_differ_are_what_the_ratios_compare(make_outcome, make_report):
    def report(**fields):
        return make_report(
            [
                make_outcome(
                    n,
                    100,
                    global_batch_size=64 * n,
                    metrics={"samples": {"processed": 6400 * n}, **fields},
                )
                for n in (1, 2)
            ]
        )

    assert not [each for each in report().caveats if "Not the same work" in each]
    assert [each for each in report(**METRIC).caveats if "Not the same work" in each]


@pytest.mark.parametrize("is_complete", [True, False])
def test_missing_times_of_processes_are_named_for_ones_own_runs(
    is_complete, make_outcome, make_report
):
    world = [rank(0, forward=10.0), rank(1, forward=10.0)]
    outcome = run(make_outcome, 2, 10.0, world if is_complete else world[:1])
    outcome.metrics["world"]["world_size"] = 2
    report = make_report([replace(outcome, platform_kind="measured", world_size=2)])
    named = [each for each in report.caveats if "nodesweep-budget-*.json" in each]
    assert len(named) == (0 if is_complete else 1)
