"""Intervals of medians and of ratios of medians: by hand, by their laws, and against other ways to
the same numbers.
"""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from nodesweep.scaling.analysis.intervals import (
    MIN_REPEATS,
    RESAMPLES,
    Interval,
    _rank,
    median_interval,
    next_run_bound,
    paired_ratio,
    paired_ratio_interval,
    ratio_interval,
    resampled_medians,
    residuals_of,
)

times = st.floats(1e-6, 1e9)
repeats = st.lists(times, min_size=MIN_REPEATS, max_size=20)


def bounds(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


def noisy_times(count: int, seed: int) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).lognormal(4.6, 0.05, count)]


@pytest.mark.parametrize(
    ("values", "level"),
    [
        # All n runs fall on one side of the median with probability 2 x (1/2)^n: 1/4, 1/8, 1/16.
        ([120, 90, 100], 3 / 4),
        ([100, 120, 90, 101], 7 / 8),
        ([100, 120, 90, 101, 99], 15 / 16),
    ],
)
def test_up_to_five_runs_the_median_lies_between_fastest_and_slowest_with_a_lower_level(
    values, level
):
    interval = median_interval(values)
    assert bounds(interval) == (90, 120)
    assert interval.level == level


def test_six_runs_interpolate_between_the_outer_two_values():
    # g(1) = 1 - 2 x 1/64 = 0.96875, g(2) = 1 - 2 x 7/64 = 0.78125; I = (0.96875 - 0.95) / 0.1875 =
    # 0.1; weight of the inner value = (6 - 1) I / (1 + (6 - 2) I) = 0.5 / 1.4
    interval = median_interval([10, 24, 31, 40, 52, 80])
    assert bounds(interval) == pytest.approx((10 + 14 * 0.5 / 1.4, 80 - 28 * 0.5 / 1.4))
    assert interval.level == 0.95


