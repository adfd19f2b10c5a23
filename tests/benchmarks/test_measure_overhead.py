"""The arithmetic of benchmarks/measure_overhead.py."""

from __future__ import annotations

import pytest

from benchmarks.measure_overhead import difference, interval


def test_the_difference_is_that_of_pairs() -> None:
    pairs = [(1.0, 1.5), (3.0, 3.2), (2.0, 2.3)]
    assert difference(pairs) == pytest.approx(0.3)
    low, high = interval(pairs)
    assert low + 1e-9 >= 0.2 and high - 1e-9 <= 0.5
