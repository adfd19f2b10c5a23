"""A control chart over the sweeps of a trend, against the level of its first sweeps.

Comparing each sweep with the previous one would raise alarms on the random shift that all runs of a
sweep share, and never on a slow creep. The chart is a two-sided CUSUM (Page, Biometrika 41, 1954)
of the logarithms of train times. The influence of each sweep is bounded, so that one slow host
raises no alarm; docs/history.md lists the chart's error rates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nodesweep.scaling.analysis.interval import MIN_REPEATS

LEARNING_SWEEPS = 5
"""Number of sweeps from which a level is learned before any sweep can raise an alarm."""
LEVEL_SWEEPS = 10
"""Maximum number of sweeps from which a level is learned, so that a creep does not move it."""
HISTORY_SWEEPS = 30
FALSE_ALARM_SHARE = 0.01
"""Share of histories of HISTORY_SWEEPS sweeps that raise a false alarm.

It holds if the level and the variance are known exactly; since both are learned, the measured share
is larger.
"""
FOUND_WITHIN = 4
"""Number of sweeps within which 9 of 10 steps of the size Judgement.noticeable raise an alarm."""
_VARIANCE_OF_MEDIAN = math.pi / 2  # times s²/n, of normal errors
# Standard errors by which the learned level may be off (one-sided 95%); k and h allow for them.
_LEVEL_ERRORS = 1.645
# Correction of the approximation by a continuous sum for the discrete one (Siegmund 1985).
_OVERSHOOT = 1.166
# For normal values, in standard deviations: the median of |a - b|, and the 90% quantile of |a|.
_MEDIAN_MOVE, _NINE_IN_TEN = 0.9539, 1.6449
# Quantile of s² over sweeps that replaces its mean, which a few very slow runs would raise.
_WITHIN = 0.7
_MOST_CORRELATION = 0.9
# Minimum distance of later sweeps below the reference that proves the reference to be too slow: in
# standard errors, and as a share of the tolerance.
_LOWER, _LOWER_SHARE = 3.0, 0.2
# Maximum that a sweep of 1, of 2 and of more runs adds to the sum, as a share of the limit. One run
# in 20 that takes twice as long must not raise an alarm, so an alarm takes 4, 3 or 2 slow sweeps in
# a row.
_MOST_ADDED = (0.33, 0.49, 0.66)
# A sweep of 3 or more runs is not bounded if four fifths of its runs are this many standard
# deviations above the reference, so it can raise an alarm alone.
_ALONE = 10.0


@dataclass(frozen=True)
class SweepLevel:
    """A sweep at one node count, as input to the chart; times are natural logarithms of seconds."""

    sweep_id: str
    log_seconds: float
    """Median train time; with an even number of runs, the faster of the middle two."""
    fast_run: float
    """Train time that at least four fifths of the runs reach or exceed."""
    runs: int
    error_variance: float
    """Variance of the median due to the scatter of the sweep's own runs; 0 for fewer than 3."""


@dataclass(frozen=True)
class Judgement:
    """A sweep after the learning period; all numbers are logarithms, so 0.05 is about 5%."""

    sweep_id: str
    excess: float
    """CUSUM of the sweeps' excess over the reference plus the allowance; at least 0."""
    since: str | None
    """The sweep at which the sum began; None if it is 0."""
    reference: float
    reference_since: str
    """First of the sweeps whose median is the reference."""
    reference_error: float
    """Standard error of the reference."""
    recent: float
    """Median of the latest LEVEL_SWEEPS sweeps without an alarm."""
    sigma: float
    """Standard deviation of a sweep, enlarged if sweeps are few or correlated."""
    allowance: float
    limit: float
    faster_since: str | None
    """First sweep of a confirmed shift down whose level is not learned yet; None if none."""

    @property
    def alarms(self) -> bool:
        """True if the sum exceeds its limit."""
        return self.excess > self.limit

    @property
    def noticeable(self) -> float:
        """Smallest step that raises an alarm within FOUND_WITHIN sweeps in 9 of 10 histories.

        The step's excess over the allowance adds up to the limit in that many sweeps, with 1.28
        standard errors of their mean and of the reference to spare. It is a step from the level of
        the latest sweeps, so if they are below the reference, the step has to make up for the
        difference, too.
        """
        error = self.sigma / math.sqrt(FOUND_WITHIN)
        spare = max(
            1.2816 * math.hypot(error, self.reference_error),
            1.2816 * error + self.reference - self.recent,
        )
        return self.allowance + self.limit / FOUND_WITHIN + spare


