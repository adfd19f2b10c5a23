"""A control chart over the sweeps of a trend, against the level of its first sweeps.

Comparing each sweep with the previous one would raise alarms on the random shift that each sweep
has as a whole, and never on a slow creep. This is a one-sided CUSUM (Page, Biometrika 41, 1954) of
the logarithms of median train times, with limits from the variance between sweeps; docs/history.md
has its error rates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nodesweep.scaling.analysis.intervals import MIN_REPEATS

LEARNING_SWEEPS = 5
"""Number of sweeps from which the level is learned; none of them can raise an alarm."""
HISTORY_SWEEPS = 30
FALSE_ALARM_SHARE = 0.01
"""Share of histories of HISTORY_SWEEPS sweeps that may raise a false alarm if the level and the
variance are known exactly; since they are learned, the measured share is larger.
"""
# Standard errors by which the learned level may be off (one-sided 95%); k and h allow for them.
_LEVEL_ERRORS = 1.645
# Between a discrete sum and the continuous one of the approximation (Siegmund 1985).
_OVERSHOOT = 1.166
_VARIANCE_OF_MEDIAN = math.pi / 2  # times s²/n, of normal errors


@dataclass(frozen=True)
class SweepLevel:
    """A sweep at one node count, as input to the chart."""

    sweep_id: str
    log_seconds: float
    """Logarithm of the median train time."""
    error_variance: float
    """Variance of that median due to the scatter of the sweep's own runs."""


@dataclass(frozen=True)
class Judgement:
    """A sweep after the learning period; all numbers are logarithms, so 0.05 is about 5%."""

    sweep_id: str
    excess: float
    """Sum of the sweeps' excess over the reference plus the allowance; at least 0."""
    since: str | None
    """The sweep at which the sum began; None if it is 0."""
    reference: float
    sigma: float
    """Standard deviation of a sweep's median, between sweeps and within."""
    allowance: float
    limit: float

    @property
    def alarms(self) -> bool:
        """True if the sum exceeds its limit."""
        return self.excess > self.limit


def sweep_level(sweep_id: str, train_seconds: Sequence[float]) -> SweepLevel | None:
    """Return the level of a sweep's used runs at one node count.

    None for fewer than 3 runs, since a single slow host would shift their median.
    """
    if len(train_seconds) < MIN_REPEATS:
        return None
    logarithms = [math.log(seconds) for seconds in train_seconds]
    n, mean = len(logarithms), statistics.fmean(logarithms)
    variance = math.fsum((each - mean) ** 2 for each in logarithms) / (n - 1)
    return SweepLevel(sweep_id, statistics.median(logarithms), _VARIANCE_OF_MEDIAN * variance / n)


def chart_sweeps(
    levels: Sequence[SweepLevel], tolerance: float, node_counts: int
) -> tuple[Judgement, ...]:
    """Judge every sweep after the first LEARNING_SWEEPS, in order.

    Args:
        levels: Levels of the sweeps, oldest first.
        tolerance: Share by which a sweep may be slower than the reference.
        node_counts: Number of charted counts, which share the allowance for false alarms.
    """
    learnt = levels[:LEARNING_SWEEPS]
    if len(learnt) < LEARNING_SWEEPS:
        return ()
    reference = statistics.fmean(level.log_seconds for level in learnt)
    # Successive differences: a creep within the history moves them only by its step.
    differences = [b.log_seconds - a.log_seconds for a, b in pairwise(learnt)]
    squares, pairs = math.fsum(difference**2 for difference in differences), len(differences)
    within, sweeps = math.fsum(level.error_variance for level in learnt), len(learnt)
    judgements: list[Judgement] = []
    excess, since = 0.0, None
    in_control, before = True, learnt[-1]
    for level in levels[LEARNING_SWEEPS:]:
        sigma = math.sqrt(max(squares / (2 * pairs), within / sweeps))
        allowance, limit = design(sigma, tolerance, node_counts)
        # Start from the limit at most, so that one good sweep ends an alarm.
        begun = min(judgements[-1].limit, excess) if judgements else 0.0
        excess = max(0.0, begun + level.log_seconds - reference - allowance)
        since = (since or level.sweep_id) if excess else None
        judgements.append(
            Judgement(level.sweep_id, excess, since, reference, sigma, allowance, limit)
        )
        if in_control and not excess:
            squares, pairs = squares + (level.log_seconds - before.log_seconds) ** 2, pairs + 1
        within, sweeps = within + level.error_variance, sweeps + 1
        in_control, before = not excess, level
    return tuple(judgements)


def design(sigma: float, tolerance: float, node_counts: int) -> tuple[float, float]:
    """Return (allowance k, limit h) of the CUSUM, both logarithms.

    k is the tolerance, or half the smallest shift that a chart tells from noise (one standard
    deviation, Montgomery, Introduction to Statistical Quality Control, section 9.1) above the error
    of the level. h is the tolerance again, or the value that keeps false alarms to
    FALSE_ALARM_SHARE by Siegmund's approximation of the average run length (Sequential Analysis,
    1985): (exp(2kb) - 2kb - 1)/2k² with b = h + 1.166, in standard deviations.

    Args:
        sigma: Standard deviation of a sweep's median, as a logarithm.
        tolerance: As in chart_sweeps().
        node_counts: As in chart_sweeps().
    """
    tolerated = math.log1p(tolerance)
    if sigma == 0:
        return tolerated, tolerated
    error = _LEVEL_ERRORS / math.sqrt(LEARNING_SWEEPS)
    allowance = max(tolerated / sigma, 0.5 + error)
    length = HISTORY_SWEEPS * node_counts / FALSE_ALARM_SHARE
    k = allowance - error
    exponent = 1.0
    for _ in range(20):  # a fixed point: each step moves the next by less than half as much
        exponent = math.log1p(2 * k * k * length + exponent)
    limit = max(exponent / (2 * k) - _OVERSHOOT, tolerated / sigma)
    return allowance * sigma, limit * sigma
