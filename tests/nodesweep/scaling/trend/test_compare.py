"""Two sweeps compared: verdicts, conditions that must be equal, and the p-value of the test."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import mannwhitneyu
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.analysis.per_result import Amounts, PerResult, share_interval
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.report import ScalingReport
from nodesweep.scaling.trend.compare import (
    Comparison,
    ComparisonError,
    IncomparableError,
    compare,
    mann_whitney,
)
from nodesweep.scaling.trend.compare_render import (
    comparison_headline,
    comparison_title,
    render_comparison_terminal,
)

Reports = Callable[..., ScalingReport]
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=4.0)
STEADY = [100.0, 100.5, 101.0, 101.5, 102.0]  # median 101
SLOW = [2 * seconds for seconds in STEADY]
KNOWN: dict[str, Any] = {
    "region": "us-east-1",
    "image_uri": "training@sha256:aa",
    "launcher": "torchrun",
    "batch_policy": "fixed_global",
    "keep_alive": False,
}


@pytest.fixture
def sweep(make_outcomes: Callable[..., Any], make_report: Reports) -> Reports:
    """Return the report of a sweep with every condition known, as in sweep({1: [times]},
    region=…)."""

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


def terminal(comparison: Comparison, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_comparison_terminal(comparison))
    return console.file.getvalue()  # type: ignore[attr-defined]


def details(comparison: Comparison) -> list[str]:
    """Return the lines below the table on a terminal."""
    return [line for line in terminal(comparison, 1000).splitlines() if line.startswith("- ")]


def refused(a: ScalingReport, b: ScalingReport, **given: Any) -> list[tuple[Any, ...]]:
    """Return (field, in A, in B) of every condition that forbids the comparison."""
    with pytest.raises(IncomparableError) as error:
        compare(a, b, **given)
    found = error.value.differences
    assert all(f"--allow {each.field}" in str(error.value) for each in found)
    assert all(each.text in str(error.value) for each in found)
    return [(each.field, each.a, each.b) for each in found]


def test_equal_sweeps_differ_by_a_ratio_of_one(sweep: Reports, snapshot: SnapshotAssertion) -> None:
    [row] = compare(sweep({1: STEADY}), sweep({1: STEADY[::-1]})).rows
    assert (row.ratio, row.verdict, row.p_value) == (1.0, "no difference", 1.0)
    assert row.reason == snapshot
    assert row.ratio_interval is not None and row.ratio_interval.low < 1 < row.ratio_interval.high


def test_a_fifth_slower_is_an_established_regression(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    before, after = sweep({1: STEADY, 2: [51.0] * 5}), sweep({1: STEADY, 2: [61.2] * 5})
    comparison = compare(before, after)
    assert verdicts(comparison) == {1: "no difference", 2: "regression"}
    assert comparison.regressions == (2,)
    row = comparison.rows[1]
    assert row.ratio == pytest.approx(1.2)
    assert row.reason == snapshot
    assert (row.a_speedup, row.b_speedup) == (
        pytest.approx(101 / 51, rel=1e-3),
        pytest.approx(101 / 61.2, rel=1e-3),
    )


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


def test_noise_establishes_nothing(sweep: Reports, snapshot: SnapshotAssertion) -> None:
    [row] = compare(sweep({1: [80.0, 100, 120]}), sweep({1: [90.0, 110, 130]})).rows
    assert row.verdict == "not established"
    assert row.reason == snapshot


@pytest.mark.parametrize(("n_a", "n_b"), [(1, 1), (5, 2)])
def test_few_runs_establish_nothing(
    sweep: Reports, snapshot: SnapshotAssertion, n_a: int, n_b: int
) -> None:
    [row] = compare(sweep({1: [100.0] * n_a}), sweep({1: [200.0] * n_b})).rows
    assert (row.n_a, row.n_b) == (n_a, n_b)
    assert (row.ratio, row.ratio_interval, row.verdict) == (2.0, None, "not established")
    assert row.reason == snapshot


def test_a_count_without_a_completed_run_is_lost(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    both, fast_alone = sweep({1: STEADY, 2: STEADY}), sweep({1: STEADY, 2: None})
    comparison = compare(both, fast_alone)
    assert (comparison.rows[1].ratio, comparison.lost) == (None, (2,))
    assert comparison.rows[1].reason == snapshot
    assert compare(fast_alone, fast_alone).lost == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({1: STEADY}, {1: STEADY}, id="no regression"),
        pytest.param({1: STEADY, 2: [50.0]}, {1: STEADY, 2: [50.0]}, id="one count cannot alarm"),
        pytest.param({1: [100.0], 2: [50.0]}, {1: [100.0], 2: [50.0]}, id="none can alarm"),
        pytest.param({1: STEADY, 2: STEADY}, {1: STEADY, 2: None}, id="lost"),
        pytest.param({1: STEADY, 2: STEADY}, {1: STEADY}, id="not measured"),
        pytest.param({1: STEADY}, {1: SLOW}, id="regression"),
        pytest.param({1: STEADY, 2: STEADY}, {1: SLOW, 2: None}, id="regression and lost"),
    ],
)
def test_verdict_over_all_counts_is_one_sentence(
    sweep: Reports, snapshot: SnapshotAssertion, before: dict[int, Any], after: dict[int, Any]
) -> None:
    comparison = compare(sweep(before), sweep(after))
    assert comparison_headline(comparison) == snapshot
    assert f"\n{comparison_headline(comparison)}\n" in terminal(comparison, 1000)


def test_times_computed_from_rates_are_per_sample(sweep: Reports) -> None:
    rates = sweep({1: [0.002] * 3, 2: [0.001] * 3}, train_clock="throughput")
    shown = terminal(compare(rates, rates), 1000)
    assert {"T(A) per sample", "T(B) per sample"} <= set(re.split(r"\s{2,}", shown))


def test_sweep_in_which_nothing_completed_is_lost_and_not_refused(sweep: Reports) -> None:
    comparison = compare(sweep({1: STEADY, 2: STEADY}), sweep({1: None, 2: None}))
    assert (comparison.lost, comparison.differences) == ((1, 2), ())
    elsewhere = sweep({1: None}, region="eu-west-1")
    assert refused(sweep({1: STEADY}), elsewhere) == [("region", "us-east-1", "eu-west-1")]


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


def test_only_common_node_counts_are_compared(sweep: Reports, snapshot: SnapshotAssertion) -> None:
    comparison = compare(
        sweep({1: STEADY, 2: STEADY, 4: STEADY}), sweep({1: STEADY, 2: STEADY, 8: STEADY})
    )
    assert [row.nodes for row in comparison.rows] == [1, 2]
    assert (comparison.only_in_a, comparison.only_in_b) == ((4,), (8,))
    assert comparison.lost == (4,)
    never = compare(sweep({1: STEADY, 2: None}), sweep({1: STEADY}))
    assert (never.only_in_a, never.lost) == ((2,), ())
    assert details(comparison) == snapshot


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


def test_costs_are_compared(sweep: Reports, snapshot: SnapshotAssertion) -> None:
    before, after = (
        sweep({1: [50.0] * 3}, given_cost_usd=2.0),
        sweep({1: [50.0] * 3}, given_cost_usd=3.0),
    )
    [row] = compare(before, after).rows
    assert (row.a_total_usd, row.b_total_usd, row.cost_ratio) == (2.0, 3.0, 1.5)
    assert compare(sweep({1: [50.0] * 3}), after).rows[0].cost_ratio is None
    assert details(compare(before, after)) == snapshot


def failing(report: ScalingReport, failed: int, has_costs: bool = True) -> ScalingReport:
    """Return the report with this many failed attempts per completed run, each as expensive."""
    [row] = report.summary
    usd = row.costs.total_usd
    lost, result = (
        Amounts(usd=each, train_seconds=None, submit_to_end_seconds=None)
        for each in (usd, usd and usd * (1 + failed))
    )
    per = PerResult(
        completed=row.n,
        failed=failed * row.n,
        completed_share=share_interval(row.n, failed * row.n),
        failed_attempt=lost,
        result=result,
    )
    changes = {"per_result": per if has_costs else None, "n_failed": failed * row.n}
    return report.model_copy(update={"summary": (row.model_copy(update=changes),)})


def test_failed_attempts_are_in_the_costs_that_are_compared(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    """A sweep of which two of three attempts fail costs three times as much at the same cost per
    run."""
    before, same = (sweep({1: [50.0] * 3}, given_cost_usd=2.0) for _ in "ab")
    after = failing(same, 2)
    [row] = compare(before, after).rows
    assert (row.a_total_usd, row.b_total_usd) == (2.0, 2.0)
    assert (row.a_usd_per_result, row.b_usd_per_result, row.cost_ratio) == (2.0, 6.0, 3.0)
    assert compare(after, before).rows[0].cost_ratio == pytest.approx(1 / 3)
    assert compare(failing(before, 1), after).rows[0].cost_ratio == 1.5
    assert details(compare(before, after)) == snapshot


def test_runs_are_compared_where_a_results_cost_is_unknown(sweep: Reports) -> None:
    """An older report with failed attempts has no such cost."""
    before, same = (sweep({1: [50.0] * 3}, given_cost_usd=2.0) for _ in "ab")
    older = failing(before, 1, has_costs=False)
    [row] = compare(older, failing(same, 2)).rows
    assert (row.a_usd_per_result, row.b_usd_per_result, row.cost_ratio) == (None, 6.0, 1.0)
    [row] = compare(before, same).rows
    assert "a_usd_per_result" not in row.model_dump(mode="json") and row.cost_ratio == 1.0
    free = sweep({1: [50.0] * 3})
    assert compare(free, failing(free, 1)).rows[0].cost_ratio is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"region": "eu-west-1"}, ("region", "us-east-1", "eu-west-1")),
        (
            {"image_uri": "training@sha256:bb"},
            ("image_uri", "training@sha256:aa", "training@sha256:bb"),
        ),
        ({"instance_type": "ml.p3.2xlarge"}, ("instance_type", "ml.m5.xlarge", "ml.p3.2xlarge")),
        ({"launcher": "mpi"}, ("launcher", "torchrun", "mpi")),
        (
            {"batch_policy": "fixed_per_replica"},
            ("batch_policy", "fixed_global", "fixed_per_replica"),
        ),
        ({"learning_rate_rule": "linear"}, ("learning_rate_rule", "none", "linear")),
        ({"keep_alive": None}, ("start", "cold", None)),
        ({"train_clock": "measured"}, ("train_clock", "program", "measured")),
        ({"platform_kind": "emulated"}, ("platform", "aws", "emulated")),
        ({"isolation": "not isolated"}, ("isolation", None, "not isolated")),
        ({"given": {"provenance": {"dataset_digest": "d2"}}}, ("dataset_digest", "d1", "d2")),
        ({"given": {"provenance": {}}}, ("dataset_digest", "d1", None)),
    ],
)
def test_a_condition_that_differs_is_named_and_refused(
    sweep: Reports, change: dict[str, Any], named: tuple[str, str | None, str | None]
) -> None:
    assert refused(sweep({1: STEADY}), sweep({1: STEADY}, **change)) == [named]


def test_emulated_nodes_compare_on_the_same_processor_only(sweep: Reports) -> None:
    def on(name: str, kind: str) -> ScalingReport:
        return sweep({1: STEADY}, platform_kind=kind, metrics={"device": {"name": name}})

    emulated = on("Xeon", "emulated"), on("EPYC", "emulated")
    assert refused(*emulated) == [("device", "Xeon", "EPYC")]
    assert compare(on("Xeon", "aws"), on("EPYC", "aws")).differences == ()


def test_other_code_is_named_wherever_it_was_uploaded(sweep: Reports) -> None:
    def of(uri: str) -> ScalingReport:
        return sweep({1: STEADY}, {"provenance": {"dataset_digest": "d1", "source_uri": uri}})

    first = of("s3://one/nodesweep/code/0123/sourcedir.tar.gz")
    assert compare(first, of("s3://two/x/code/0123/sourcedir.tar.gz")).differences == ()
    other = of("s3://one/nodesweep/code/4567/sourcedir.tar.gz")
    assert refused(first, other) == [("code", "0123", "4567")]


def test_config_that_changes_the_work_is_a_condition(
    sweep: Reports, make_config: Callable[..., Any], snapshot: SnapshotAssertion
) -> None:
    def of(**training: Any) -> ScalingReport:
        return sweep(
            {1: STEADY},
            {"provenance": {"dataset_digest": "d1"}, "config": make_config(training=training)},
        )

    assert compare(of(), of(max_runtime_seconds=60, seed=7)).differences == ()
    batch = {"batch-size": "{per_replica_batch_size}"}
    found = refused(of(hyperparameters=batch), of(hyperparameters={**batch, "epochs": 9}))
    assert found == [("training.hyperparameters.epochs", "not set", "9")]
    with pytest.raises(IncomparableError) as error:
        compare(sweep({1: STEADY}), of())
    assert [each.field for each in error.value.differences] == ["training"]
    assert str(error.value) == snapshot


def test_other_batches_at_a_common_count_are_a_difference(sweep: Reports) -> None:
    found = refused(
        sweep({1: STEADY, 2: STEADY, 8: STEADY}, global_batch_size=64),
        sweep({1: STEADY, 2: STEADY}, global_batch_size=128),
    )
    assert found == [("global_batch_size", "64 at 1 node", "128 at 1 node")]
    assert compare(sweep({1: STEADY}, global_batch_size=64), sweep({1: STEADY})).differences == ()


def test_what_neither_side_knows_is_mentioned_and_not_refused(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    unknown = {"region": None, "launcher": None}
    comparison = compare(sweep({1: STEADY}, **unknown), sweep({1: STEADY}, **unknown))
    assert comparison.unknown_conditions == ("region", "launcher")
    assert details(comparison) == snapshot


def test_allowed_conditions_may_differ_and_no_other(sweep: Reports) -> None:
    before, after = sweep({1: STEADY}), sweep({1: STEADY}, image_uri="new", region="eu-west-1")
    found = refused(before, after, allowed=frozenset({"image_uri"}))
    assert found == [("region", "us-east-1", "eu-west-1")]
    comparison = compare(before, after, allowed=frozenset({"image_uri", "region", "training.seed"}))
    assert {difference.accepted for difference in comparison.differences} == {"allowed"}
    assert comparison.label is None


@pytest.mark.parametrize(
    ("nodes", "given"),
    [
        pytest.param(4, {}, id="no common node count"),
        pytest.param(1, {"allowed": frozenset({"image"})}, id="unknown condition"),
        *(
            pytest.param(1, {"tolerance": tolerance}, id=f"tolerance {tolerance}")
            for tolerance in (-0.01, float("nan"), float("inf"))
        ),
    ],
)
def test_what_can_not_be_compared_is_refused(
    sweep: Reports, snapshot: SnapshotAssertion, nodes: int, given: dict[str, Any]
) -> None:
    before, after = sweep({1: STEADY, 2: STEADY}), sweep({nodes: STEADY}, image_uri="new")
    with pytest.raises(ComparisonError) as error:
        compare(before, after, **{"allowed": frozenset({"image_uri"}), **given})
    assert str(error.value) == snapshot


def test_forced_comparison_is_labelled_everywhere(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    after = sweep({1: STEADY}, image_uri="new", region="eu-west-1", platform_kind="emulated")
    comparison = compare(sweep({1: STEADY}), after, allowed=frozenset({"image_uri"}), force=True)
    assert comparison.label == snapshot(name="label")
    assert comparison.label in comparison.model_dump_json()
    text = terminal(comparison, 1000)
    assert text.startswith(f"{comparison.label}\n")
    assert comparison_title(comparison) in " ".join(text.split())
    assert comparison_title(comparison) == snapshot(name="title")
    assert details(comparison) == snapshot(name="details")


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
    p_value, reason = mann_whitney([1.0] * n, [2.0] * m)
    assert p_value is None and reason is not None
    assert f"n = {n} and {m}" in reason and reason.endswith(f" p = {smallest}")


METRIC = {"name": "val_accuracy", "value": 0.96, "goal": "maximize"}


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        pytest.param({1: STEADY}, {1: STEADY}, {}, id="itself"),
        pytest.param({1: STEADY}, {1: SLOW}, {}, id="regression"),
        pytest.param({1: STEADY[:3], 2: STEADY[:4]}, {1: STEADY, 2: STEADY}, {}, id="few runs"),
        pytest.param(
            {1: STEADY, 2: STEADY},
            {1: STEADY, 2: STEADY},
            {"utilisation": {"attained_percent": 60.0}},
            id="contended",
        ),
        pytest.param(
            {1: STEADY},
            {1: STEADY},
            {"metrics": {"final_metric": {**METRIC, "value": 0.5}}},
            id="other final metric",
        ),
    ],
)
def test_details_say_what_limits_the_comparison(
    sweep: Reports,
    snapshot: SnapshotAssertion,
    before: dict[int, Any],
    after: dict[int, Any],
    changes: dict[str, Any],
) -> None:
    known = {"metrics": {"final_metric": METRIC}} if "metrics" in changes else {}
    comparison = compare(sweep(before, **known), sweep(after, **changes))
    assert comparison.unknown_conditions == ()
    shown = details(comparison)
    assert shown[len(shown) - len(comparison.notes) :] == [f"- {each}" for each in comparison.notes]
    assert shown == snapshot


def test_a_model_that_no_longer_trains_is_noted(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    a = sweep({1: STEADY, 2: STEADY}, metrics={"final_metric": METRIC})
    worse = a.summary[1].model_copy(update={"flags": ("throughput_only",)})
    b = a.model_copy(update={"summary": (a.summary[0], worse)})
    assert set(compare(a, b).notes) - set(compare(a, a).notes) == snapshot


def test_terminal_names_the_platform_and_each_verdict(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    comparison = compare(
        sweep({1: STEADY, 2: [51.0] * 5, 4: [40.0]}), sweep({1: STEADY, 2: [61.2] * 5, 4: [40.0]})
    )
    assert terminal(comparison) == snapshot


def test_runs_that_are_as_long_may_be_other_work(
    sweep: Reports, make_config: Callable[..., Any], snapshot: SnapshotAssertion
) -> None:
    """The runs are sized in seconds; the machine was half as fast, and each run did half as
    much."""
    sized = {"config": make_config(training={"baseline_seconds": 40})}

    def made(processed: int | None) -> ScalingReport:
        metrics = None if processed is None else {"samples": {"processed": processed}}
        return sweep({1: STEADY, 2: STEADY}, sized, metrics=metrics)

    assert compare(made(1000), made(1000)).differences == ()
    assert refused(made(1000), made(500)) == snapshot(name="counted")
    assert refused(made(1000), made(None)) == snapshot(name="unknown")
    nothing = sweep({1: None}, sized)
    assert compare(made(1000), nothing).lost == (1, 2)
