"""The simulated grid of instance types: its truth, its verdicts and a small run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.instances import grid
from nodesweep.scaling.arms import Cell

CHEAP, NEXT, _, LAST = grid.ARMS


def test_the_truth_is_speed_price_and_curve():
    true = grid.truth("generations")
    assert true[Cell(CHEAP, 8)].seconds == pytest.approx(13.5 * 60)
    assert true[Cell(NEXT, 1)][:2] == pytest.approx((99 * 60 / 1.6, 99 / 60 / 1.6 * 1.1))
    assert Cell(CHEAP, 1) not in grid.best_arms(true)  # 99 minutes miss the deadline
    assert grid.best_arms(grid.truth("alike")) == {
        Cell(arm, nodes) for arm in grid.ARMS for nodes in (4, 8)
    }


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


@pytest.mark.parametrize("kind", ["independent", "t3"])
@pytest.mark.parametrize("repeats", [2, 3])
def test_the_quick_answer_is_the_reports(kind, repeats):
    config, true = grid.config_of(repeats), grid.truth("generations")
    generator = np.random.default_rng(1)
    for noise in (0.02, 0.05, 0.15, 0.15, 0.15):
        runs = grid.draw_runs(true, generator, kind, noise, repeats)
        quick, report = grid.quick_answer(runs), grid.answer(config, "generations", runs)
        assert quick[0] == report[0]
        assert grid.verdict(true, *quick) == grid.verdict(true, *report)


def test_a_small_run_is_the_same_again_and_is_kept(tmp_path):
    small = ("one wins", "independent", 0.02, 2, 3, 0.05)
    assert grid.simulate(*small) == grid.simulate(*small)
    output = tmp_path / "grid.json"
    options = ["--sweeps", "2", "--noise", "0.02", "--grids", "one wins", "--kinds", "independent"]
    code = grid.main([*options, "--output", str(output)])
    [cell] = json.loads(output.read_text())["cells"]
    assert code == 0 and 0 < cell["share"] < cell["passes_share"] and cell["dropped"] > 0.5
    assert cell["saved_node_seconds"] > 0.2
