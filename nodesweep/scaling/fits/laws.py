"""The scaling laws, and the bounded least squares that fit them.

Laws are fitted to the node-time N·T(N), for which each law is linear in nonnegative coefficients
(docs/fits.md):

    amdahl  N·T = t1·(1 − sigma) + t1·sigma·N                   Amdahl, AFIPS 1967
    usl     N·T = t1 + t1·alpha·(N − 1) + t1·beta·N·(N − 1)     Gunther, Guerrilla Capacity
                                                                Planning, 2007; gamma = 1/t1
    ring    N·T = t_compute + c·r(N)·(N − 1)                    Patarasuk and Yuan, JPDC 69, 2009;
                                                                arXiv 2006.15704

Bounded linear least squares on the relative residuals (fitted − observed)/observed therefore finds
the best fit without a starting point. r(N) is the number of optimizer steps at N divided by the
number at N0. If r is the same for all N, ring is equivalent to amdahl (sigma = c·r/t1) and is left
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from nodesweep.scaling.fits.models import Law

Floats = NDArray[np.float64]
MAX_LEFT_OUT = 100
_DIGITS = 12  # significant digits of results; the last four of a double depend on the CPU
# A term that contributes less than this share of the node-time at every point is rounding error, so
# its coefficient is set to 0.
ROUNDING = 1e-9
# An interval of a share of t1 that includes 0 is still a result if its upper bound is at most this:
# "at most 10% is serial".
SMALL_SHARE = 0.1


@dataclass(frozen=True)
class Sample:
    """The points to fit: node counts ascending, N·T(N) in node-seconds, and r(N).

    r(N) is 1 at every point unless the fitted law uses it. The seconds are per sample instead of
    per run if `per_sample` is True.
    """

    nodes: Floats
    node_seconds: Floats
    steps_ratio: Floats
    per_sample: bool = False

    def without(self, index: int) -> Sample:
        """Return the sample without the point at `index`."""
        keep = np.arange(len(self.nodes)) != index
        return Sample(
            self.nodes[keep], self.node_seconds[keep], self.steps_ratio[keep], self.per_sample
        )


@dataclass(frozen=True)
class Symbol:
    """The description of a parameter, whose value is between 0 and `upper`.

    An interval that includes 0 determines the parameter only if its upper bound is at most
    `negligible`.
    """

    name: str
    unit: str | None
    meaning: str
    meaning_per_sample: str | None = None  # if the seconds are per sample; None: as `meaning`
    upper: float = math.inf
    negligible: float = 0.0


@dataclass(frozen=True)
class LawSpec:
    """A scaling law. `columns(N, r)` returns the terms of N·T(N), one per coefficient.

    `to_parameters` converts coefficients to parameters.
    """

    law: Law
    equation: str
    symbols: tuple[Symbol, ...]
    columns: Callable[[Floats, Floats], tuple[Floats, ...]]
    to_parameters: Callable[[Floats], Floats]
    gradient: Callable[[Floats], Floats]  # d parameter_i / d coefficient_j


_T1 = Symbol("t1", "s", "train time on one node", "train time per sample on one node")
LAWS = (
    LawSpec(
        law="amdahl",
        equation="N·T(N) = t1·(1 + sigma·(N − 1))",
        symbols=(
            _T1,
            Symbol(
                "sigma",
                None,
                "share of t1 that more nodes do not shorten",
                upper=1.0,
                negligible=SMALL_SHARE,
            ),
        ),
        columns=lambda n, r: (np.ones_like(n), n),
        to_parameters=lambda k: np.array([k[0] + k[1], k[1] / (k[0] + k[1])]),
        gradient=lambda k: np.array(
            [[1.0, 1.0], [-k[1] / (k[0] + k[1]) ** 2, k[0] / (k[0] + k[1]) ** 2]]
        ),
    ),
    LawSpec(
        law="usl",
        equation="N·T(N) = t1·(1 + alpha·(N − 1) + beta·N·(N − 1))",
        symbols=(
            _T1,
            Symbol(
                "alpha",
                None,
                "contention: cost of sharing, per additional node",
                negligible=SMALL_SHARE,
            ),
            Symbol("beta", None, "coherency: cost of keeping each pair of nodes consistent"),
        ),
        columns=lambda n, r: (np.ones_like(n), n - 1, n * (n - 1)),
        to_parameters=lambda k: np.array([k[0], k[1] / k[0], k[2] / k[0]]),
        gradient=lambda k: np.array(
            [
                [1.0, 0.0, 0.0],
                [-k[1] / k[0] ** 2, 1 / k[0], 0.0],
                [-k[2] / k[0] ** 2, 0.0, 1 / k[0]],
            ]
        ),
    ),
    LawSpec(
        law="ring",
        equation="N·T(N) = t_compute + c·r(N)·(N − 1), r(N) = optimizer steps at N / at N0",
        symbols=(
            Symbol(
                "t_compute",
                "s",
                "train time on one node, which exchanges nothing",
                "train time per sample on one node, which exchanges nothing",
            ),
            Symbol(
                "c",
                "s",
                "2·M/B times the steps at N0: M bytes of gradients over a link of B bytes/s",
                "2·M/B times the steps per sample at N0:"
                " M bytes of gradients over a link of B bytes/s",
            ),
        ),
        columns=lambda n, r: (np.ones_like(n), r * (n - 1)),
        to_parameters=lambda k: k,
        gradient=lambda k: np.eye(2),
    ),
)


def solve(spec: LawSpec, sample: Sample) -> Floats:
    """Return the nonnegative coefficients that minimize the sum of squared relative residuals.

    A coefficient whose term is negligible at every point is exactly 0.
    """
    relative = relative_columns(spec, sample)
    scale = np.linalg.norm(relative, axis=0)
    scaled, ones = relative / scale, np.ones(len(sample.nodes))
    # lsq_linear() begins with this, too, but takes three times as long
    solution = np.linalg.lstsq(scaled, ones, rcond=-1)[0]
    if not (solution >= 0).all():
        bounded = lsq_linear(
            scaled, ones, bounds=(0, np.inf), method="bvls", tol=1e-14, max_iter=100
        )
        solution = np.maximum(bounded.x, 0)
    coefficients: Floats = solution / scale
    share = (relative * coefficients).max(axis=0)
    return np.where(share < ROUNDING, 0.0, coefficients)


def relative_columns(spec: LawSpec, sample: Sample) -> Floats:
    """Return the law's terms divided by the observed node-time: shape (points, coefficients).

    In a perfect fit, the dot product of each row with the coefficients is 1.
    """
    return (
        np.column_stack(spec.columns(sample.nodes, sample.steps_ratio))
        / sample.node_seconds[:, np.newaxis]
    )


def left_out_in_turn(points: int) -> Sequence[int]:
    """Return the indices of the points to leave out, one at a time.

    Each point takes a refit, so of many points only MAX_LEFT_OUT evenly spaced ones are left out.
    """
    if points <= MAX_LEFT_OUT:
        return range(points)
    return [int(index) for index in np.linspace(0, points - 1, MAX_LEFT_OUT).round()]


def root_mean_square(values: Floats) -> float:
    """Return the root mean square of the values, rounded to _DIGITS decimal places."""
    return round(float(np.sqrt(np.mean(values**2))), _DIGITS)


def significant(value: float) -> float:
    """Return the value, rounded to _DIGITS significant digits."""
    return float(f"{value:.{_DIGITS}g}")
