"""90% prediction intervals from the noise of runs, by a parametric bootstrap.

The relative deviations of the runs from the mean at their node count, pooled over the node counts,
give the covariance of the noise in the parts of the time with nu = sum of (n - 1) degrees of
freedom. Each draw adds noise over sqrt(n) to the measured means, predicts T from them, and adds the
noise of the next run. Passes that were timed after the runs on one node scale with the draw of
these runs, and also have the errors of the timing. All noise of a draw is divided by
sqrt(chi2(nu)/nu), so the noise of a sum of parts has Student's t distribution. An interval extends
from the 5% quantile of the lower bound to the 95% quantile of the upper bound that the model allows
(Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993; Imbens and Manski, Econometrica 72,
2004, on intervals for quantities of which only bounds are known).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nodesweep.scaling.analysis.exchange import Exchange
from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.outcome.timed_passes import PassRatio
from nodesweep.scaling.predict.physics import (
    ADDED,
    PART_OF,
    PARTS,
    Known,
    Part,
    Place,
    Term,
    terms_at,
)
from nodesweep.scaling.predict.solutions import Floats, Span, between, exactly

LEVEL = 0.9
DRAWS = 1000
_LEAST = 1e-3
"""Minimum of a drawn time, as a share of the predicted time."""
_SEED = 38
_TIMING_ERROR = 0.05
"""Relative standard error of passes that were timed after the training, outside of its steps.

