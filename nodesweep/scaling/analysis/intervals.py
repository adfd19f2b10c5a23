"""Means of repeated times and of their ratios, such as T(N), S(N) and D, with 95% intervals.

The mean is always geometric, since times are positive and vary by factors, and ratios of geometric
means are geometric means of ratios. The interval of a time is Student's t on the logarithms. The
interval of a ratio is Welch's t or, if the order of the node counts was shuffled within each
repeat, Student's t on the ratios of the repeats. benchmarks/interval_coverage.py measures the
coverage of the intervals, which docs/statistics.md reports.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from nodesweep.scaling.analysis.interval import LEVEL, MIN_REPEATS, Interval, welch_freedom

# 80th percentile of the standard normal distribution. A fifth of the sweeps whose spread does not
# grow with N are mistaken for growing ones. With three repeats, a stricter test would miss growth.
GROWS = 0.8416
_TWO_SIDED = (1 + LEVEL) / 2

Floats = npt.NDArray[np.float64]


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of values above zero, which is exact if they are all equal."""
    if min(values) == max(values):
        return values[0]
    return statistics.geometric_mean(values)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's t interval of the geometric mean, on the logarithms: exp(m ± t s / sqrt n).

    The logarithms are assumed to be independent and normal. Return None for fewer than MIN_REPEATS
    values, or if a value is not above zero.

    Raises:
        ValueError: A value is not finite.
    """
    if len(values) < MIN_REPEATS or min(values) <= 0:
        return None
    logs = _logs(values)
    reach = float(stdtrit(len(logs) - 1, _TWO_SIDED)) * logs.std(ddof=1) / len(logs) ** 0.5
    return _around(geometric_mean(values), reach)


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float]) -> Interval | None:
    """Return Welch's t interval of the ratio of two geometric means.

    The two means must be of different runs. (The ratio of the baseline to itself is exactly 1 and
    needs no interval.) The logarithms are assumed to be independent and normal, with a different
    variance on each side (Welch, Biometrika 34, 1947). The one-sided bounds are also at 95%.

    Returns:
        The interval, or None if either side has fewer than MIN_REPEATS values.

    Raises:
        ValueError: A value is not finite or not above zero.
    """
    if min(len(numerator), len(denominator)) < MIN_REPEATS:
        return None
    sides = [_logs(values) for values in (numerator, denominator)]
    ratio = geometric_mean(numerator) / geometric_mean(denominator)
    errors = [float(logs.std(ddof=1)) / len(logs) ** 0.5 for logs in sides]
    error = math.hypot(*errors)
    if error == 0:
        return Interval(low=ratio, high=ratio)
    shares = [(each / error) ** 2 for each in errors]
    freedom = welch_freedom(shares, [len(logs) for logs in sides])
    two_sided, one_sided = stdtrit(freedom, [_TWO_SIDED, LEVEL]) * error
    bounds = _around(ratio, float(one_sided))
    return _around(ratio, float(two_sided)).model_copy(
        update={"one_sided": (bounds.low, bounds.high)}
    )


@dataclass(frozen=True)
class Residuals:
    """The scatter of log-times in a shuffled sweep that repeats and node counts do not explain.

    `spread` is the standard deviation of one run, with `freedom` degrees of freedom. `grow` is True
    if the spread seems to grow with the node count.
    """

    spread: float
    freedom: int
    grow: bool


def residuals_of(times: Sequence[Mapping[int, float]]) -> Residuals | None:
    """Return the residuals of log-time = repeat + node count (randomized blocks).

    With n repeats of k node counts, the residuals have (n - 1)(k - 1) degrees of freedom; a single
    pair has n - 1 (Montgomery, *Design and Analysis of Experiments*, 8th ed., section 4.1). Growth
    is tested at 20%, by the score test of Cook and Weisberg, *Biometrika* 70(1), 1983, on the rank
    of a node count. If R is the share of a node count in the squared residuals, and w the distance
    of its rank from the middle, then the sum of w R has mean 0 and variance
    2 (n - 1) (1 - 2/k) sum w^2 / (f (f + 2)) for f degrees of freedom if the spread does not grow.

    Args:
        times: Seconds by repeat, for each node count in ascending order. Node counts with fewer
            than MIN_REPEATS runs are ignored, and so are repeats that a node count lacks.

    Returns:
        The residuals, or None if fewer than two node counts or MIN_REPEATS repeats are left.
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
        # two node counts have equal residuals, so they can't show growth
        grow=bool(counts > 2 and place @ squares > GROWS * variance**0.5 * squares.sum()),
    )


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> float | None:
    """Return the geometric mean of the ratios of times by repeat; None without common repeats.

    paired_ratio_interval() returns its interval. The mean of equal ratios is exact.

    Args:
        numerator: Seconds by repeat.
        denominator: Seconds by repeat.
    """
    both = sorted(numerator.keys() & denominator.keys())
    ratios = [numerator[repeat] / denominator[repeat] for repeat in both]
    return geometric_mean(ratios) if ratios else None


