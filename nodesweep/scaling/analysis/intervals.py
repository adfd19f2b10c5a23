"""95% intervals from repeated times: of their median T(N), and of ratios of medians, S(N) or D.

A median's interval is between two of its sorted times. A ratio's is a percentile bootstrap
interval, with both sides resampled under a fixed seed, or Student's t interval of the repeats' own
ratios if the order of the node counts was shuffled within each repeat.
benchmarks/interval_coverage.py measures their coverage, which is documented in docs/statistics.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, stdtrit

from nodesweep.scaling.analysis.interval import LEVEL, MIN_REPEATS, Interval

# Measured coverage of a ratio's bootstrap with few runs (docs/statistics.md); with 5 or more it is
# at least LEVEL.
_MEASURED_LEVELS = {3: 0.90, 4: 0.93}
# Standard normal's 80th percentile: the spread is taken to grow with N in a fifth of the sweeps in
# which it does not, since three repeats show real growth only if the test is that sensitive.
GROWS = 0.8416
RESAMPLES = 10_000
SEED = 2026

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int64]


def median_interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of the population median; None for fewer than MIN_REPEATS values.

    The true median lies between the k-th smallest and the k-th largest of n values with probability
    g(k) = 1 - 2 P(Binomial(n, 1/2) < k) for any continuous distribution. Each bound is interpolated
    between the two k whose g enclose 0.95 (Hettmansperger & Sheather, Statistics & Probability
    Letters 4, 1986, pp. 75-79). For up to five values, even g(1) = 1 - 2^(1 - n) is below 0.95: the
    interval is then [min, max] with level g(1), that is 0.75, 0.875 or 0.9375. The interval always
    contains the sample median.

    Raises:
        ValueError: A value is not finite.
    """
    count = len(values)
    if count < MIN_REPEATS:
        return None
    ordered = _sorted(values)
    k, weight, level = _median_bounds(count)
    low, inner_low = ordered[k - 1], ordered[k]
    high, inner_high = ordered[-k], ordered[-k - 1]
    return Interval(
        low=float(low + weight * (inner_low - low)),
        high=float(high + weight * (inner_high - high)),
        level=level,
    )


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float]) -> Interval | None:
    """Return the percentile bootstrap interval of median(numerator) / median(denominator).

    The two are resampled independently, so they must be different runs: the baseline's ratio to
    itself is exactly 1 and needs no interval. The bounds are the 2.5th and 97.5th percentile of
    RESAMPLES ratios, widened to the sample's own ratio if that is outside. With 3 or 4 values on a
    side the coverage is lower, and the level is the measured one. The result depends neither on the
    order of the values nor on earlier calls.

    Returns:
        The interval; None if either side has fewer than MIN_REPEATS values.

    Raises:
        ValueError: A value is not finite, or a denominator is not above zero.
    """
    if min(len(numerator), len(denominator)) < MIN_REPEATS:
        return None
    above, below = _sorted(numerator), _sorted(denominator)
    if below[0] <= 0:
        raise ValueError(f"denominator: got {below[0]}; a ratio needs times above zero")
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(
        resampled_medians(above, 0) / resampled_medians(below, 1), [tail, 1 - tail]
    )
    ratio = np.median(above) / np.median(below)
    level = _MEASURED_LEVELS.get(min(len(above), len(below)), LEVEL)
    return Interval(low=float(min(low, ratio)), high=float(max(high, ratio)), level=level)


@dataclass(frozen=True)
class Residuals:
    """What a shuffled sweep's repeats and node counts leave unexplained of its log-times.

    `spread` is the standard deviation of one run with `freedom` degrees of freedom. `grow` is True
    if it seems to grow with the node count.
    """

    spread: float
    freedom: int
    grow: bool


