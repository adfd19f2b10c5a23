"""Bound a sum of terms with nonnegative coefficients by what the measurements allow.

A few node counts do not determine the coefficients. For example, communication at two node counts
does not separate latency, bandwidth and overlap. The coefficients that fit best form a polytope,
whose corners have at most as many terms as there are measurements. A prediction is linear in the
coefficients, so its extremes are at corners.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SAME_FIT = 1e-6
"""Residuals that differ by less than this, relative to the measurements, are considered equal."""
_LEAST_SIZE = 0.1
"""Errors are relative to the measurement, or to this share of the largest one if that is more."""


class Corners(NamedTuple):
    """Solutions (first axis) for each draw of the measurements (second axis).

    `misfit` is the norm of the relative residuals, or inf if a coefficient is out of bounds.
    `predicted` is the predicted value. `fitted` holds the fitted measurements (third axis).
    """

    misfit: Floats
    predicted: Floats
    fitted: Floats


class Span(NamedTuple):
    """The minimum, likely and maximum value of a quantity in each draw."""

    low: Floats
    middle: Floats
    high: Floats

    def times(self, factor: float) -> Span:
        """Return the span of the quantity times a factor of at least 0."""
        return Span(self.low * factor, self.middle * factor, self.high * factor)

    def plus(self, other: Span) -> Span:
        """Return the span of the sum of two quantities."""
        return Span(self.low + other.low, self.middle + other.middle, self.high + other.high)


def exactly(values: Floats) -> Span:
    """Return the span of a quantity that is known exactly."""
    return Span(values, values, values)


def between(low: Floats, high: Floats) -> Span:
    """Return the span between two bounds, with their midpoint as the likely value."""
    return Span(low, (low + high) / 2, high)


def corners(
    columns: Floats,
    at: Floats,
    values: Floats,
    most: Floats | None = None,
    sizes: Floats | None = None,
) -> Corners:
    """Return the least-squares solutions with at most as many terms as there are measurements.

    Args:
        columns: Value of each term at each measurement: shape (measurements, terms).
        at: Value of each term at the predicted place.
        values: The measurements, at least 0: shape (draws, measurements). The first draw holds the
            measured values.
        most: Maximum coefficient of each term; None if unbounded.
        sizes: The values that errors are relative to; None for the measured values.
    """
    sizes = values[0] if sizes is None else sizes
    weights = 1 / np.maximum(sizes, _LEAST_SIZE * sizes.max())
    rows, known = columns * weights[:, np.newaxis], values * weights
    limits = np.full(len(at), np.inf) if most is None else most
    found: list[Corners] = []
    for size in range(1, min(rows.shape) + 1):
        for chosen in map(list, combinations(range(len(at)), size)):
            part = rows[:, chosen]
            if np.linalg.matrix_rank(part) < size:
                continue
            coefficients = known @ np.linalg.pinv(part).T
            is_allowed = (coefficients >= -1e-12) & (coefficients <= limits[chosen] + 1e-12)
            misfit = np.linalg.norm(known - coefficients @ part.T, axis=1)
            found.append(
                Corners(
                    np.where(is_allowed.all(axis=1), misfit, np.inf),
                    coefficients @ at[chosen],
                    coefficients @ columns[:, chosen].T,
                )
            )
    return Corners(*(np.array(each) for each in zip(*found, strict=True)))


def joined(*found: Corners) -> Corners:
    """Concatenate the solutions."""
    return Corners(*(np.concatenate(each) for each in zip(*found, strict=True)))


def span_of(likely: Corners, *others: Corners) -> Span:
    """Return the span of the best solutions, widened by the misfit of the measured values.

    Its middle is the middle of the best solutions in `likely`, which must have at least one
    feasible solution in each draw.
    """
    found = [_ends(likely), *(_ends(each) for each in others)]
    low, high, least = (np.array([each[place] for each in found]) for place in range(3))
    is_best = least <= least.min(axis=0) + _SAME_FIT
    off = float(least[:, 0].min())
    lowest = np.where(is_best, low, np.inf).min(axis=0)
    highest = np.where(is_best, high, -np.inf).max(axis=0)
    middle = np.maximum((low[0] + high[0]) / 2, 0.0)
    return Span(
        np.minimum(middle, np.maximum(lowest, 0.0) * max(0.0, 1 - off)),
        middle,
        np.maximum(middle, highest * (1 + off)),
    )


def _ends(found: Corners) -> tuple[Floats, Floats, Floats]:
    """Return the minimum and maximum prediction of the best solutions, and their misfit."""
    least = found.misfit.min(axis=0)
    is_best = found.misfit <= least + _SAME_FIT
    low = np.where(is_best, found.predicted, np.inf).min(axis=0)
    return low, np.where(is_best, found.predicted, -np.inf).max(axis=0), least
