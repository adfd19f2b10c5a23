"""Quantiles of Student's t distribution without SciPy.

Importing scipy.special takes half as long as all the rest of `nodesweep plan`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_MOST_SUMMED = 250  # degrees of freedom; above this, the expansion is accurate to 1e-10
_MOST_STEPS = 50


@lru_cache(maxsize=4096)
def t_quantile(freedom: int, probability: float) -> float:
    """Return t such that P(T <= t) = probability, for T with `freedom` degrees of freedom.

    For probabilities from 0.6 to 1 - 1e-6, the result is within 1e-9 of SciPy's stdtrit.

    Args:
        freedom: Degrees of freedom, at least 1.
        probability: Above 0.5 and below 1.

    Raises:
        ValueError: An argument is out of its range.
    """
    if not 0.5 < probability < 1 or freedom < 1:
        raise ValueError(
            "expected at least 1 degree of freedom and a probability between 0.5 and 1, got "
            f"{freedom} and {probability}"
        )
    normal = NormalDist().inv_cdf(probability)
    if freedom > _MOST_SUMMED:
        return _expanded(freedom, normal)
    # Newton's method converges from the left of the root, because the CDF is concave above 0
    density_at_0 = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    density_at_0 /= math.sqrt(freedom * math.pi)
    t = normal
    for _ in range(_MOST_STEPS):
        density = density_at_0 * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        step = (probability - 0.5 - _between(freedom, t) / 2) / density
        t += step
        if abs(step) < 1e-12 * t:
            break
    return t


def _between(freedom: int, t: float) -> float:
    """Return P(-t < T < t) as a sum with one term for every two degrees of freedom.

    Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term = cosine if is_odd else 1.0
    total = term if freedom > 1 else 0.0
    for lower in range(1 + is_odd, freedom - 2, 2):
        term *= lower / (lower + 1) * cosine * cosine
        total += term
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total


def _expanded(freedom: int, x: float) -> float:
    """Return the t quantile as a series in 1/freedom, given the normal quantile `x` (26.7.5)."""
    n = freedom
    return (
        x
        + (x**3 + x) / (4 * n)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * n**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * n**3)
        + (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / (92160 * n**4)
    )