def residuals_of(times: Sequence[Mapping[int, float]]) -> Residuals | None:
    """Return the residuals of log-time = repeat + node count (randomized blocks).

    With n repeats of k counts they have (n - 1)(k - 1) degrees of freedom, against the n - 1 of a
    single pair (Montgomery, *Design and Analysis of Experiments*, 8th ed., section 4.1). Growth is
    tested at 20%, by the score test of Cook and Weisberg, *Biometrika* 70(1), 1983, on the place of
    a count: the sum of w R, where R is a count's share of the squared residuals and w its distance
    from the middle place, has mean 0 and variance 2 (n - 1) (1 - 2/k) sum w^2 / (f (f + 2)) for f
    degrees of freedom if the spread is the same everywhere.

    Args:
        times: Seconds by repeat of each node count, in ascending order of the counts. Counts with
            fewer than MIN_REPEATS runs are left out, and so are repeats that a count lacks.

    Returns:
        The residuals; None if fewer than two counts or MIN_REPEATS repeats are left.
    """
    often = [each for each in times if len(each) >= MIN_REPEATS]
    common = sorted(set(often[0]).intersection(*often)) if len(often) > 1 else []
    if len(common) < MIN_REPEATS:
        return None
    logs = np.log([[each[repeat] for each in often] for repeat in common])
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    repeats, counts = logs.shape
    freedom = (repeats - 1) * (counts - 1)
    squares = (rest**2).sum(axis=0)
    place = np.arange(counts) - (counts - 1) / 2
    variance = 2 * (repeats - 1) * (1 - 2 / counts) * (place @ place) / (freedom * (freedom + 2))
    return Residuals(
        spread=float(np.sqrt(squares.sum() / freedom)),
        freedom=freedom,
        # two counts have equal residuals, so they can't show growth
        grow=bool(counts > 2 and place @ squares > GROWS * variance**0.5 * squares.sum()),
    )


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> float | None:
    """Return the geometric mean of each repeat's own ratio of times; None without common repeats.

    It is what paired_ratio_interval() covers. A single ratio, or equal ones, are exact.

    Args:
        numerator: Seconds by repeat.
        denominator: Seconds by repeat.
    """
    both = numerator.keys() & denominator.keys()
    ratios = {numerator[repeat] / denominator[repeat] for repeat in both}
    if len(ratios) < 2:
        return next(iter(ratios), None)
    return statistics.geometric_mean(numerator[repeat] / denominator[repeat] for repeat in both)


def paired_ratio_interval(
    numerator: Mapping[int, float],
    denominator: Mapping[int, float],
    residuals: Residuals | None = None,
) -> Interval | None:
    """Return Student's t interval of a ratio of times above zero, paired by repeat.

    Whatever slows all runs of a repeat cancels out in the ratio of its two times. The logarithms of
    these ratios are assumed independent and normal: exp(m ± t s / sqrt n), where exp(m) is
    paired_ratio(). With residuals, s is that of the whole sweep, and the one-sided bounds are at
    95%. If the spread grows with the node count, the interval has the
    pair's own spread with n - 1 degrees of freedom (Montgomery, section 2.5), and its one-sided
    bounds are the wider of the pair's own at 95% and the sweep's at 97.5%. Without residuals, the
    pair's own interval alone is known.

    Args:
        numerator: Seconds by repeat.
        denominator: Seconds by repeat.
        residuals: Of the sweep that both belong to.

    Returns:
        The interval; None if fewer than MIN_REPEATS repeats have both times.
    """
    both = sorted(numerator.keys() & denominator.keys())
    if len(both) < MIN_REPEATS:
        return None
    logs = np.log([numerator[repeat] / denominator[repeat] for repeat in both])
    two_sided = (1 + LEVEL) / 2

    def around(reach: float) -> tuple[float, float]:
        return float(np.exp(logs.mean() - reach)), float(np.exp(logs.mean() + reach))

    own = logs.std(ddof=1) / len(both) ** 0.5
    reach = stdtrit(len(both) - 1, two_sided) * own
    if residuals is None:
        low, high = around(reach)
        return Interval(low=low, high=high)
    pooled = residuals.spread * (2 / len(both)) ** 0.5
    if residuals.grow:
        one_sided = max(
            stdtrit(residuals.freedom, two_sided) * pooled, stdtrit(len(both) - 1, LEVEL) * own
        )
        reach = max(reach, one_sided)
    else:
        one_sided = stdtrit(residuals.freedom, LEVEL) * pooled
        reach = stdtrit(residuals.freedom, two_sided) * pooled
    low, high = around(reach)
    return Interval(low=low, high=high, one_sided=around(one_sided))


