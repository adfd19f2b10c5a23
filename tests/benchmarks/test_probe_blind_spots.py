"""The benchmark of probes that see only part of a run: earlier wrong recommendations no longer
occur."""

from __future__ import annotations

import json

import pytest

from benchmarks.designs import CURVES
from benchmarks.probe_blind_spots import main, simulate, truth


def test_a_cold_first_epoch_is_crossed_and_no_longer_wrong():
    cell = simulate("reference", "cold first epoch", 1, sweeps=5)
    assert (cell.wrong_before, cell.wrong) == (1, 0)
    assert cell.steps_before < 100 < cell.steps
    assert cell.right >= 0.8 and cell.is_right


def test_an_epoch_that_no_probe_can_run_leaves_the_answer_open():
    cell = simulate("reference", "cold first epoch, long", 1, sweeps=3)
    assert (cell.wrong_before, cell.wrong, cell.undecided) == (1, 0, 1)


def test_the_truth_has_all_that_a_run_costs():
    """On one node 29 ends of epochs of 100 steps add 2.9 steps each to 3,000 steps."""
    true = truth(CURVES["reference"], "evaluation")
    assert true[1] == pytest.approx(3000 + 29 * 2.9)
    assert true[8] == pytest.approx(3000 * 13.5 / 99 + 29 * 2.9)


def test_the_result_is_written(tmp_path, capsys):
    file = tmp_path / "blind.json"
    few = ["--sweeps", "2", "--repeats", "1", "--effects", "none", "--curves", "5 % below"]
    assert main([*few, "--output", str(file)]) == 0
    written = json.loads(file.read_text())
    assert written["max_steps"] == 2000
    assert [cell["effect"] for cell in written["cells"]] == ["none"]
    assert "5 % below" in capsys.readouterr().out