def sweep_level(sweep_id: str, train_seconds: Sequence[float]) -> SweepLevel:
    """Return the level of a sweep at one node count from the times of one or more used runs."""
    logarithms = sorted(math.log(seconds) for seconds in train_seconds)
    n = len(logarithms)
    mean = statistics.fmean(logarithms)
    squares = math.fsum((each - mean) ** 2 for each in logarithms)
    return SweepLevel(
        sweep_id=sweep_id,
        log_seconds=logarithms[(n - 1) // 2],
        fast_run=logarithms[n // 5],
        runs=n,
        error_variance=_VARIANCE_OF_MEDIAN * squares / (n - 1) / n if n >= MIN_REPEATS else 0.0,
    )


def chart_sweeps(
    levels: Sequence[SweepLevel], tolerance: float, node_counts: int
) -> tuple[Judgement, ...]:
    """Judge every sweep after the first LEARNING_SWEEPS, in order.

    A confirmed shift down starts a new level, which is learned from the first LEARNING_SWEEPS
    sweeps after the shift. Until these exist, sweeps are judged by the previous level. A new level
    also starts with the latest LEVEL_SWEEPS sweeps if none of them belongs to an alarm and the
    sweeps after the first LEARNING_SWEEPS are clearly faster. In that case, the first ones were
    slow, but by less than the limits.

    Args:
        levels: Levels of the sweeps, oldest first.
        tolerance: Share by which a sweep may be slower than the reference.
        node_counts: Number of charted counts, which share the allowance for false alarms.
    """
    judged: dict[str, Judgement] = {}
    deviations: dict[int, float] = {}
    start: int | None = 0
    while start is not None:
        made, start = _judge_level(levels, start, deviations, tolerance, node_counts)
        judged |= {judgement.sweep_id: judgement for judgement in made}
    return tuple(judged.values())


@dataclass
class _Sum:
    """One side of the CUSUM, and the index of the sweep at which it began."""

    value: float = 0.0
    since: int | None = None

    def add(self, index: int, step: float, limit: float) -> None:
        # Start from the limit at most, so that one good sweep ends an alarm.
        self.value = max(0.0, min(self.value, limit) + step)
        self.since = None if not self.value else index if self.since is None else self.since


def _judge_level(
    levels: Sequence[SweepLevel],
    start: int,
    deviations: dict[int, float],
    tolerance: float,
    node_counts: int,
) -> tuple[list[Judgement], int | None]:
    """Judge the sweeps by the level that starts at `start`, up to the start of the next level.

    Args:
        levels: As in chart_sweeps().
        start: Index of the first sweep of the level.
        deviations: Deviations of earlier sweeps from their own level, by index. Deviations from
            this level are added. While a sum is above 0, they wait until both sums have fallen to 0
            without passing a limit.
        tolerance: As in chart_sweeps().
        node_counts: As in chart_sweeps().

    Returns:
        The judgements, and the index of the first sweep of the next level; None if there is none.
    """
    learnt = levels[start : start + LEARNING_SWEEPS]
    if len(learnt) < LEARNING_SWEEPS:
        return [], None
    settled = [level.log_seconds for level in learnt]
    reference = statistics.median(settled)
    for index in range(start, len(levels)):
        deviations.pop(index, None)
    deviations |= {start + place: each - reference for place, each in enumerate(settled)}
    slower, faster = _Sum(), _Sum()
    judgements: list[Judgement] = []
    unsettled: dict[int, float] = {}
    alarmed, lower, calm = False, None, 0
    for index, level in enumerate(levels[start + LEARNING_SWEEPS :], start + LEARNING_SWEEPS):
        within = _quantile((each.error_variance for each in levels[start:index]), _WITHIN)
        sigma = scatter(list(deviations.values()), math.sqrt(within))
        reference = statistics.median(settled[:LEVEL_SWEEPS])
        error = sigma * math.sqrt(_VARIANCE_OF_MEDIAN / len(settled[:LEVEL_SWEEPS]))
        allowance, limit = design(sigma, error, tolerance, node_counts)
        deviation = level.log_seconds - reference
        most = _MOST_ADDED[min(level.runs, MIN_REPEATS) - 1] * limit
        step, alone = min(deviation - allowance, most), level.fast_run - reference
        if level.runs >= MIN_REPEATS and alone > _ALONE * sigma:
            step = max(step, alone - allowance)
        slower.add(index, step, limit)
        faster.add(index, min(-deviation - allowance, most), limit)
        if lower is None and faster.value > limit:
            lower = faster.since
        judgements.append(
            Judgement(
                sweep_id=level.sweep_id,
                excess=slower.value,
                since=None if slower.since is None else levels[slower.since].sweep_id,
                reference=reference,
                reference_since=learnt[0].sweep_id,
                reference_error=error,
                recent=statistics.median(settled[-LEVEL_SWEEPS:]),
                sigma=sigma,
                allowance=allowance,
                limit=limit,
                faster_since=None if lower is None else levels[lower].sweep_id,
            )
        )
        unsettled[index] = level.log_seconds
        alarmed = alarmed or judgements[-1].alarms or lower is not None
        if not slower.value and not faster.value:
            if alarmed:
                calm = 0
            else:
                settled += unsettled.values()
                deviations |= {at: each - reference for at, each in unsettled.items()}
                calm += len(unsettled)
            alarmed, unsettled = False, {}
            if calm >= LEVEL_SWEEPS and _is_lower(settled, reference, math.sqrt(within), tolerance):
                return judgements, index + 1 - LEVEL_SWEEPS
        if lower is not None and index + 1 >= lower + LEARNING_SWEEPS:
            since = levels[lower : lower + LEARNING_SWEEPS]
            median = statistics.median(each.log_seconds for each in since)
            if median < reference - math.log1p(tolerance):
                return judgements, lower
            lower, faster = None, _Sum()
    return judgements, None


def _is_lower(settled: Sequence[float], reference: float, within: float, tolerance: float) -> bool:
    """Return True if the sweeps after the first LEARNING_SWEEPS are clearly below the reference."""
    first, later = settled[:LEARNING_SWEEPS], settled[LEARNING_SWEEPS:]
    level = statistics.median(later)
    # The chart's sigma would mistake a shift between the first and the later sweeps for noise.
    own = [each - statistics.median(first) for each in first] + [each - level for each in later]
    errors = math.sqrt(_VARIANCE_OF_MEDIAN * (1 / LEVEL_SWEEPS + 1 / len(later)))
    least = max(_LOWER * scatter(own, within) * errors, _LOWER_SHARE * math.log1p(tolerance))
    return reference - level > least


def scatter(deviations: Sequence[float], within: float) -> float:
    """Return the standard deviation of a sweep that the limits must allow for.

    It is the largest of three values, none of which a single outlier moves: one from the median of
    the successive absolute differences, to which a creep adds only its step; one from the 90%
    quantile of the absolute deviations without the largest, which shows runs of two kinds; and the
    standard deviation that the runs within sweeps imply. Two factors enlarge it: 1 + 1/m for m
    sweeps and, as for the error of a mean (Bartlett 1946), sqrt((1 + r)/(1 - r)) for the
    correlation r of successive sweeps, whose estimate is too low by (1 + 3r)/m (Kendall, Biometrika
    41, 1954). A straight line is removed before r is estimated, since drift isn't correlation.
    Adding 0.8 standard errors to r was tried (150 histories): false alarms with AR(1) 3% fell from
    11-24% to 4-9%, but steps of 10% found within 4 uncorrelated sweeps fell from 85-94% to 61-74%.

    Args:
        deviations: At least 3 deviations of logarithms from their level, in order.
        within: Standard deviation of a sweep's median due to its own runs.
    """
    moves = statistics.median(abs(b - a) for a, b in pairwise(deviations))
    far = _quantile(sorted(map(abs, deviations))[:-1], 0.9)
    few = 1 / len(deviations)
    sigma = (1 + few) * max(moves / _MEDIAN_MOVE, far / _NINE_IN_TEN, within)
    if sigma == 0:
        return 0.0
    bounded = [min(max(each, -2 * sigma), 2 * sigma) for each in deviations]
    middle, mean = (len(bounded) - 1) / 2, statistics.fmean(bounded)
    across = math.fsum((place - middle) ** 2 for place in range(len(bounded)))
    slope = math.fsum((place - middle) * each for place, each in enumerate(bounded)) / across
    left = [each - mean - slope * (place - middle) for place, each in enumerate(bounded)]
    products = math.fsum(a * b for a, b in pairwise(left))
    # At least this large, so that the similar residuals of a noiseless drift show no correlation.
    squares = max(math.fsum(each * each for each in left), len(left) * (sigma / 2) ** 2)
    correlation = max(products, 0.0) / squares
    correlation = min(correlation + few * (1 + 3 * correlation), _MOST_CORRELATION)
    return sigma * math.sqrt((1 + correlation) / (1 - correlation))


def _quantile(values: Iterable[float], share: float) -> float:
    """Return the quantile of the values at `share`, interpolated linearly."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (place - math.floor(place)) * (high - low)


def design(sigma: float, error: float, tolerance: float, node_counts: int) -> tuple[float, float]:
    """Return (allowance k, limit h) of the CUSUM, both logarithms.

    k is the tolerance or, if larger, the error of the level plus half the smallest shift to detect
    (one standard deviation, Montgomery, Introduction to Statistical Quality Control, section 9.1).
    h is the tolerance or, if larger, the value that keeps false alarms to FALSE_ALARM_SHARE by
    Siegmund's approximation of the average run length (Sequential Analysis, 1985):
    (exp(2kb) - 2kb - 1)/2k² with b = h + 1.166, in standard deviations.

    Args:
        sigma: Standard deviation of a sweep, as a logarithm.
        error: Standard error of the level, as a logarithm.
        tolerance: As in chart_sweeps().
        node_counts: As in chart_sweeps().
    """
    tolerated = math.log1p(tolerance)
    if sigma == 0:
        return tolerated, tolerated
    errors = _LEVEL_ERRORS * error / sigma
    allowance = max(tolerated / sigma, 0.5 + errors)
    length = HISTORY_SWEEPS * node_counts / FALSE_ALARM_SHARE
    k = allowance - errors
    exponent = 1.0
    for _ in range(20):  # a fixed point: each step moves the next by less than half as much
        exponent = math.log1p(2 * k * k * length + exponent)
    limit = max(exponent / (2 * k) - _OVERSHOOT, tolerated / sigma)
    return allowance * sigma, limit * sigma