def test_ten_runs_interpolate_between_the_second_and_third_value():
    # g(2) = 1 - 2 x 11/1024, g(3) = 1 - 2 x 56/1024; I = 0.0285156 / 0.0878906 = 0.324444;
    # weight = 8 I / (2 + 6 I) = 0.657658
    low, high = bounds(median_interval([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert (low, high) == pytest.approx((1.657658, 7.342342), abs=1e-6)


def test_many_runs_give_the_normal_approximations_ranks():
    count = 100_000
    low, high = bounds(median_interval(range(count)))
    half_width = 1.959964 * count**0.5 / 2
    assert (low, high) == pytest.approx((count / 2 - half_width, count / 2 + half_width), abs=1)


@pytest.mark.parametrize("few", [[], [100.0], [100.0, 101.0]])
def test_fewer_than_three_runs_have_no_interval(few):
    assert median_interval(few) is None
    assert ratio_interval(few, [1, 2, 3]) is None
    assert ratio_interval([1, 2, 3], few) is None


@pytest.mark.parametrize("count", [3, 4, *range(6, 30)])
def test_constant_times_have_an_interval_of_no_width(count):
    assert bounds(median_interval([0.1] * count)) == (0.1, 0.1)
    assert bounds(ratio_interval([0.3] * count, [0.1] * 3)) == (0.3 / 0.1, 0.3 / 0.1)


def test_a_ratio_of_three_runs_ends_where_its_resamples_do():
    # The median of three draws is the smallest value with P(2 or 3 of the draws are it) = 3 x 1/9 x
    # 2/3 + 1/27 = 7/27. With a constant denominator 26% of the ratios are 0.9 and 26% are 1.2:
    # beyond the 2.5% cut at either end.
    assert bounds(ratio_interval([100, 120, 90], [100, 100, 100])) == (0.9, 1.2)
    # 0.9/1.1 and 1.2/0.8 have a probability of (7/27)^2 = 6.7% each: still beyond the cut.
    assert bounds(ratio_interval([100, 120, 90], [80, 100, 110])) == pytest.approx(
        (0.9 / 1.1, 1.2 / 0.8)
    )


def test_both_sides_are_resampled_independently():
    values = noisy_times(5, seed=1)
    assert bounds(ratio_interval(values, values)) == pytest.approx(
        (min(values) / max(values), max(values) / min(values)), rel=0.05
    )


@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize("count", [3, 4, 5, 10])
def test_directly_drawn_medians_are_distributed_as_those_of_index_resamples(count, stream):
    ordered = np.sort(noisy_times(count, seed=count))
    direct = resampled_medians(ordered, stream)
    indices = np.random.default_rng(99).integers(0, count, (100_000, count))
    ordinary = np.median(ordered[indices], axis=1)
    possible = np.unique([(a + b) / 2 for a in ordered for b in ordered])
    difference = [
        np.mean(direct <= value * (1 + 1e-12)) - np.mean(ordinary <= value * (1 + 1e-12))
        for value in possible
    ]
    assert len(direct) == RESAMPLES
    # 0.020 is passed by chance with p = 0.001 (Kolmogorov-Smirnov, 10,000 against 100,000 draws).
    assert np.abs(difference).max() < 0.020


def test_a_uniform_draw_rounded_up_to_one_belongs_to_the_last_value():
    assert _rank(np.array([0.0, 0.34, 0.99, 1.0]), 3).tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("counts", [(5, 5), (5, 10), (21, 30)])
def test_a_ratios_interval_is_scipys_percentile_interval(counts):
    above, below = noisy_times(counts[0], seed=3), noisy_times(counts[1], seed=4)

    def ratio(top, bottom, axis):
        return np.median(top, axis=axis) / np.median(bottom, axis=axis)

    expected = stats.bootstrap(
        (above, below), ratio, method="percentile", n_resamples=20_000, rng=np.random.default_rng(5)
    ).confidence_interval
    interval = ratio_interval(above, below)
    # Two sets of random draws: each bound within a tenth of the interval's width.
    tolerance = (expected.high - expected.low) / 10
    assert bounds(interval) == pytest.approx((expected.low, expected.high), abs=tolerance)


def test_hundreds_of_thousands_of_runs_have_an_interval():
    above, below = noisy_times(100_000, seed=6), noisy_times(100_001, seed=7)
    low, high = bounds(ratio_interval(above, below))
    # Standard error of log(median) = sqrt(pi/2) x 0.05 / sqrt(n) = 0.000198, of the ratio sqrt(2)
    # times that.
    assert high - low == pytest.approx(2 * 1.96 * 0.000198 * 2**0.5, rel=0.1)


def test_another_call_in_between_changes_nothing():
    above, below = noisy_times(6, seed=8), noisy_times(7, seed=9)
    first = ratio_interval(above, below)
    ratio_interval(below, above)
    assert ratio_interval(above, below) == first


@given(repeats)
def test_the_interval_contains_the_sample_median(values):
    assert median_interval(values).contains(statistics.median(values))


@given(repeats, repeats)
def test_the_interval_contains_the_ratio_of_the_sample_medians(above, below):
    interval = ratio_interval(above, below)
    assert interval.contains(statistics.median(above) / statistics.median(below))


def test_a_ratio_outside_the_percentiles_widens_the_interval(monkeypatch):
    monkeypatch.setattr(
        "nodesweep.scaling.analysis.intervals.resampled_medians",
        lambda ordered, stream: ordered[[-1 if stream else 0]],
    )
    assert bounds(ratio_interval([1, 2, 3], [1, 2, 4])) == (1 / 4, 1)
    monkeypatch.setattr(
        "nodesweep.scaling.analysis.intervals.resampled_medians",
        lambda ordered, stream: ordered[[0 if stream else -1]],
    )
    assert bounds(ratio_interval([1, 2, 3], [1, 2, 4])) == (1, 3)


@given(repeats, repeats, st.floats(1e-3, 1e3))
def test_the_unit_of_time_scales_the_interval(above, below, factor):
    scaled = [value * factor for value in above]
    for interval, other in [
        (median_interval(above), median_interval(scaled)),
        (ratio_interval(above, below), ratio_interval(scaled, below)),
    ]:
        assert bounds(other) == pytest.approx(bounds(interval.scaled(factor)))
        assert other.level == interval.level


@given(repeats, repeats, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(above, below, generator: random.Random):
    shuffled = generator.sample(above, len(above))
    assert median_interval(shuffled) == median_interval(above)
    assert ratio_interval(shuffled, below) == ratio_interval(above, below)
    assert ratio_interval(below, shuffled) == ratio_interval(below, above)


def test_scaling_keeps_the_level():
    assert Interval(low=3.0, high=4.0, level=0.75).scaled(0.25) == Interval(
        low=0.75, high=1.0, level=0.75
    )


def test_an_interval_contains_its_bounds_and_what_lies_between():
    interval = Interval(low=3.0, high=4.0)
    assert [interval.contains(value) for value in (2.9, 3.0, 3.5, 4.0, 4.1)] == [
        False,
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "fields", [{"low": float("nan")}, {"high": float("inf")}, {"level": 1.0}, {"width": 1.0}]
)
def test_an_interval_of_other_than_finite_numbers_is_refused(fields):
    with pytest.raises(ValidationError) as refused:
        Interval(**{"low": 1.0, "high": 2.0, **fields})
    assert [error["loc"] for error in refused.value.errors()] == [tuple(fields)]


def test_times_that_are_no_times_are_refused(snapshot):
    with pytest.raises(ValueError) as refused:
        median_interval([1.0, float("nan"), 2.0])
    assert str(refused.value) == snapshot
    with pytest.raises(ValueError) as refused:
        ratio_interval([1.0, 2.0, 3.0], [1.0, 0.0, 2.0])
    assert str(refused.value) == snapshot


def test_the_next_run_is_below_its_bound_in_19_of_20_cases():
    """At 3 and 5 log-normal runs, drawn 4,000 times; the standard error is 0.35 points."""
    generator = np.random.default_rng(5)
    for count in (3, 5):
        draws = generator.lognormal(3, 0.2, (4000, count + 1))
        held = [next_run_bound(each[:-1].tolist()) >= each[-1] for each in draws]
        assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_the_bound_of_the_next_run_by_hand():
    # logs 0, 1, 2: m = 1, s = 1, t = 2.919986 with 2 degrees of freedom
    times = [1.0, np.e, np.e**2]
    assert next_run_bound(times) == pytest.approx(np.exp(1 + 2.919986 * (4 / 3) ** 0.5), rel=1e-6)
    assert next_run_bound(times[:2]) is None
    assert next_run_bound([0.0, 1.0, 2.0]) is None
    assert next_run_bound([4.0, 4.0, 4.0]) == pytest.approx(4)


def test_a_ratio_paired_by_repeat_by_hand():
    # log-ratios 0, 1, 2: m = 1, s = 1, t = 4.302653 with 2 degrees of freedom; repeat 4 has no pair
    above = {1: 1.0, 2: np.e, 3: np.e**2, 4: 3.0}
    low, high = bounds(paired_ratio_interval(above, {1: 1.0, 2: 1.0, 3: 1.0}))
    reach = 4.302653 / 3**0.5
    assert (low, high) == pytest.approx((np.exp(1 - reach), np.exp(1 + reach)), rel=1e-6)
    assert paired_ratio_interval(above, {1: 1.0, 2: 1.0, 5: 1.0}) is None


def test_the_whole_sweep_shows_the_spread_of_each_ratio_by_hand():
    """Three repeats of three counts have (3 - 1)(3 - 1) = 4 degrees of freedom instead of 2."""
    # rests of log-times, whose rows and columns add up to 0: 6 x 0.01 = 0.06 squared in all
    rests = np.array([[0.1, -0.1, 0.0], [-0.1, 0.0, 0.1], [0.0, 0.1, -0.1]])
    logs = rests + np.array([[0.0], [0.3], [0.5]]) + np.array([4.0, 3.0, 2.0])
    times = [dict(enumerate(np.exp(count))) for count in logs.T]
    rest = residuals_of(times)
    assert (rest.spread, rest.freedom, rest.grow) == (pytest.approx((0.06 / 4) ** 0.5), 4, False)
    interval = paired_ratio_interval(times[0], times[1], rest)
    reach = rest.spread * (2 / 3) ** 0.5  # t: 2.776445 two-sided, 2.131847 one-sided
    two_sided, one_sided = ([-t * reach, t * reach] for t in (2.776445, 2.131847))
    assert np.log(bounds(interval)) - 1 == pytest.approx(two_sided, rel=1e-6)
    assert np.log(interval.bounds) - 1 == pytest.approx(one_sided, rel=1e-6)
    assert np.log(interval.scaled(2.0).bounds) - np.log(interval.bounds) == pytest.approx(np.log(2))


def test_residuals_need_three_repeats_that_two_counts_share():
    of = dict.fromkeys
    times = [of((1, 2, 3, 4), 2.0), of((1, 2), 1.0), of((2, 3, 4, 5), 1.0)]
    rest = residuals_of(times)  # the second count has too few, repeats 2, 3 and 4 are in both
    assert (rest.freedom, rest.grow) == (2, False)
    assert residuals_of(times[:2]) is None
    assert residuals_of([of((1, 2, 3), 2.0), of((2, 3, 4), 2.0)]) is None


def test_a_spread_that_grows_with_the_count_keeps_each_pair_to_itself():
    rng = np.random.default_rng(4)
    logs = rng.normal(0, [0.01, 0.01, 0.01, 0.2], (5, 4))
    times = [dict(enumerate(np.exp(count))) for count in logs.T]
    rest = residuals_of(times)
    assert rest.grow
    own = paired_ratio_interval(times[0], times[3])
    noisy, quiet = (paired_ratio_interval(times[0], times[at], rest) for at in (3, 1))
    assert bounds(noisy) == pytest.approx(bounds(own))
    # the pair's own one-sided 95% is wider at the noisy count, the sweep's 97.5% at the quiet one
    assert noisy.low < noisy.bounds[0] < noisy.bounds[1] < noisy.high
    assert quiet.bounds == (quiet.low, quiet.high)
    assert residuals_of(times[::-1]).grow is False


def test_equal_spread_is_taken_to_grow_in_a_fifth_of_sweeps():
    logs = np.random.default_rng(4).normal(0, 0.02, (1500, 4, 3))
    grow = [residuals_of([dict(enumerate(np.exp(each))) for each in sweep]).grow for sweep in logs]
    assert np.mean(grow) == pytest.approx(0.2, abs=0.03)


def test_what_slows_a_whole_repeat_cancels_in_pairs():
    drift = {1: 1.0, 2: 1.3, 3: 1.7}
    above = {repeat: 2 * by for repeat, by in drift.items()}
    assert bounds(paired_ratio_interval(above, drift)) == pytest.approx((2.0, 2.0))
    low, high = bounds(ratio_interval(list(above.values()), list(drift.values())))
    assert low < 1.6 and high > 2.5


@given(repeats, repeats)
def test_a_paired_ratio_is_in_the_middle_of_its_interval(above, below):
    numerator, denominator = dict(enumerate(above)), dict(enumerate(below))
    low, high = bounds(paired_ratio_interval(numerator, denominator))
    ratio = paired_ratio(numerator, denominator)
    assert np.log(ratio) == pytest.approx((np.log(low) + np.log(high)) / 2, abs=1e-9)


def test_a_paired_ratio_is_exact_where_nothing_differs_and_unknown_without_a_pair():
    assert paired_ratio({1: 5940.0, 2: 7.0}, {1: 3300.0}) == 5940 / 3300
    assert paired_ratio({1: 0.3, 2: 0.3}, {1: 0.1, 2: 0.1}) == 0.3 / 0.1
    assert paired_ratio({1: 1.0, 2: 4.0}, {1: 1.0, 2: 1.0}) == 2
    assert paired_ratio({1: 1.0}, {2: 1.0}) is None


def test_stragglers_leave_paired_ratios_covered_however_many_repeats_there_are():
    """Each of 8 nodes is 30% slow in one run of 20, and the slowest decides.

    The same intervals contain the ratio of the medians in half of the sweeps.
    """
    rng = np.random.default_rng(12)
    share, log = 1 - 0.95**8, np.log(1.3)
    covered = []
    for _ in range(600):
        one, eight = rng.normal(0, 0.02, (2, 50))
        eight += log * (rng.random(50) < share)
        numerator, denominator = dict(enumerate(np.exp(one))), dict(enumerate(np.exp(eight)))
        interval = paired_ratio_interval(numerator, denominator)
        covered.append(interval.contains(np.exp(-share * log)))
    assert 0.92 < np.mean(covered) < 0.98


def test_three_and_four_runs_say_what_was_measured_of_a_bootstrapped_ratio():
    times = [1.0, 1.1, 1.2, 1.3, 1.4]
    levels = [ratio_interval(times, times[:count]).level for count in (3, 4, 5)]
    assert levels == [0.90, 0.93, 0.95]
