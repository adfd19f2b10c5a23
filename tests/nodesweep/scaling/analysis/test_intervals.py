"""Intervals of means and of ratios of means: by hand, by their laws, and against SciPy's."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from nodesweep.scaling.analysis.intervals import (
    MIN_REPEATS,
    Interval,
    geometric_mean,
    mean_interval,
    next_run_bound,
    paired_ratio,
    paired_ratio_interval,
    ratio_interval,
    residuals_of,
)

times = st.floats(1e-6, 1e9)
repeats = st.lists(times, min_size=MIN_REPEATS, max_size=20)


def bounds(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


def noisy_times(count: int, seed: int) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).lognormal(4.6, 0.05, count)]


def test_a_times_interval_by_hand():
    # logs 0, 1, 2: m = 1, s = 1, t = 4.302653 with 2 degrees of freedom
    reach = 4.302653 / 3**0.5
    values = [np.e**2, 1.0, np.e]
    interval = mean_interval(values)
    assert geometric_mean(values) == pytest.approx(np.e)
    assert np.log(bounds(interval)) == pytest.approx([1 - reach, 1 + reach], rel=1e-6)
    assert interval.level == 0.95


def test_a_ratios_interval_by_hand():
    # variances of the mean logs 1/3 and 4/3; Welch: (5/3)^2 / ((1/9 + 16/9)/2) = 50/17 degrees
    above, below = [1.0, np.e, np.e**2], [1.0, np.e**2, np.e**4]
    reach = stats.t.ppf(0.975, 50 / 17) * (5 / 3) ** 0.5
    interval = ratio_interval(above, below)
    assert np.log(bounds(interval)) == pytest.approx([-1 - reach, -1 + reach], rel=1e-6)
    reach *= stats.t.ppf(0.95, 50 / 17) / stats.t.ppf(0.975, 50 / 17)
    assert np.log(interval.bounds) == pytest.approx([-1 - reach, -1 + reach], rel=1e-6)
    assert interval.level == 0.95


@pytest.mark.parametrize("few", [[], [100.0], [100.0, 101.0]])
def test_fewer_than_three_runs_have_no_interval(few):
    assert mean_interval(few) is None
    assert ratio_interval(few, [1, 2, 3]) is None
    assert ratio_interval([1, 2, 3], few) is None


def test_what_costs_nothing_has_no_interval():
    assert mean_interval([0.0, 1.0, 2.0]) is None


@pytest.mark.parametrize("count", [3, 4, *range(6, 30)])
def test_constant_times_have_an_interval_of_no_width(count):
    assert geometric_mean([0.1] * count) == 0.1
    assert bounds(mean_interval([0.1] * count)) == (0.1, 0.1)
    assert bounds(ratio_interval([0.3] * count, [0.1] * 3)) == (0.3 / 0.1, 0.3 / 0.1)


def test_a_constant_side_leaves_the_other_ones_interval():
    above = noisy_times(5, seed=1)
    low, high = bounds(mean_interval(above))
    assert bounds(ratio_interval(above, [2.0] * 3)) == pytest.approx((low / 2, high / 2))


@pytest.mark.parametrize("counts", [(3, 3), (5, 10), (21, 30)])
def test_intervals_are_scipys(counts):
    above, below = noisy_times(counts[0], seed=3), noisy_times(counts[1], seed=4)
    both = stats.ttest_ind(np.log(above), np.log(below), equal_var=False).confidence_interval()
    assert bounds(ratio_interval(above, below)) == pytest.approx(np.exp([both.low, both.high]))
    one = stats.ttest_1samp(np.log(above), 0).confidence_interval()
    assert bounds(mean_interval(above)) == pytest.approx(np.exp([one.low, one.high]))


def test_hundreds_of_thousands_of_runs_have_an_interval():
    above, below = noisy_times(100_000, seed=6), noisy_times(100_001, seed=7)
    low, high = bounds(ratio_interval(above, below))
    assert high - low == pytest.approx(2 * 1.96 * 0.05 * (2 / 100_000) ** 0.5, rel=0.02)


@pytest.mark.parametrize("count", [3, 5])
def test_intervals_cover_the_mean_in_19_of_20_cases(count):
    """Of log-normal times, drawn 2,000 times; the standard error is 0.5 points."""
    above, below = np.random.default_rng(count).lognormal(3, 0.05, (2, 2000, count))
    middle = np.exp(3.0)
    covered = [mean_interval(each.tolist()).contains(middle) for each in above]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)
    covered = [
        ratio_interval(a.tolist(), b.tolist()).contains(1.0)
        for a, b in zip(above, below, strict=True)
    ]
    assert 0.94 < np.mean(covered) < 0.985  # a little more at n = 3 (Welch)


@given(repeats)
def test_the_interval_contains_the_mean(values):
    assert mean_interval(values).contains(geometric_mean(values))


@given(repeats, repeats)
def test_the_interval_contains_the_ratio_of_the_means(above, below):
    interval = ratio_interval(above, below)
    assert interval.contains(geometric_mean(above) / geometric_mean(below))


@given(repeats, repeats, st.floats(1e-3, 1e3))
def test_the_unit_of_time_scales_the_interval(above, below, factor):
    scaled = [value * factor for value in above]
    for interval, other in [
        (mean_interval(above), mean_interval(scaled)),
        (ratio_interval(above, below), ratio_interval(scaled, below)),
    ]:
        assert bounds(other) == pytest.approx(bounds(interval.scaled(factor)))
        assert other.level == interval.level


@given(repeats, repeats, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(above, below, generator: random.Random):
    shuffled = generator.sample(above, len(above))
    assert mean_interval(shuffled) == mean_interval(above)
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
        mean_interval([1.0, float("nan"), 2.0])
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
    """Each of 8 nodes is 30% slow in one run of 20, and the slowest node determines the time.

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
