"""The range over all laws that fit, compared with an independent solver, and for curves that follow
no law."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import nnls

from nodesweep.scaling.analysis.intervals import geometric_mean
from nodesweep.scaling.fits.envelope import envelope, knees_of, law_terms
from nodesweep.scaling.fits.extrapolation import predict_by_law, run_noise
from nodesweep.scaling.fits.fit import fit_laws
from nodesweep.scaling.fits.laws import Sample

COUNTS = np.array([1.0, 2.0, 4.0, 8.0])
# Mean of the largest of N standard normal values (Harter, Biometrika 48, 1961).
SLOWEST = {1: 0.0, 2: 0.56419, 4: 1.02938, 8: 1.42360, 16: 1.76599}


def fullness(nodes: int) -> float:
    """Return the share of an accelerator that 12/N batches of its size use."""
    return 1 - math.exp(-12 / nodes)


NO_LAW: dict[str, Callable[[int], float]] = {
    "stragglers": lambda n: 1 + 0.1 * SLOWEST[n],
    "stragglers and a serial part": lambda n: 1 + 0.1 * SLOWEST[n] + 0.02 * (n - 1),
    "less full": lambda n: fullness(1) / fullness(n),
    "less full, by a power": lambda n: n**0.15,
    "network from the second node": lambda n: 1 + 0.05 * n * (n > 1) + 0.02 * (n - 1),
    "tree": lambda n: 1 + 0.02 * n * math.log2(n),
    "amdahl": lambda n: 1 + 0.05 * (n - 1),
    "usl": lambda n: 1 + 0.03 * (n - 1) + 0.001 * n * (n - 1),
    "ring of fewer steps": lambda n: 1 + 0.2 * (n - 1) / n,
}
"""N·T(N) over T(1)."""


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("counts", [(1, 2, 4, 8), (2, 4, 8, 16, 32), (1, 2, 4)])
def test_ends_are_those_that_an_independent_solver_finds(counts, seed):
    random = np.random.default_rng(seed)
    nodes = np.array(counts, dtype=np.float64)
    node_seconds = 600 * (1 + 0.08 * (nodes - 1)) * np.exp(random.normal(0, 0.01, len(nodes)))
    variances = np.full(len(nodes), 0.01**2)
    found = envelope(nodes, node_seconds, variances, 2 * counts[-1], 10.0)
    assert found is not None
    rows = law_terms(nodes, knees_of(nodes)) / node_seconds[:, np.newaxis] / 0.01
    beyond = law_terms(np.array([2.0 * counts[-1]]), knees_of(nodes))[0]

    def misfit(predicted: float) -> float:
        """Return the least misfit of the laws that predict this."""
        held = np.vstack([rows / beyond, np.full(len(beyond), 1e4)])
        shares, _ = nnls(held, np.append(np.full(len(nodes), 100.0), 1e4 * predicted))
        return float(((rows / beyond @ shares - 100) ** 2).sum())

    assert misfit(found.high * 0.998) < 10 < misfit(found.high * 1.002)
    assert misfit(found.low * 1.002) < 10 < misfit(found.low * 0.998)


def test_times_that_fall_faster_than_any_law_fit_none():
    falling = 600 / COUNTS
    assert envelope(COUNTS, falling, np.full(4, 1e-4), 16, 15.0) is None


def test_laws_without_noise_leave_one_straight_line_open_by_little():
    found = envelope(COUNTS, 600 + 60 * (COUNTS - 1), np.full(4, 1e-8), 16, 15.0)
    assert found is not None and found.contains(1500)
    assert found.low / 1500 > 0.95 and found.high / 1500 < 1.12


def test_of_many_counts_evenly_spaced_ones_are_knees():
    assert knees_of(COUNTS).tolist() == [2, 4]
    assert knees_of(np.arange(1.0, 12.0)).tolist() == [2, 5, 7, 10]


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("curve", NO_LAW)
def test_interval_covers_curves_of_no_one_law(curve, noise):
    truth = {n: 600 * NO_LAW[curve](n) / n for n in (1, 2, 4, 8, 16)}
    ratios = {n: 1 / n for n in truth}
    covered = []
    for seed in range(30):
        errors = np.random.default_rng(seed).normal(0, noise, (4, 5))
        runs = {n: truth[n] * np.exp(errors[i]) for i, n in enumerate((1, 2, 4, 8))}
        points = [(n, geometric_mean(at)) for n, at in runs.items()]
        known = run_noise([at.tolist() for at in runs.values()])
        assert known is not None
        seconds = np.array([t for _, t in points])
        sample = Sample(COUNTS, COUNTS * seconds, np.ones(4))
        found = predict_by_law(fit_laws(points, ratios).laws, sample, ratios, known, 16).interval
        if found is not None:
            covered.append(found.contains(truth[16]))
    # 30 draws of 95% have a standard error of 4%.
    assert not covered or np.mean(covered) >= 0.87
