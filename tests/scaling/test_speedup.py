"""Speedup statistics against numbers worked out by hand, and their laws."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.cost import Price
from scaling.formats import format_speedup
from scaling.outcome import Clocks, JobOutcome
from scaling.speedup import (
    MixedOutcomesError,
    SummaryRow,
    baseline_of,
    choose_train_clock,
    karp_flatt,
    summarise,
)

REFERENCE = {1: 99 * 60.0, 2: 55 * 60.0, 4: 27 * 60.0, 8: 13.5 * 60.0}


def column(rows: tuple[SummaryRow, ...], name: str) -> list[object]:
    return [getattr(row, name) for row in rows]


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
    assert [format_speedup(row.speedup) for row in rows[1:]] == ["1.8x", "3.7x", "7.3x"]


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
    assert (rows[2].n, rows[2].n_failed, rows[2].train_seconds, rows[2].speedup) == (0, 1, None, None)
    assert rows[3].doubling_ratio is None
    assert rows[3].speedup == 8


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
    assert (rows[1].nodes, rows[1].n, rows[1].n_failed, rows[1].speedup) == (2, 0, 0, None)


def test_three_repeats_give_the_median(make_outcomes, make_outcome):
    rows = summarise([*make_outcomes({1: [90, 100, 140], 2: [50, 52]}), make_outcome(2, None, 3)])
    assert column(rows, "train_seconds") == [100, 51]
    assert (rows[1].n, rows[1].n_failed) == (2, 1)


def test_cost_is_billable_times_nodes_times_price(make_outcome):
    price = Price(instance_type="ml.m5.xlarge", usd_per_hour=0.23)
    clocks = Clocks(train_seconds=100, billable_seconds=360)
    assert summarise([make_outcome(4, 100, clocks=clocks)], price)[0].cost_usd == pytest.approx(4 * 0.1 * 0.23)
    assert summarise([make_outcome(4, 100)], price)[0].cost_usd is None


def test_mixed_clocks_fall_back_to_the_training_phase_of_all(make_outcome):
    with_program = make_outcome(1, 90, phases={"Training": 120.0})
    fallback = make_outcome(2, 70, phases={"Training": 70.0}, train_clock="training_phase")
    phaseless = make_outcome(4, 20)
    rows = summarise([with_program, fallback, phaseless])
    assert choose_train_clock([with_program, fallback]) == "training_phase"
    assert column(rows, "train_seconds") == [120, 70, None]
    assert column(rows, "n") == [1, 1, 0]


def test_mixed_instance_types_and_platforms_are_refused(make_outcome):
    with pytest.raises(MixedOutcomesError, match=r"instance_type.*ml\.g5\.xlarge, ml\.m5\.xlarge"):
        summarise([make_outcome(1, 9), make_outcome(2, 5, instance_type="ml.g5.xlarge")])
    with pytest.raises(MixedOutcomesError, match=r"platform_kind.*aws, emulated"):
        summarise([make_outcome(1, 9), make_outcome(2, 5, platform_kind="emulated")])


def test_parity_is_judged_against_the_baseline(make_outcome):
    def run(nodes: int, value: object) -> JobOutcome:
        metric = {"name": "val_accuracy", "value": value, "goal": "maximize"}
        return make_outcome(nodes, 90 / nodes, metrics={"final_metric": metric})

    rows = summarise([run(1, 0.95), run(2, 0.94), run(4, 0.90), run(8, float("nan"))])
    assert column(rows, "flags") == [(), (), ("throughput_only",), ()]
    assert rows[3].final_metric is None


def test_nothing_completed_has_no_baseline(make_outcome):
    rows = summarise([make_outcome(1), make_outcome(2)])
    assert baseline_of(rows) is None
    assert column(rows, "speedup") == [None, None]


times_by_nodes = st.dictionaries(st.integers(1, 512), st.floats(0.01, 1e6), min_size=1, max_size=8)


def rows_of(times: dict[int, float]) -> tuple[SummaryRow, ...]:
    made = [
        JobOutcome(
            nodes=nodes,
            repeat=1,
            attempt=1,
            job_name=f"n{nodes}",
            status="Completed",
            platform_kind="measured",
            clocks=Clocks(train_seconds=seconds),
            train_clock="measured",
        )
        for nodes, seconds in times.items()
    ]
    return summarise(made)


@given(times_by_nodes)
def test_the_baseline_is_one_exactly_and_efficiency_times_nodes_is_speedup(times):
    rows = rows_of(times)
    assert rows[0].speedup == rows[0].efficiency == 1.0
    for row in rows:
        assert row.efficiency * row.nodes == pytest.approx(row.speedup * rows[0].nodes)


@given(times_by_nodes, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(times, factor):
    scaled = rows_of({nodes: seconds * factor for nodes, seconds in times.items()})
    for row, other in zip(rows_of(times), scaled, strict=True):
        assert other.speedup == pytest.approx(row.speedup)
        assert other.doubling_ratio == pytest.approx(row.doubling_ratio)


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
        product *= row.doubling_ratio
    assert product == pytest.approx(rows[-1].speedup)
