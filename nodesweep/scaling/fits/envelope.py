"""The range of N·T(N) beyond the measured node counts over every law that fits within the noise.

Here, a law is a sum of at most MAX_TERMS terms with nonnegative coefficients (docs/fits.md,
"Beyond the measured counts"). The terms come from the performance model normal form up to N²
(Calotoiu et al., SC13, doi 10.1145/2503210.2503277). Three are added: the fixed cost of using a
network at all, a ring, and accelerators that have too little work beyond a measured node count.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.fits.laws import Floats

MAX_TERMS = 5
_MAX_KNEES = 4


def envelope(
    nodes: Floats, node_seconds: Floats, variances: Floats, at: int, most: float
) -> Interval | None:
    """Return the range of N·T(N) at `at` nodes over all laws that fit; None if no law fits.

    A law fits if its misfit Q, the sum of its squared relative residuals over `variances`, is at
    most `most`. For one choice of terms, their coefficients c form an ellipsoid around the
    least-squares solution ĉ, in which a linear function f is largest and smallest at

        c = ĉ ± sqrt((most − Q(ĉ)) / (f·G⁻¹·f))·G⁻¹·f,   G: matrix of the normal equations

    If a coefficient is negative there, the extreme law has fewer terms, so every choice with fewer
    terms is tried as well.

    Args:
        nodes: Measured node counts, ascending.
        node_seconds: N·T(N) at the measured node counts.
        variances: Relative variance of each N·T(N).
        at: Node count of the prediction, above 1.
        most: Largest misfit of a law that fits.
    """
    knees = knees_of(nodes)
    weights = 1 / np.sqrt(variances)
    beyond = law_terms(np.array([at], dtype=np.float64), knees)[0]
    # In units of their values at `at` the coefficients are the terms' shares of the prediction.
    rows = law_terms(nodes, knees) / beyond * (weights / node_seconds)[:, np.newaxis]
    found: list[float] = []
    for size in range(1, min(MAX_TERMS, len(nodes)) + 1):
        choices = np.array(list(combinations(range(len(beyond)), size)))
        chosen = rows[:, choices].transpose(1, 0, 2)
        inverse = np.linalg.pinv(chosen)
        best = inverse @ weights
        misfit = ((np.einsum("cnk,ck->cn", chosen, best) - weights) ** 2).sum(axis=1)
        direction = (inverse @ inverse.sum(axis=1)[:, :, np.newaxis])[:, :, 0]
        left = np.maximum(most - misfit, 0)
        steps = direction * np.sqrt(left / direction.sum(axis=1))[:, np.newaxis]
        for ends in (best - steps, best + steps):
            fits = (misfit <= most) & (ends >= 0).all(axis=1)
            found += ends[fits].sum(axis=1).tolist()
    return Interval(low=min(found), high=max(found)) if found else None


def law_terms(nodes: Floats, knees: Floats) -> Floats:
    """Return the values of all terms of N·T(N): shape (node counts, terms)."""
    columns = [
        np.ones_like(nodes),  # work that nodes share
        np.where(nodes > 1, 1.0, 0.0),  # using a network at all: one node exchanges nothing
        1 - 1 / nodes,  # a ring, if the number of steps falls with N
        np.log2(nodes),  # the slowest of N nodes; a tree, if the number of steps falls with N
        np.sqrt(nodes) - 1,
        nodes - 1,  # amdahl; a ring
        nodes * np.log2(nodes),  # a tree
        nodes * (nodes - 1),  # pairs of nodes: usl
    ]
    columns += [np.maximum(nodes - knee, 0) for knee in knees]
    return np.column_stack(columns)


def knees_of(nodes: Floats) -> Floats:
    """Return up to _MAX_KNEES of the inner node counts, at which knees are tried.

    Beyond a knee, accelerators have too little work.
    """
    inner = nodes[1:-1]
    if len(inner) <= _MAX_KNEES:
        return inner
    chosen: Floats = inner[np.linspace(0, len(inner) - 1, _MAX_KNEES).round().astype(int)]
    return chosen
