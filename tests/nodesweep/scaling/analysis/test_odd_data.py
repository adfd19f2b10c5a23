"""Times that do not look like measurements are reported, and plain times are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.clocks import clock_statistics
from nodesweep.scaling.analysis.odd_data import (
    doubtful_units,
    find_confounded,
    find_odd,
    recommend_none_for_units,
)
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.report import analyse
from tests.nodesweep.scaling.analysis.test_recommend import rows_of

PLAIN = {1: [101.3, 99.8, 100.6, 100.1], 2: [52.4, 51.2, 51.9, 52.8], 4: [27.3, 28.1, 27.6, 27.2]}


def odd(times: Mapping[int, Sequence[float]], are_rates: bool = False) -> list[str]:
    runs = {nodes: list(enumerate(at, start=1)) for nodes, at in times.items()}
    return list(find_odd(times, clock_statistics(runs, min(times)), are_rates=are_rates))


def the_only(times: Mapping[int, Sequence[float]]) -> str:
    (sentence,) = odd(times)
    return sentence


def test_plain_times_are_not_odd():
    assert odd(PLAIN) == []
    assert odd({1: [100], 2: [60]}) == []
    generator = np.random.default_rng(3)
    found = 0
    for _ in range(300):
        times = {n: generator.lognormal(np.log(500 / n), 0.03, 3).tolist() for n in (1, 2, 4, 8)}
        found += bool([each for each in odd(times) if not each.startswith("One outlier")])
    assert found == 0


def test_whole_seconds_are_named_where_one_matters(snapshot):
    assert the_only({1: [40, 41, 42], 2: [21, 22, 20]}) == snapshot
    assert odd({1: [4000, 4100, 4040], 2: [2100, 2200, 2140]}) == []
    assert odd({1: [40], 2: [21]}) == []


def test_nothing_to_recommend_needs_no_unit():
    times = {1: [5.94, 5981.0]}
    assert doubtful_units(times) == [(1, 1, pytest.approx(1007, abs=1))]
    assert recommend_none_for_units(rows_of(times), times, RecommendationConfig()) is None


def test_a_slow_network_is_no_other_unit():
    assert doubtful_units({1: [100.0], 8: [310.0]}) == []
    assert doubtful_units({1: [100.0], 16: [290.0]}) == []
    # 99 s and 13.5 minutes
    assert doubtful_units({1: [99.0], 8: [810.0]}) == [(1, 8, pytest.approx(65, abs=1))]


def test_rates_are_asked_for_as_rates(snapshot):
    times = {1: [1 / 410], 2: [1 / 739], 4: [1 / 1.505]}
    goals = RecommendationConfig()
    answer = recommend_none_for_units(rows_of(times), times, goals, are_rates=True)
    assert answer is not None
    assert answer.reason == snapshot
    assert {each.reason for each in answer.rejected} == {
        "the rates may not all be in samples per second"
    }


def test_a_user_who_confirms_the_units_gets_the_recommendation(snapshot):
    outcomes = read_measured("nodes,train_seconds\n1,100\n2,2.4\n")
    made = ("times", None, None, outcomes, None, {}, datetime(2026, 11, 27, tzinfo=UTC))
    asked, told = analyse(*made), analyse(*made, units_confirmed=True)
    assert asked.recommendation is not None and asked.recommendation.chosen is None
    assert asked.headline == snapshot
    assert told.recommendation is not None and told.recommendation.chosen is not None
    assert told.recommendation.chosen.nodes == 2


def test_no_answer_keeps_the_rule_that_was_asked_for():
    times = {1: [5940.0], 2: [3.3]}
    answer = recommend_none_for_units(rows_of(times), times, RecommendationConfig(hour_value_usd=5))
    assert answer is not None
    assert answer.rule == "hour_value"


def test_no_variance_at_all_is_named(snapshot):
    text = the_only({**PLAIN, 2: [52.4, 52.4, 52.4]})
    assert text == snapshot
    assert the_only({1: [9.5] * 3, 2: [5.5] * 3}) == snapshot


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("factor", [1 / 60, 1000])
def test_another_unit_at_one_count_is_named_there_alone(nodes, factor, snapshot):
    times = {**PLAIN, nodes: [seconds * factor for seconds in PLAIN[nodes]]}
    units = [each for each in odd(times) if each.startswith("A different unit")]
    assert len(units) == 1
    assert units[0] == snapshot


def test_a_doubling_above_2_with_an_efficiency_below_1_blames_the_half(snapshot):
    text = the_only({1: [100.5], 2: [90.1], 4: [30.2]})
    assert text == snapshot

    assert odd({1: [100.5], 2: [54.1], 4: [26.6]}) == []
    # By noise alone: the interval of D holds 2
    assert not any(
        "Doubling" in each
        for each in odd({1: [100.5, 101, 99], 2: [60.1, 70.2, 50.3], 4: [27.2, 28.1, 27.9]})
    )


def test_one_outlier_of_three_is_named_with_what_to_do(snapshot):
    text = the_only({**PLAIN, 2: [51.2, 75.3, 51.9]})
    assert text == snapshot

    assert the_only({**PLAIN, 2: [51.2, 30.1, 51.9]}) == snapshot
    assert odd({**PLAIN, 2: [51.2, 51.9, 52.1]}) == []


def test_rates_are_called_so(snapshot):
    assert odd({**PLAIN, 2: [51.2, 75.3, 51.9], 4: [0.273]}, are_rates=True) == snapshot


@pytest.mark.parametrize(("sign", "way"), [(1, "slower"), (-1, "faster")])
def test_a_drift_over_the_repeats_is_named(sign, way, snapshot):
    times = {n: [100.5 / n * (1 + sign * 0.02 * r) for r in range(4)] for n in (1, 2)}
    text = the_only(times)
    assert text == snapshot
    assert "sweep.order shuffled" in text
    assert odd({**times, 2: [50.1, 52.3, 51.4, 50.9]}) == []
    assert odd({n: [100.5 / n * (1 + 0.001 * r) for r in range(4)] for n in (1, 2)}) == []


@pytest.mark.parametrize("order", [[1, 1, 2, 2], [4, 4, 4, 1, 2], [1, 2, 2]])
def test_runs_of_one_count_in_a_row_are_told(order, snapshot):
    (caveat,) = find_confounded(order)
    assert caveat == snapshot
    assert "sweep.order" in caveat


@pytest.mark.parametrize("order", [[], [1, 2, 4], [1, 2, 2, 1], [1, 1], [1, 2, 1, 2]])
def test_a_pass_over_all_counts_per_repeat_is_no_confounding(order):
    assert list(find_confounded(order)) == []
