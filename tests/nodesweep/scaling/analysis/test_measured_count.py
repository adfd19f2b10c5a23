"""The words with which a recommendation compares two measured counts."""

from __future__ import annotations

import pytest

from nodesweep.scaling.analysis.measured_count import cost_change, faster_text
from tests.nodesweep.scaling.analysis.test_recommend import rows_of


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        ({1: 4, 2: 5}, "25 % dearer"),
        ({1: 4, 2: 3}, "25 % cheaper"),
        ({1: 4, 2: 4.001}, "same cost"),
        ({2: 5}, None),
        ({1: 4}, None),
        ({1: 0, 2: 5}, None),
    ],
)
def test_cost_change(usd, text):
    base, row = rows_of({1: 9, 2: 5}, usd)
    assert cost_change(row, base) == text


def test_slower_is_not_called_faster():
    assert (faster_text(2.0), faster_text(0.8)) == ("2.0x faster than", "0.8x as fast as")
    assert faster_text(1 - 1e-15) == "1.0x faster than"
