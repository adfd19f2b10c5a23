"""The simulated grid of instance types: its truth, its verdicts and a small run."""

from __future__ import annotations

import json

import pytest

from benchmarks.instances import grid
from nodesweep.scaling.instances.arms import Arm

CHEAP, NEXT = grid.TYPES[:2]


def test_the_truth_is_speed_price_and_curve():
    true = grid.truth("generations")
    assert true[Arm(CHEAP, 8)].seconds == pytest.approx(13.5 * 60)
    assert true[Arm(NEXT, 1)] == pytest.approx((99 * 60 / 1.6, 99 / 60 / 1.6 * 1.1))
    assert Arm(CHEAP, 1) not in grid.true_front(true)
    assert grid.true_front(grid.truth("alike")) >= {Arm(CHEAP, 1), Arm(NEXT, 1)}


@pytest.mark.parametrize(
    ("chosen", "reason", "expected"),
    [
        (Arm(CHEAP, 4), "", "right"),
        (Arm(CHEAP, 1), "", "wrong"),
        (Arm(grid.TYPES[3], 8), "", "wrong"),
        (Arm(grid.TYPES[3], 8), "x is not ruled out", "undecided"),
        (None, "", "undecided"),
    ],
)
def test_what_is_recommended_is_judged_by_the_truth(chosen, reason, expected):
    true = grid.truth("one family")
    true[Arm(grid.TYPES[3], 8)] = true[Arm(grid.TYPES[3], 8)]._replace(usd=99.0)
    cheapest = min(each.usd for each in true.values() if each.seconds <= grid.DEADLINE_SECONDS)
    true[Arm(CHEAP, 4)] = true[Arm(CHEAP, 4)]._replace(usd=cheapest)
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