On an emulated node of 0.1 vCPU, the passes of two real runs each at 1/2, 1/4 and 1/8 of the
batch, as shares of those of the whole batch, were 7% below, 7% above and at the middle of the two
bounds of _draw(). No other type of node was compared.
"""


class Measurement(NamedTuple):
    """The runs at one node count; `runs` holds the seconds of each part, one value per run.

    `work` is the number of samples that a run processes, in any unit that all measurements share.
    `exchange` holds the seconds that all gradient exchanges would take if no computation hid them;
    None if they are unknown. `ratios` holds the times of passes on fewer samples per process
    relative to the passes of the runs, if they were timed after the training.
    """

    place: Place
    runs: Mapping[Part, Floats]
    work: float = 1.0
    exchange: Exchange | None = None
    ratios: Mapping[float, PassRatio] = MappingProxyType({})


class Outlook(NamedTuple):
    """The prediction for one place; intervals are None if no node count has two runs.

    `seconds` and `interval` are for the next run, the ratios for the means of many runs.
    """

    place: Place
    seconds: float
    interval: Interval | None
    efficiency: float
    efficiency_interval: Interval | None
    doubling_ratio: float | None
    doubling_interval: Interval | None
    terms: Mapping[Term, tuple[float, float, float]]
    """The minimum, likely and maximum seconds of each term that the measured means allow.

    Empty at a measured place.
    """


def look_ahead(
    measured: Sequence[Measurement],
    asked: Sequence[tuple[Place, float]],
    passes: Mapping[float, Sequence[float]],
) -> list[Outlook]:
    """Predict T and its ratios for the requested places.

    Args:
        measured: The measurements by ascending node count, at least one on several nodes.
        asked: (place, work of a run) to predict, by ascending node count. At a measured place, the
            means are the measured ones, and their intervals come from the noise of all node counts.
        passes: By samples per process, the seconds of the forward and backward pass per optimizer
            step for batches that were measured separately; one value per run. For such a batch,
            the ratios of `measured` are not used.
    """
    known, next_run, freedom = _draw(measured, passes)
    base = measured[0]
    totals = {
        each.place.nodes: (_total(known, index), each.work) for index, each in enumerate(measured)
    }
    at_base = totals[base.place.nodes][0].middle
    found = []
    for place, work in asked:
        terms: dict[Term, Span] = {}
        noise = np.zeros_like(at_base)
        if place.nodes in totals:
            total = totals[place.nodes][0]
            index = [each.place.nodes for each in measured].index(place.nodes)
            likely: dict[Part, float] = {
                part: float(known.values[part][0, index]) for part in ADDED
            }
        else:
            terms = terms_at(known, place)
            total = exactly(np.zeros_like(at_base))
            for span in terms.values():
                total = total.plus(span)
            likely = {PART_OF[term]: float(span.middle[0]) for term, span in terms.items()}
        for part, seconds in likely.items():
            noise = noise + seconds * next_run[:, PARTS.index(part)]
        gain = work / base.work * base.place.nodes / place.nodes
        half = totals.get(place.nodes // 2) if place.nodes % 2 == 0 else None
        ratio = None
        if half is not None:
            ratio = _over(half[0], total, work / half[1])
        efficiency = _over(exactly(at_base), total, gain)
        totals[place.nodes] = (total, work)
        found.append(
            Outlook(
                place=place,
                seconds=float(total.middle[0]),
                interval=_interval(
                    total.plus(exactly(noise)), freedom, _LEAST * float(total.middle[0])
                ),
                efficiency=gain * float(at_base[0] / total.middle[0]),
                efficiency_interval=_interval(efficiency, freedom),
                doubling_ratio=(
                    None
                    if half is None
                    else float(half[0].middle[0] / total.middle[0]) * work / half[1]
                ),
                doubling_interval=None if ratio is None else _interval(ratio, freedom),
                terms={
                    term: (float(span.low[0]), float(span.middle[0]), float(span.high[0]))
                    for term, span in terms.items()
                },
            )
        )
    return found


def _over(numerator: Span, denominator: Span, factor: float) -> Span:
    # if runs are very noisy, every part takes 0 s in some draws
    low, high = (
        np.maximum(end, _LEAST * denominator.middle[0])
        for end in (denominator.low, denominator.high)
    )
    return between(numerator.low / high, numerator.high / low).times(factor)


def _interval(span: Span, freedom: int, least: float = 0.0) -> Interval | None:
    if not freedom:
        return None
    low = float(np.quantile(span.low[1:], (1 - LEVEL) / 2))
    high = float(np.quantile(span.high[1:], (1 + LEVEL) / 2))
    return Interval(low=max(low, least), high=max(high, least), level=LEVEL)


def _total(known: Known, index: int) -> Span:
    total = sum(known.values[part][:, index] for part in ADDED)
    return exactly(np.asarray(total))


def _draw(
    measured: Sequence[Measurement], passes: Mapping[float, Sequence[float]]
) -> tuple[Known, Floats, int]:
    """Return draws of the measurements, the relative noise of the next run in each draw, and nu.

    The first draw has no noise.
    """
    random = np.random.default_rng(_SEED)
    table = [np.column_stack([each.runs[part] for part in PARTS]) for each in measured]
    means = np.array([runs.mean(axis=0) for runs in table])
    residuals = np.concatenate(
        [
            (runs - mean) / np.where(mean > 0, mean, np.inf)
            for runs, mean in zip(table, means, strict=True)
        ]
    )
    counts = np.array([len(runs) for runs in table])
    own = ((counts - 1)[:, np.newaxis] * (means > 0)).sum(axis=0)
    freedom = int((counts - 1).sum())
    spread = residuals / np.sqrt(np.maximum(own, 1))
    tails = np.sqrt(random.chisquare(max(freedom, 1), DRAWS) / max(freedom, 1))

    def noise() -> Floats:
        drawn: Floats = random.standard_normal((DRAWS, len(spread))) @ spread
        drawn /= tails[:, np.newaxis]
        drawn[0] = 0.0
        return drawn

    factors = np.stack([np.maximum(0.0, 1 + noise() / np.sqrt(count)) for count in counts], axis=1)
    values = {part: means[:, index] * factors[:, :, index] for index, part in enumerate(PARTS)}
    others = {
        batch: exactly(
            np.mean(seconds)
            * np.maximum(0.0, 1 + noise()[:, PARTS.index("gradients")] / np.sqrt(len(seconds)))
        )
        for batch, seconds in passes.items()
    }
    if any(each.ratios for each in measured):
        timing = random.standard_normal(DRAWS) * _TIMING_ERROR
        for index, each in enumerate(measured):
            own = values["gradients"][:, index] / each.place.steps
            for batch, (ratio, error, whole) in each.ratios.items():
                wrong = timing + random.standard_normal(DRAWS) * error
                wrong[0] = 0.0
                share = ratio * np.maximum(0.0, 1 + wrong)
                # A pass in a step takes longer than a timed one, for example because its data left
                # the caches. That may be in proportion to the pass, or the same for every batch.
                ends = (own * share, np.maximum(0.0, own * (1 - whole + whole * share)))
                others.setdefault(batch, between(np.minimum(*ends), np.maximum(*ends)))
    known = Known(
        [each.place for each in measured],
        values,
        others,
        [each.exchange for each in measured],
        {batch for each in measured for batch in each.ratios}.difference(passes),
    )
    return known, noise(), freedom