def next_run_bound(values: Sequence[float]) -> float | None:
    """Return the upper 95% prediction bound of one more value; 19 of 20 such values are below it.

    It is exp(m + t s sqrt(1 + 1/n)), where m and s are the mean and the standard deviation of the
    logarithms of the n values, and t = prediction_factor(n) / sqrt(1 + 1/n) is the 95th percentile
    of Student's t with n - 1 degrees of freedom (Hahn and Meeker, *Statistical Intervals*, 1991,
    section 4.7, on the log scale: times and costs are positive and vary by factors). It is never
    below the median. None for fewer than MIN_REPEATS values, or if one is not above zero.
    """
    if len(values) < MIN_REPEATS or min(values) <= 0:
        return None
    logs = np.log(_sorted(values))
    reach = prediction_factor(len(values)) * logs.std(ddof=1)
    return float(max(np.exp(logs.mean() + reach), np.median(values)))


def prediction_factor(count: int) -> float:
    """Return the distance of the upper 95% prediction bound from the mean, in standard deviations.

    3.4 for `count` = 3 values, 2.3 for 5, 1.64 in the limit.
    """
    return float(stdtrit(count - 1, LEVEL)) * (1 + 1 / count) ** 0.5


def resampled_medians(ordered: Floats, stream: Literal[0, 1]) -> Floats:
    """Return the medians of RESAMPLES resamples of `ordered` (ascending) with replacement.

    The resamples themselves are not drawn. A resample's i-th value is x[floor(n U_i)] for U_i
    uniform on [0, 1), and since that rises with U, its k-th smallest is x[floor(n U_(k))]. The k-th
    smallest of n uniforms is distributed as Beta(k, n - k + 1), the next one as U_(k) + (1 - U_(k))
    (1 - V^(1/(n - k))): the smallest of n - k uniforms on the rest, V uniform. So one or two draws
    give a median, however large n is. The two streams are independent of each other.
    """
    lower, upper = _resampled_middles(len(ordered), stream)
    return (ordered[lower] + ordered[upper]) / 2


@lru_cache(maxsize=16)
def _resampled_middles(count: int, stream: int) -> tuple[Ranks, Ranks]:
    """Return the 0-based ranks of the two middle values of each resample, equal for odd `count`."""
    generator = np.random.default_rng(np.random.SeedSequence(SEED).spawn(2)[stream])
    middle = (count + 1) // 2
    lower = generator.beta(middle, count - middle + 1, RESAMPLES)
    if count % 2:
        rank = _rank(lower, count)
        return rank, rank
    smallest_above = 1 - generator.random(RESAMPLES) ** (1 / (count - middle))
    return _rank(lower, count), _rank(lower + (1 - lower) * smallest_above, count)


def _rank(uniform: Floats, count: int) -> Ranks:
    """Return floor(n U); a U rounded up to 1 belongs to the last value."""
    return np.minimum((uniform * count).astype(np.int64), count - 1)


@lru_cache(maxsize=16)
def _median_bounds(count: int) -> tuple[int, float, float]:
    """Return (k, weight of the next value inwards, level) of the median's interval."""
    # [k - 1]: coverage between the k-th smallest and k-th largest
    covered = 1 - 2 * bdtr(np.arange((count + 1) // 2), count, 0.5)
    if covered[0] <= LEVEL:
        return 1, 0.0, float(covered[0])
    k = int(np.count_nonzero(covered >= LEVEL))
    share = (covered[k - 1] - LEVEL) / (covered[k - 1] - covered[k])
    return k, float((count - k) * share / (k + (count - 2 * k) * share)), LEVEL


def _sorted(values: Sequence[float]) -> Floats:
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not np.isfinite(ordered).all():
        raise ValueError(f"values: got {ordered[~np.isfinite(ordered)][0]}; times must be finite")
    return ordered
