"""The terms of a sum that too few measurements leave undetermined."""

from __future__ import annotations

import numpy as np
import pytest

from nodesweep.scaling.predict.solutions import between, corners, exactly, span_of


def span(columns, at, values, **given):
    rows, there, known = (np.array(each, float) for each in (columns, at, [values]))
    found = span_of(corners(rows, there, known, **given))
    assert found.low <= found.middle <= found.high
    return float(found.low[0]), float(found.high[0])


def test_as_many_measurements_as_terms_leave_nothing_open():
    # 2 of the first term and 3 of the second
    assert span([[1, 1], [1, 2]], [1, 4], [5, 8]) == pytest.approx((14, 14))


def test_one_measurement_is_either_term():
    assert span([[1, 1]], [2, 5], [3]) == pytest.approx((6, 15))


def test_a_coefficient_has_a_bound():
    columns, at, values = [[1, -1], [2, -1]], [3, -1], [1, 2]
    assert span(columns, at, values) == pytest.approx((3, 3))
    # 2·c1 - h = 5 and c1 - h = 1 need h = 3, which is not allowed; the best without misses 5 and 1
    low, high = span(columns, at, [1, 5], most=np.array([np.inf, 2.5]))
    assert low < high


def test_what_no_terms_explain_widens_the_span():
    low, high = span([[1], [1]], [1], [1, 2])
    assert low < 1 and high > 1.5


def test_terms_alike_are_not_told_apart():
    assert span([[1, 2], [2, 4]], [3, 6], [1, 2]) == pytest.approx((3, 3))


def test_spans_add_and_scale():
    one = between(np.array([1.0]), np.array([3.0]))
    twice = one.plus(exactly(np.array([1.0]))).times(2)
    assert (twice.low[0], twice.middle[0], twice.high[0]) == (4, 6, 8)


def test_in_the_middle_is_what_is_likely():
    columns, values = np.array([[1.0], [1.0]]), np.array([[2.0, 2.0]])
    likely, other = (corners(columns, np.array([at]), values) for at in (1.0, 3.0))
    found = span_of(likely, other)
    assert (found.low[0], found.middle[0], found.high[0]) == pytest.approx((2, 2, 6))
