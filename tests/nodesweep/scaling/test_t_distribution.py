"""Quantiles of Student's t compared with SciPy's."""

from __future__ import annotations

import pytest
from scipy.special import stdtrit
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.t_distribution import t_quantile

PROBABILITIES = (0.6, 0.75, 0.9, 0.95, 0.975, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6)


@pytest.mark.parametrize("freedom", [*range(1, 12), 50, 101, 249, 250, 251, 252, 1000, 25_600])
def test_quantiles_are_scipys(freedom: int) -> None:
    for probability in PROBABILITIES:
        expected = pytest.approx(float(stdtrit(freedom, probability)), rel=1e-9)
        assert t_quantile(freedom, probability) == expected


@pytest.mark.parametrize(("freedom", "probability"), [(0, 0.9), (3, 0.5), (3, 0.1), (3, 1.0)])
def test_what_has_no_such_quantile_is_refused(
    freedom: int, probability: float, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ValueError) as refused:
        t_quantile(freedom, probability)
    assert str(refused.value) == snapshot
