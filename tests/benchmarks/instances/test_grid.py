"""The simulated grid of instance types: its truth, its verdicts and a small run."""

from __future__ import annotations

import json

import pytest

from benchmarks.instances import grid
from nodesweep.scaling.arms import Cell

CHEAP, NEXT, _, LAST = grid.ARMS


def test_the_truth_is_speed_price_and_curve():
    true = grid.truth("generations")
    assert true[Cell(CHEAP, 8)].seconds == pytest.approx(13.5 * 60)
    assert true[Cell(NEXT, 1)] == pytest.approx((99 * 60 / 1.6, 99 / 60 / 1.6 * 1.1))
    assert Cell(CHEAP, 1) not in grid.true_front(true)
    assert grid.true_front(grid.truth("alike")) >= {Cell(CHEAP, 1), Cell(NEXT, 1)}


@pytest.mark.parametrize(
    ("chosen", "reason", "expected"),
    [
        (Cell(CHEAP, 4), "", "right"),
        (Cell(CHEAP, 1), "", "wrong"),
        (Cell(LAST, 8), "", "wrong"),
        (Cell(LAST, 8), "x is not ruled out", "undecided"),
        (None, "", "undecided"),
    ],
)
def test_what_is_recommended_is_judged_by_the_truth(chosen, reason, expected):
    true = grid.truth("one family")
    true[Cell(LAST, 8)] = true[Cell(LAST, 8)]._replace(usd=99.0)
    cheapest = min(each.usd for each in true.values() if each.seconds <= grid.DEADLINE_SECONDS)
    true[Cell(CHEAP, 4)] = true[Cell(CHEAP, 4)]._replace(usd=cheapest)
    assert grid.verdict(true, chosen, reason) == expected


def test_a_small_run_is_the_same_again_and_is_kept(tmp_path):
    assert grid.simulate("one wins", 0.02, 2, 3, 0.05) == grid.simulate(
        "one wins", 0.02, 2, 3, 0.05
    )
    output = tmp_path / "grid.json"
    code = grid.main(
        ["--sweeps", "2", "--noise", "0.02", "--grids", "one wins", "--output", str(output)]
    )
    [cell] = json.loads(output.read_text())["cells"]
    assert code == 0 and 0 < cell["cost_share"] < 0.2 and cell["dropped"] > 0.5
