"""Speedup statistics compared with numbers worked out by hand, and properties that they always
have."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.configs.models import ParityConfig
from nodesweep.scaling.analysis.clocks import karp_flatt
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.speedup import (
    MixedOutcomesError,
    SummaryRow,
    baseline_of,
    summarise_runs,
)
from nodesweep.scaling.formats import format_speedup
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from tests.nodesweep.scaling.conftest import summarise

REFERENCE = {1: 99 * 60.0, 2: 55 * 60.0, 4: 27 * 60.0, 8: 13.5 * 60.0}


def column(rows: tuple[SummaryRow, ...], name: str) -> list[object]:
    return [getattr(row if hasattr(row, name) else row.train, name) for row in rows]


def test_reference_row_speedup_efficiency_and_doubling(make_outcomes):
    rows = summarise(make_outcomes(REFERENCE))
    assert column(rows, "speedup") == pytest.approx([1, 1.8, 99 / 27, 99 / 13.5])
    assert column(rows, "efficiency") == pytest.approx([1, 0.9, 0.91667, 0.91667], abs=1e-4)
    assert column(rows, "doubling_ratio")[0] is None
    assert column(rows, "doubling_ratio")[1:] == pytest.approx([1.8, 55 / 27, 2.0])


def test_reference_row_karp_flatt(make_outcomes):
    rows = summarise(make_outcomes(REFERENCE))
    # (1/1.8 - 1/2)/(1/2) = 1/9; (27/99 - 1/4)/(3/4) = 1/33; (13.5/99 - 1/8)/(7/8) = 1/77
    assert column(rows, "karp_flatt")[0] is None
    assert column(rows, "karp_flatt")[1:] == pytest.approx([1 / 9, 1 / 33, 1 / 77])


def test_reference_row_prints_as_its_source_prints_it(make_outcomes):
    rows = summarise(make_outcomes(REFERENCE))
    assert [format_speedup(row.train.speedup) for row in rows[1:]] == ["1.8x", "3.7x", "7.3x"]


def test_perfect_scaling_is_not_superlinear(make_outcomes):
    rows = summarise(make_outcomes({nodes: 100 / nodes for nodes in (1, 2, 3, 4, 6, 7)}))
    assert column(rows, "efficiency") == pytest.approx([1.0] * 6)
    assert column(rows, "karp_flatt")[1:] == pytest.approx([0.0] * 5, abs=1e-12)
    assert all(row.flags == () for row in rows)


def test_constant_times_do_not_scale_at_all(make_outcomes):
    rows = summarise(make_outcomes({1: 50, 2: 50, 4: 50}))
    assert column(rows, "speedup") == [1, 1, 1]
    assert column(rows, "karp_flatt")[1:] == pytest.approx([1, 1])
    assert all(row.flags == () for row in rows)


def test_superlinear_and_retrograde_are_flagged(make_outcomes):
    rows = summarise(make_outcomes({1: 100, 2: 40, 4: 60, 8: 50}))
    assert column(rows, "flags") == [(), ("superlinear",), ("retrograde",), ("retrograde",)]


def test_failed_middle_point_keeps_its_row_and_breaks_the_doubling(make_outcomes, make_outcome):
    rows = summarise([*make_outcomes({1: 80, 2: 40, 8: 10}), make_outcome(4)])
    assert column(rows, "nodes") == [1, 2, 4, 8]
    assert (rows[2].n, rows[2].n_failed, rows[2].train.seconds, rows[2].train.speedup) == (
        0,
        1,
        None,
        None,
    )
    assert rows[3].train.doubling_ratio is None
    assert rows[3].train.speedup == 8


def test_baseline_above_one_node_is_relative(make_outcomes):
    rows = summarise(make_outcomes({2: 60, 4: 30}))
    baseline = baseline_of(rows)
    assert baseline is not None
    assert (baseline.nodes, baseline.relative) == (2, True)
    assert column(rows, "efficiency") == [1, 1]
    assert karp_flatt(1.5, 2) == pytest.approx(1 / 3)


def test_failed_baseline_makes_the_next_count_a_relative_one(make_outcomes, make_outcome):
    baseline = baseline_of(summarise([make_outcome(1), *make_outcomes({2: 60, 4: 30})]))
    assert baseline is not None
    assert (baseline.nodes, baseline.relative) == (2, True)


def test_planned_counts_without_an_attempt_have_a_row(make_outcomes):
    rows = summarise(make_outcomes({1: 60}), planned_nodes=(1, 2))
    assert (rows[1].nodes, rows[1].n, rows[1].n_failed, rows[1].train.speedup) == (2, 0, 0, None)


def test_repeats_give_the_geometric_mean(make_outcomes, make_outcome):
    rows = summarise([*make_outcomes({1: [80, 100, 125], 2: [50, 98]}), make_outcome(2, None, 3)])
    assert column(rows, "seconds") == pytest.approx([100, 70])
    assert (rows[1].n, rows[1].n_failed) == (2, 1)


def test_cost_is_billable_times_nodes_times_price(make_outcome):
    price = Price(instance_type="ml.m5.xlarge", usd_per_hour=0.23)
    clocks = Clocks(train_seconds=100, billable_seconds=360)
    assert summarise([make_outcome(4, 100, clocks=clocks)], price)[
        0
    ].costs.run_usd == pytest.approx(4 * 0.1 * 0.23)
    assert summarise([make_outcome(4, 100)], price)[0].costs.run_usd is None


@pytest.mark.parametrize(
    ("field", "one", "other"),
    [
        ("region", "eu-west-1", "us-east-1"),
        ("image_uri", "repo@sha256:aa", "repo@sha256:bb"),
        ("batch_policy", "fixed_global", "fixed_per_replica"),
        ("learning_rate_rule", "linear", "none"),
    ],
)
def test_points_of_different_policies_images_or_regions_are_refused(
    make_outcome, field, one, other, snapshot
):
    with pytest.raises(MixedOutcomesError) as refused:
        summarise([make_outcome(1, 9, **{field: other}), make_outcome(2, 5, **{field: one})])
    assert str(refused.value) == snapshot
    rows = summarise([make_outcome(1, 9, **{field: one}), make_outcome(2, **{field: None})])
    assert [row.n for row in rows] == [1, 0], "what is not known is no difference"


def test_spot_runs_never_make_the_headline(make_outcome):
    rows = summarise([make_outcome(1, 100), make_outcome(2, 50, spot=True), make_outcome(2, 60, 2)])
    assert (rows[1].n, rows[1].n_spot, rows[1].n_failed, rows[1].train.seconds) == (1, 1, 0, 60)


def test_each_clock_has_its_own_ratios(make_outcome):
    def run(nodes: int, train: float, billable: float, wait: float, step: float) -> JobOutcome:
        clocks = Clocks(
            submit_to_end_seconds=wait,
            billable_seconds=billable,
            train_seconds=train,
            steady_step_seconds=step,
        )
        return make_outcome(nodes, train, clocks=clocks, global_batch_size=100 * nodes)

    one, four = (
        row.clocks for row in summarise([run(1, 80, 100, 200, 0.4), run(4, 20, 50, 160, 0.5)])
    )
    assert (one.train.speedup, four.train.speedup) == (1, 4)
    assert (four.billable.speedup, four.submit_to_end.speedup) == (2, 1.25)
    # 0.4 s for 100 samples against 0.5 s for 400: 4 ms against 1.25 ms a sample.
    assert (one.steady.seconds, four.steady.seconds) == pytest.approx((0.004, 0.00125))
    assert four.steady.speedup == pytest.approx(3.2)
    assert four.steady.efficiency == pytest.approx(0.8)


def test_a_clock_that_the_baseline_lacks_has_times_but_no_ratios(make_outcome):
    rows = summarise(
        [
            make_outcome(1, 80),
            make_outcome(2, 50, clocks=Clocks(train_seconds=50, billable_seconds=60)),
        ]
    )
    assert (rows[1].clocks.billable.seconds, rows[1].clocks.billable.speedup) == (60, None)
    assert rows[1].clocks.billable.doubling_ratio is None


def test_efficiency_against_one_accelerator_needs_a_run_on_one(make_outcome):
    rows = summarise([make_outcome(1, 100, world_size=1), make_outcome(4, 30, world_size=4)])
    assert column(rows, "accelerator_efficiency") == pytest.approx([1, 100 / 120])
    rows = summarise([make_outcome(1, 100, world_size=8), make_outcome(4, 30, world_size=32)])
    assert column(rows, "accelerator_efficiency") == [None, None]


def test_three_repeats_give_intervals_and_two_give_none(make_outcomes):
    rows = summarise(make_outcomes({1: [100, 101, 102], 2: [50, 51, 52], 4: [25, 26]}))
    two = rows[1].train
    assert two.seconds == pytest.approx((50 * 51 * 52) ** (1 / 3))
    # t = 4.302653, s of the logs .019612
    low, high = two.seconds / 1.04992, two.seconds * 1.04992
    assert (two.seconds_interval.low, two.seconds_interval.high) == pytest.approx(
        (low, high), rel=1e-4
    )
    assert two.speedup_interval.low < 101 / 51 < two.speedup_interval.high
    assert two.efficiency_interval.low == two.speedup_interval.low / 2
    assert two.doubling_ratio_interval == two.speedup_interval
    assert rows[0].train.speedup_interval is None, "the baseline against itself has no spread"
    assert (rows[2].train.seconds_interval, rows[2].train.speedup_interval) == (None, None)


def test_epochs_phases_and_target_are_medians_and_costs_are_means(make_outcome):
    def run(repeat: int, seconds: float, reached: float | None) -> JobOutcome:
        validations = [{"elapsed_seconds": 5.0, "value": 0.5}]
        validations += [] if reached is None else [{"elapsed_seconds": reached, "value": 0.9}]
        metrics = {
            "epochs": 10,
            "final_metric": {"name": "accuracy", "value": 0.95, "goal": "maximize"},
            "validations": validations,
        }
        clocks = Clocks(train_seconds=seconds, billable_seconds=seconds + 20)
        return make_outcome(
            2, seconds, repeat, metrics=metrics, clocks=clocks, phases={"Training": seconds + 15}
        )

    price = Price(instance_type="ml.m5.xlarge", usd_per_hour=3600)
    (row,) = summarise(
        [run(1, 100, 60), run(2, 110, 70), run(3, 130, 80)],
        price,
        (),
        ParityConfig(target_metric=0.9),
    )
    assert (row.epochs, row.phases, row.seconds_to_target) == (10, {"Training": 125}, 70)
    run_usd, epoch_usd = 2 * (120 * 130 * 150) ** (1 / 3), 0.2 * (100 * 110 * 130) ** (1 / 3)
    assert (row.costs.run_usd, row.costs.epoch_usd) == pytest.approx((run_usd, epoch_usd))
    # Billed 20 s beside the training; of the training only what came before the target.
    assert row.costs.target_usd == pytest.approx(2 * (80 * 90 * 100) ** (1 / 3))
    (row,) = summarise(
        [run(1, 100, 60), run(2, 110, None)], price, (), ParityConfig(target_metric=0.9)
    )
    assert (row.seconds_to_target, row.costs.target_usd) == (None, None), "not every run reached it"


def test_mixed_instance_types_and_platforms_are_refused(make_outcome, snapshot):
    for other in ({"instance_type": "ml.g5.xlarge"}, {"platform_kind": "emulated"}):
        with pytest.raises(MixedOutcomesError) as refused:
            summarise([make_outcome(1, 9), make_outcome(2, 5, **other)])
        assert str(refused.value) == snapshot


def test_parity_is_judged_against_the_baseline(make_outcome, snapshot):
    def run(nodes: int, value: object) -> JobOutcome:
        metric = {"name": "val_accuracy", "value": value, "goal": "maximize"}
        return make_outcome(nodes, 90 / nodes, metrics={"final_metric": metric})

    rows = summarise([run(1, 0.95), run(2, 0.94), run(4, 0.90), run(8, float("nan"))])
    assert column(rows, "flags") == [(), (), ("throughput_only",), ("throughput_only",)]
    assert rows[3].parity.reason == snapshot
    assert rows[3].final_metric is None


def test_a_job_that_only_walked_the_launch_path_is_no_measurement(make_outcome):
    outcomes = [make_outcome(1, 90), make_outcome(2, 45, launch_path_only="smddp is not here")]
    assert column(summarise(outcomes), "n") == [1, 0]


def test_a_target_of_another_metric_is_not_reached(make_outcome):
    def run(nodes: int, name: str, goal: str) -> JobOutcome:
        metric = {"name": name, "value": 0.4, "goal": goal}
        return make_outcome(
            nodes,
            50,
            metrics={"final_metric": metric, "validations": [{"elapsed_seconds": 9, "value": 0.4}]},
        )

    rows = summarise(
        [run(1, "accuracy", "maximize"), run(2, "loss", "minimize")],
        parity=ParityConfig(target_metric=0.5),
    )
    assert column(rows, "seconds_to_target") == [None, None]
    assert rows[1].parity.verdict == "different"


def test_nothing_completed_has_no_baseline(make_outcome):
    rows = summarise([make_outcome(1), make_outcome(2)])
    assert baseline_of(rows) is None
    assert column(rows, "speedup") == [None, None]


times_by_nodes = st.dictionaries(st.integers(1, 512), st.floats(0.01, 1e6), min_size=1, max_size=8)


def outcome_of(nodes: int, repeat: int, seconds: float) -> JobOutcome:
    return JobOutcome(
        nodes=nodes,
        repeat=repeat,
        attempt=1,
        job_name=f"n{nodes}-r{repeat}",
        status="Completed",
        platform_kind="measured",
        clocks=Clocks(train_seconds=seconds),
        train_clock="measured",
    )


def rows_of(times: dict[int, float]) -> tuple[SummaryRow, ...]:
    return summarise([outcome_of(nodes, 1, seconds) for nodes, seconds in times.items()])


@given(times_by_nodes)
def test_the_baseline_is_one_exactly_and_efficiency_times_nodes_is_speedup(times):
    rows = rows_of(times)
    assert rows[0].train.speedup == rows[0].train.efficiency == 1.0
    for row in rows:
        assert row.train.efficiency * row.nodes == pytest.approx(row.train.speedup * rows[0].nodes)


@given(times_by_nodes, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(times, factor):
    scaled = rows_of({nodes: seconds * factor for nodes, seconds in times.items()})
    for row, other in zip(rows_of(times), scaled, strict=True):
        assert other.train.speedup == pytest.approx(row.train.speedup)
        assert other.train.doubling_ratio == pytest.approx(row.train.doubling_ratio)


@given(times_by_nodes, st.randoms(use_true_random=False))
def test_the_order_of_the_outcomes_does_not_matter(times, generator: random.Random):
    items = list(times.items())
    generator.shuffle(items)
    assert rows_of(dict(items)) == rows_of(times)


@given(times_by_nodes)
def test_doubling_ratios_multiply_to_the_speedup(times):
    chain = {nodes: seconds for nodes, seconds in zip((1, 2, 4, 8), times.values(), strict=False)}
    rows = rows_of(chain)
    product = 1.0
    for row in rows[1:]:
        product *= row.train.doubling_ratio
    assert product == pytest.approx(rows[-1].train.speedup)


@given(
    st.dictionaries(
        st.sampled_from((1, 2, 4, 8)),
        st.lists(st.floats(0.01, 1e6), min_size=3, max_size=6),
        min_size=2,
    )
)
def test_every_interval_contains_its_value(times):
    made = [
        outcome_of(nodes, repeat, each)
        for nodes, runs in times.items()
        for repeat, each in enumerate(runs)
    ]
    for row in summarise(made):
        pairs = (
            (row.train.seconds, row.train.seconds_interval),
            (row.train.speedup, row.train.speedup_interval),
            (row.train.efficiency, row.train.efficiency_interval),
            (row.train.doubling_ratio, row.train.doubling_ratio_interval),
        )
        for value, interval in pairs:
            assert interval is None or interval.contains(value)


def test_an_unconfirmed_world_size_is_flagged(make_outcome):
    planned = {"world_size": 2}
    rows = summarise(
        [
            make_outcome(1, 10.0, world_size=1, planned={"world_size": 1}),
            make_outcome(2, 6.0, planned=planned),
            make_outcome(2, 6.0, 2, world_size=2, planned=planned),
        ]
    )
    assert column(rows, "flags") == [(), ("world_size_unconfirmed",)]
    assert column(rows, "world_size") == [1, None], "one of two runs is no word for both"
    phase = make_outcome(2, 6.0, planned=planned, train_clock="training_phase")
    assert summarise([phase])[0].flags == ("world_size_unconfirmed",)


def test_ratios_pair_their_repeats_where_that_was_the_plan(make_outcomes):
    """A drift over the repeats is in both times of a pair, so that it cancels in their ratio."""
    outcomes = make_outcomes({1: [100, 130, 170], 2: [50, 65, 85]})
    paired, alone = (summarise_runs(outcomes, paired=given)[0][1].train for given in (True, False))
    interval = paired.speedup_interval
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))
    assert paired.doubling_ratio_interval == interval
    assert alone.speedup_interval.high > 2.5
    # One slow run counts in the mean of the repeats' ratios, 2 x 2 x 1, and so it does unpaired.
    outcomes = make_outcomes({1: [100, 130, 170], 2: [50, 65, 170]})
    values = [summarise_runs(outcomes, paired=given)[0][1].train.speedup for given in (True, False)]
    assert values == pytest.approx([4 ** (1 / 3)] * 2)
    # Repeat 3 has no pair: two are too few, and the method is not changed for that.
    short = summarise_runs(make_outcomes({1: [100, 130, 170], 2: [50, 65]}), paired=True)[0][1]
    assert short.train.speedup_interval is None
