"""Two sweeps against each other: verdicts by hand, conditions that may not differ, the test's
p-value.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import mannwhitneyu

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.report import ScalingReport
from nodesweep.scaling.trend.compare import (
    Comparison,
    ComparisonError,
    IncomparableError,
    compare,
    mann_whitney,
)
from nodesweep.scaling.trend.compare_render import render_comparison_terminal

Reports = Callable[..., ScalingReport]
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=4.0)
STEADY = [100.0, 100.5, 101.0, 101.5, 102.0]  # median 101
KNOWN: dict[str, Any] = {
    "region": "us-east-1",
    "image_uri": "training@sha256:aa",
    "launcher": "torchrun",
    "batch_policy": "fixed_global",
    "keep_alive": False,
}


@pytest.fixture
def sweep(make_outcomes: Callable[..., Any], make_report: Reports) -> Reports:
    """sweep({1: [times]}, region=…): a report of a sweep with every condition known."""

    def make(
        times: dict[int, Any], given: dict[str, Any] | None = None, **changes: Any
    ) -> ScalingReport:
        facts = {"provenance": {"dataset_digest": "d1"}, **(given or {})}
        rule = changes.pop("learning_rate_rule", "none")  # a report has it from its config
        report = make_report(make_outcomes(times, **{**KNOWN, **changes}), **facts)
        return report.model_copy(
            update={"conditions": report.conditions.model_copy(update={"learning_rate_rule": rule})}
        )

    return make


def verdicts(comparison: Comparison) -> dict[int, str]:
    return {row.nodes: row.verdict for row in comparison.rows}


def terminal(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(render_comparison_terminal(comparison))
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_equal_sweeps_differ_by_a_ratio_of_one(sweep: Reports) -> None:
    [row] = compare(sweep({1: STEADY}), sweep({1: STEADY[::-1]})).rows
    assert (row.ratio, row.verdict, row.p_value) == (1.0, "no difference", 1.0)
    assert row.reason == "the interval is within 0.952 to 1.05"
    assert row.ratio_interval is not None and row.ratio_interval.low < 1 < row.ratio_interval.high


def test_a_fifth_slower_is_an_established_regression(sweep: Reports) -> None:
    before, after = sweep({1: STEADY, 2: [51.0] * 5}), sweep({1: STEADY, 2: [61.2] * 5})
    comparison = compare(before, after)
    assert verdicts(comparison) == {1: "no difference", 2: "regression"}
    assert comparison.regressions == (2,)
    row = comparison.rows[1]
    assert row.ratio == pytest.approx(1.2)
    assert row.reason == "the interval is above 1.05"
    assert (row.a_speedup, row.b_speedup) == (pytest.approx(101 / 51), pytest.approx(101 / 61.2))


def test_a_fifth_faster_is_an_improvement(sweep: Reports) -> None:
    comparison = compare(sweep({1: [61.2] * 5}), sweep({1: [51.0] * 5}))
    assert (verdicts(comparison), comparison.regressions) == ({1: "improvement"}, ())


@pytest.mark.parametrize(
    ("tolerance", "verdict"),
    [(0.19, "regression"), (0.2, "no difference"), (0.25, "no difference")],
)
def test_the_tolerance_is_the_bound_that_the_interval_must_pass(
    sweep: Reports, tolerance: float, verdict: str
) -> None:
    # the interval is [1.2, 1.2]
    comparison = compare(sweep({1: [50.0] * 3}), sweep({1: [60.0] * 3}), tolerance)
    assert verdicts(comparison) == {1: verdict}


def test_both_directions_have_the_same_tolerance(sweep: Reports) -> None:
    slower, faster = sweep({1: [60.0] * 3}), sweep({1: [50.0] * 3})
    for tolerance in (0.1, 0.21):
        there, back = (
            compare(faster, slower, tolerance).rows[0],
            compare(slower, faster, tolerance).rows[0],
        )
        assert (there.verdict, back.verdict) in [
            ("regression", "improvement"),
            ("no difference", "no difference"),
        ]


def test_noise_establishes_nothing(sweep: Reports) -> None:
    [row] = compare(sweep({1: [80.0, 100, 120]}), sweep({1: [90.0, 110, 130]})).rows
    assert (row.verdict, row.reason) == (
        "not established",
        "the interval contains 0.952 and 1.05",
    )


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([100.0], [200.0], "n = 1 in A, 1 in B: an interval needs 3 runs in each"),
        ([100.0] * 5, [200.0] * 2, "n = 5 in A, 2 in B: an interval needs 3 runs in each"),
    ],
)
def test_few_runs_establish_nothing(
    sweep: Reports, before: list[float], after: list[float], reason: str
) -> None:
    [row] = compare(sweep({1: before}), sweep({1: after})).rows
    assert (row.ratio, row.ratio_interval, row.verdict, row.reason) == (
        2.0,
        None,
        "not established",
        reason,
    )


def test_a_count_without_a_completed_run_is_said(sweep: Reports) -> None:
    comparison = compare(sweep({1: STEADY, 2: STEADY}), sweep({1: STEADY, 2: None}))
    row = comparison.rows[1]
    assert (row.ratio, row.reason) == (None, "no used run in B")
    assert comparison.lost == (2,)
    assert "No run of B completed at 2 nodes." in terminal(comparison)
    slower = compare(
        sweep({1: STEADY, 2: STEADY}), sweep({1: [2 * each for each in STEADY], 2: None})
    )
    assert "No run of B completed at 2 nodes. Regression established at 1 node" in terminal(slower)
    assert compare(sweep({1: STEADY, 2: None}), sweep({1: STEADY, 2: None})).lost == ()


def test_sweep_in_which_nothing_completed_is_lost_and_not_refused(sweep: Reports) -> None:
    comparison = compare(sweep({1: STEADY, 2: STEADY}), sweep({1: None, 2: None}))
    assert (comparison.lost, comparison.differences) == ((1, 2), ())
    with pytest.raises(IncomparableError, match="region: A us-east-1, B eu-west-1"):
        compare(sweep({1: STEADY}), sweep({1: None}, region="eu-west-1"))


def test_runs_are_walked_the_same_few_times_however_many_node_counts(sweep: Reports) -> None:
    walks = 0

    class Counted(tuple[Any, ...]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal walks
            walks += 1
            return super().__iter__()

    many = sweep({nodes: [100.0] for nodes in range(1, 41)})
    many = many.model_copy(update={"points": Counted(many.points)})
    assert len(compare(many, many).rows) == 40
    assert walks < 10


def test_only_common_node_counts_are_compared(sweep: Reports) -> None:
    comparison = compare(
        sweep({1: STEADY, 2: STEADY, 4: STEADY}), sweep({1: STEADY, 2: STEADY, 8: STEADY})
    )
    assert [row.nodes for row in comparison.rows] == [1, 2]
    assert (comparison.only_in_a, comparison.only_in_b) == ((4,), (8,))
    with pytest.raises(
        ComparisonError, match="the sweeps have no node count in common: A has 1 and 2, B has 4"
    ):
        compare(sweep({1: STEADY, 2: STEADY}), sweep({4: STEADY}))


def test_costs_that_are_compared_have_the_warm_pool(sweep: Reports) -> None:
    before, after = (
        sweep(
            {1: [50.0] * 3},
            given={"price": PRICE},
            given_cost_usd=2.0,
            retained_billable_seconds=seconds,
        )
        for seconds in (None, 1800.0)
    )
    [row] = compare(before, after).rows
    assert (row.a_total_usd, row.b_total_usd, row.cost_ratio) == (2.0, 4.0, 2.0)


def test_costs_are_compared(sweep: Reports) -> None:
    before, after = (
        sweep({1: [50.0] * 3}, given_cost_usd=2.0),
        sweep({1: [50.0] * 3}, given_cost_usd=3.0),
    )
    [row] = compare(before, after).rows
    assert (row.a_total_usd, row.b_total_usd, row.cost_ratio) == (2.0, 3.0, 1.5)
    assert compare(sweep({1: [50.0] * 3}), after).rows[0].cost_ratio is None
    assert "cost $2.00 in A, $3.00 in B" in terminal(compare(before, after))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"region": "eu-west-1"}, "region: A us-east-1, B eu-west-1"),
        (
            {"image_uri": "training@sha256:bb"},
            "image_uri: A training@sha256:aa, B training@sha256:bb",
        ),
        ({"instance_type": "ml.p3.2xlarge"}, "instance_type: A ml.m5.xlarge, B ml.p3.2xlarge"),
        ({"launcher": "mpi"}, "launcher: A torchrun, B mpi"),
        (
            {"batch_policy": "fixed_per_replica"},
            "batch_policy: A fixed_global, B fixed_per_replica",
        ),
        ({"learning_rate_rule": "linear"}, "learning_rate_rule: A none, B linear"),
        ({"keep_alive": None}, "start: A cold, B unknown"),
        ({"train_clock": "measured"}, "train_clock: A program, B measured"),
        ({"platform_kind": "emulated"}, "platform: A aws, B emulated"),
        ({"isolation": "not isolated"}, "isolation: A unknown, B not isolated"),
        ({"given": {"provenance": {"dataset_digest": "d2"}}}, "dataset_digest: A d1, B d2"),
        ({"given": {"provenance": {}}}, "dataset_digest: A d1, B unknown"),
    ],
)
def test_a_condition_that_differs_is_named_and_refused(
    sweep: Reports, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(IncomparableError) as refused:
        compare(sweep({1: STEADY}), sweep({1: STEADY}, **change))
    assert [difference.text for difference in refused.value.differences] == [named]
    assert named in str(refused.value) and f"--allow {named.partition(':')[0]}" in str(
        refused.value
    )


def test_emulated_nodes_compare_on_the_same_processor_only(sweep: Reports) -> None:
    def on(name: str, kind: str) -> ScalingReport:
        return sweep({1: STEADY}, platform_kind=kind, metrics={"device": {"name": name}})

    with pytest.raises(IncomparableError, match="device: A Xeon, B EPYC"):
        compare(on("Xeon", "emulated"), on("EPYC", "emulated"))
    assert compare(on("Xeon", "aws"), on("EPYC", "aws")).differences == ()


def test_other_code_is_named_wherever_it_was_uploaded(sweep: Reports) -> None:
    def of(uri: str) -> ScalingReport:
        return sweep({1: STEADY}, {"provenance": {"dataset_digest": "d1", "source_uri": uri}})

    first = of("s3://one/nodesweep/code/0123/sourcedir.tar.gz")
    assert compare(first, of("s3://two/x/code/0123/sourcedir.tar.gz")).differences == ()
    with pytest.raises(IncomparableError, match="code: A 0123, B 4567"):
        compare(first, of("s3://one/nodesweep/code/4567/sourcedir.tar.gz"))


def test_config_that_changes_the_work_is_a_condition(
    sweep: Reports, make_config: Callable[..., Any]
) -> None:
    def of(**training: Any) -> ScalingReport:
        return sweep(
            {1: STEADY},
            {"provenance": {"dataset_digest": "d1"}, "config": make_config(training=training)},
        )

    assert compare(of(), of(max_runtime_seconds=60, seed=7)).differences == ()
    with pytest.raises(
        IncomparableError, match=r"training\.hyperparameters\.epochs: A not set, B 9"
    ):
        compare(
            of(hyperparameters={"batch-size": "{per_replica_batch_size}"}),
            of(hyperparameters={"batch-size": "{per_replica_batch_size}", "epochs": 9}),
        )
    with pytest.raises(IncomparableError, match="training: A unknown, B as configured"):
        compare(sweep({1: STEADY}), of())


def test_other_batches_at_a_common_count_are_a_difference(sweep: Reports) -> None:
    with pytest.raises(
        IncomparableError, match=r"global_batch_size: A 64 at 1 node, B 128 at 1 node"
    ):
        compare(
            sweep({1: STEADY, 2: STEADY, 8: STEADY}, global_batch_size=64),
            sweep({1: STEADY, 2: STEADY}, global_batch_size=128),
        )
    assert compare(sweep({1: STEADY}, global_batch_size=64), sweep({1: STEADY})).differences == ()


def test_what_neither_side_knows_is_mentioned_and_not_refused(sweep: Reports) -> None:
    unknown = {"region": None, "launcher": None}
    comparison = compare(sweep({1: STEADY}, **unknown), sweep({1: STEADY}, **unknown))
    assert comparison.unknown_conditions == ("region", "launcher")
    assert "Unknown for at least one sweep: region and launcher." in terminal(comparison)


def test_allowed_conditions_may_differ_and_no_other(sweep: Reports) -> None:
    before, after = sweep({1: STEADY}), sweep({1: STEADY}, image_uri="new", region="eu-west-1")
    with pytest.raises(IncomparableError) as refused:
        compare(before, after, allowed=frozenset({"image_uri"}))
    assert [difference.field for difference in refused.value.differences] == ["region"]
    comparison = compare(before, after, allowed=frozenset({"image_uri", "region", "training.seed"}))
    assert {difference.accepted for difference in comparison.differences} == {"allowed"}
    assert comparison.label is None


def test_unknown_name_to_allow_is_refused(sweep: Reports) -> None:
    with pytest.raises(
        ComparisonError, match="--allow image: no such condition; those that differ here: image_uri"
    ):
        compare(
            sweep({1: STEADY}), sweep({1: STEADY}, image_uri="new"), allowed=frozenset({"image"})
        )


def test_forced_comparison_is_labelled_everywhere(sweep: Reports) -> None:
    after = sweep({1: STEADY}, image_uri="new", region="eu-west-1", platform_kind="emulated")
    comparison = compare(sweep({1: STEADY}), after, allowed=frozenset({"image_uri"}), force=True)
    label = "forced: platform and region differ"
    assert comparison.label == label
    assert label in terminal(comparison)
    assert label in comparison.model_dump_json()
    assert "(emulated nodes, ml.m5.xlarge against AWS, ml.m5.xlarge)" in terminal(comparison)


@pytest.mark.parametrize("tolerance", [-0.01, float("nan"), float("inf")])
def test_tolerance_that_is_no_share_is_refused(sweep: Reports, tolerance: float) -> None:
    with pytest.raises(ComparisonError, match="tolerance: got"):
        compare(sweep({1: STEADY}), sweep({1: STEADY}), tolerance)


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (2, 8), (20, 20), (60, 55)])
def test_p_value_is_scipys(n: int, m: int) -> None:
    a, b = [float(3 * i) for i in range(n)], [float(2 * i) + 1.5 for i in range(m)]
    method = "exact" if n <= 50 else "asymptotic"
    assert mann_whitney(a, b) == (mannwhitneyu(a, b, method=method).pvalue, None)


def test_p_value_of_separate_samples_by_hand() -> None:
    # one order of C(8, 4) = 70 on either side
    assert mann_whitney([1, 2, 3, 4], [5, 6, 7, 8]) == (pytest.approx(2 / 70), None)
    # tied within the samples, the same 2 of 70
    assert mann_whitney([1, 1, 2, 2], [5, 5, 6, 6]) == (pytest.approx(2 / 70), None)


@pytest.mark.parametrize(
    ("n", "m", "smallest"),
    [(3, 3, "0.1"), (3, 4, "0.057"), (2, 7, "0.056"), (0, 9, "1"), (1, 1, "1")],
)
def test_no_p_value_where_it_could_not_be_small(n: int, m: int, smallest: str) -> None:
    reason = f"with n = {n} and {m}, the test cannot give less than p = {smallest}"
    assert mann_whitney([1.0] * n, [2.0] * m) == (None, reason)


def test_notes_say_what_limits_the_comparison(sweep: Reports) -> None:
    few = compare(
        sweep({1: STEADY, 2: [50.0, 51, 52]}), sweep({1: STEADY[::-1], 2: [50.5, 51, 52]})
    )
    assert few.notes[0].startswith("At 2 nodes a sweep has fewer than 5 runs")
    assert few.notes[1].startswith("Each of the 2 rows is a separate test")
    itself = compare(sweep({1: STEADY}), sweep({1: STEADY}))
    assert itself.notes == ("A and B have the same runs: this compares a sweep with itself.",)


def test_final_metrics_stand_beside_the_times(sweep: Reports) -> None:
    def ending(value: float) -> ScalingReport:
        metric = {"name": "val_accuracy", "value": value, "goal": "maximize"}
        return sweep({1: STEADY}, metrics={"final_metric": metric})

    assert "metric val_accuracy 0.96 in A, val_accuracy 0.5 in B" in terminal(
        compare(ending(0.96), ending(0.5))
    )


def test_a_model_that_no_longer_trains_is_noted(sweep: Reports) -> None:
    def report(value: float) -> ScalingReport:
        metric = {"name": "val_accuracy", "value": 0.96, "goal": "maximize"}
        made = sweep({1: STEADY, 2: STEADY}, metrics={"final_metric": metric})
        rows = [
            row.model_copy(update={"flags": ("throughput_only",)}) if value < 0.9 else row
            for row in made.summary[1:]
        ]
        return made.model_copy(update={"summary": (made.summary[0], *rows)})

    notes = compare(report(0.96), report(0.2)).notes
    assert "Throughput only at 2 nodes in B: a time there is not a time-to-train." in notes
    assert not any("in A" in note for note in notes)


def test_a_starved_count_is_noted(sweep: Reports) -> None:
    a = sweep({1: STEADY, 2: STEADY})
    b = sweep({1: STEADY, 2: STEADY}, utilisation={"attained_percent": 60.0})
    assert (
        "Contended at 1 node and 2 nodes in B: a time there is not a measurement."
        in compare(a, b).notes
    )


def test_of_a_fully_known_sweep_nothing_is_called_unknown(sweep: Reports) -> None:
    comparison = compare(sweep({1: STEADY}), sweep({1: STEADY}))
    assert comparison.unknown_conditions == ()
    assert "Not known" not in terminal(comparison)


def test_terminal_names_the_platform_and_each_verdict(sweep: Reports) -> None:
    comparison = compare(
        sweep({1: STEADY, 2: [51.0] * 5, 4: [40.0]}), sweep({1: STEADY, 2: [61.2] * 5, 4: [40.0]})
    )
    text = terminal(comparison)
    assert "(AWS, ml.m5.xlarge)" in text
    assert "Regression established at 2 nodes: B takes over 5% longer than A." in text
    assert "4 nodes: not established, n = 1 in A, 1 in B" in text
    assert "51.0 s" in text and "1 min 1 s" in text and "1.20 [1.20, 1.20]" in text
    assert "S 2.0x in A, 1.7x in B" in text
    assert "No regression established (tolerance 5%)." in terminal(
        compare(sweep({1: STEADY}), sweep({1: STEADY}))
    )


def test_too_few_runs_cannot_alarm_and_are_not_called_no_regression(sweep: Reports) -> None:
    single = sweep({1: [100.0], 2: [50.0]})
    text = terminal(compare(single, single))
    assert "Cannot alarm: that takes 3 runs in both A and B." in text
    assert "No regression" not in text
    mixed = sweep({1: STEADY, 2: [50.0]})
    text = terminal(compare(mixed, mixed))
    assert "No regression established (tolerance 5%). Cannot alarm at 2 nodes." in text


def test_regression_is_said_to_be_two_sweeps_alone(sweep: Reports) -> None:
    fast, slow = sweep({1: STEADY}), sweep({1: [seconds * 1.3 for seconds in STEADY]})
    assert any("`nodesweep history` judges" in note for note in compare(fast, slow).notes)
    assert not any("`nodesweep history`" in note for note in compare(fast, fast).notes)


def test_note_of_few_runs_says_the_level_that_was_measured(sweep: Reports) -> None:
    few = sweep({1: STEADY[:3], 2: STEADY[:4]})
    assert any("covers 90% or 93%, not 95%" in note for note in compare(few, few).notes)


def test_count_of_one_sweep_alone_is_named(sweep: Reports) -> None:
    text = terminal(compare(sweep({1: STEADY}), sweep({1: STEADY, 2: STEADY})))
    assert "Only in B, not compared: 2 nodes." in text


def test_runs_that_are_as_long_may_be_other_work(
    sweep: Reports, make_config: Callable[..., Any]
) -> None:
    """Sized in seconds: the machine was half as fast, and each run did half as much."""
    sized = {"config": make_config(training={"baseline_seconds": 40})}

    def made(processed: int | None) -> ScalingReport:
        metrics = None if processed is None else {"samples": {"processed": processed}}
        return sweep({1: STEADY, 2: STEADY}, sized, metrics=metrics)

    assert compare(made(1000), made(1000)).differences == ()
    with pytest.raises(
        IncomparableError,
        match=r"baseline_seconds: A 40 \(1000 samples at 1 node\), B 40 \(500 samples at 1 node\)",
    ):
        compare(made(1000), made(500))
    with pytest.raises(IncomparableError, match=r"B 40 \(an unknown number of samples"):
        compare(made(1000), made(None))
    nothing = sweep({1: None}, sized)
    assert compare(made(1000), nothing).lost == (1,)