def paired_ratio_interval(
    numerator: Mapping[int, float],
    denominator: Mapping[int, float],
    residuals: Residuals | None = None,
) -> Interval | None:
    """Return Student's t interval of a ratio of times above zero, paired by repeat.

    Anything that slows down all runs of a repeat cancels out in the ratio of its two times. The
    logarithms of the ratios are assumed to be independent and normal, so the interval is
    exp(m ± t s / sqrt n), where exp(m) is paired_ratio(). With residuals, s is the spread of the
    whole sweep, and the one-sided bounds are at 95%. If the spread grows with the node count, s is
    the spread of the pair with n - 1 degrees of freedom (Montgomery, section 2.5). Each one-sided
    bound is then the wider of two, the pair's at 95% and the sweep's at 97.5%, and the interval is
    at least as wide. Without residuals, s is the spread of the pair, and there are no one-sided
    bounds.

    Args:
        numerator: Seconds by repeat.
        denominator: Seconds by repeat.
        residuals: The residuals of the sweep, which includes both node counts.

    Returns:
        The interval, or None if fewer than MIN_REPEATS repeats have times on both sides.
    """
    both = sorted(numerator.keys() & denominator.keys())
    if len(both) < MIN_REPEATS:
        return None
    logs = np.log([numerator[repeat] / denominator[repeat] for repeat in both])

    def around(reach: float) -> tuple[float, float]:
        return float(np.exp(logs.mean() - reach)), float(np.exp(logs.mean() + reach))

    own = logs.std(ddof=1) / len(both) ** 0.5
    reach = stdtrit(len(both) - 1, _TWO_SIDED) * own
    if residuals is None:
        low, high = around(reach)
        return Interval(low=low, high=high)
    pooled = residuals.spread * (2 / len(both)) ** 0.5
    if residuals.grow:
        one_sided = max(
            stdtrit(residuals.freedom, _TWO_SIDED) * pooled, stdtrit(len(both) - 1, LEVEL) * own
        )
        reach = max(reach, one_sided)
    else:
        one_sided = stdtrit(residuals.freedom, LEVEL) * pooled
        reach = stdtrit(residuals.freedom, _TWO_SIDED) * pooled
    low, high = around(reach)
    return Interval(low=low, high=high, one_sided=around(one_sided))


def next_run_bound(values: Sequence[float]) -> float | None:
    """Return the upper 95% prediction bound of the next value, which 19 of 20 values don't exceed.

    It is exp(m + t s sqrt(1 + 1/n)), where m and s are the mean and the standard deviation of the
    logarithms of the n values, and t = prediction_factor(n) / sqrt(1 + 1/n) is the 95th percentile
    of Student's t with n - 1 degrees of freedom (Hahn and Meeker, *Statistical Intervals*, 1991,
    section 4.7, on the log scale, since times and costs are positive and vary by factors). Return
    None for fewer than MIN_REPEATS values, or if a value is not above zero.
    """
    if len(values) < MIN_REPEATS or min(values) <= 0:
        return None
    reach = prediction_factor(len(values)) * _logs(values).std(ddof=1)
    return _around(geometric_mean(values), reach).high


def prediction_factor(count: int) -> float:
    """Return the distance of the upper 95% prediction bound from the mean, in standard deviations.

    It is 3.4 for `count` = 3 values, 2.3 for 5, and 1.64 in the limit.
    """
    return float(stdtrit(count - 1, LEVEL)) * (1 + 1 / count) ** 0.5


def _around(middle: float, reach: float) -> Interval:
    factor = math.exp(reach)
    return Interval(low=middle / factor, high=middle * factor)


def _logs(values: Sequence[float]) -> Floats:
    """Return the logarithms in ascending order, or zeros if the values are all equal.

    Otherwise, rounding errors would give equal values a variance.
    """
    times = np.sort(np.asarray(values, dtype=np.float64))
    odd = times[~(np.isfinite(times) & (times > 0))]
    if odd.size:
        raise ValueError(f"values: {odd[0]} is not a valid time; allowed: finite numbers above 0")
    logs = np.log(times)
    return logs if times[0] < times[-1] else np.zeros_like(logs)
