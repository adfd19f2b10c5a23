"""The benchmark of the designs on few sweeps: it runs, and would detect a wrong rule."""

from __future__ import annotations

import json

import pytest

from benchmarks import designs
from benchmarks.designs import CURVES, main, margin, simulate, simulate_probes
from nodesweep.scaling.design import sequential


def test_the_reference_is_right_for_less_than_half_the_cost():
    cell = simulate("reference", 0.02, sweeps=20)
    assert cell.right == 1 and cell.wrong == 0
    assert cell.least_cost_share <= cell.cost_share < 0.45
    assert cell == simulate("reference", 0.02, sweeps=20)


def test_where_nothing_can_be_told_it_says_so():
    cell = simulate("on the limit", 0.05, sweeps=20)
    assert cell.undecided > 0.8
    assert cell.most_cost_share <= 1


def test_a_rule_that_spends_too_much_error_breaks_the_promise(monkeypatch, capsys):
    monkeypatch.setattr(sequential, "ERROR", 2.9)
    arguments = ["--sweeps", "40", "--noise", "0.05", "--curves", "5 % below"]
    assert main(arguments) == 1
    assert "0 of 1 cells" in capsys.readouterr().out


def test_the_result_is_written(tmp_path, capsys):
    file = tmp_path / "designs.json"
    assert (
        main(["--sweeps", "3", "--noise", "0.02", "--curves", "knee", "--output", str(file)]) == 0
    )
    written = json.loads(file.read_text())
    assert written["sweeps_per_cell"] == 3
    assert [cell["curve"] for cell in written["cells"]] == ["knee"]
    assert "knee" in capsys.readouterr().out


def test_margins_are_those_of_the_curves():
    assert margin(CURVES["on the limit"], 8) == 0
    assert margin(CURVES["5 % above"], 8) == pytest.approx(0.0488, abs=1e-3)
    assert margin(CURVES["slower beyond 4"], 8) < 0 < margin(CURVES["slower beyond 4"], 4)
    assert designs.LIMITS.min_efficiency == 0.75


def test_probes_find_the_reference_for_a_sixteenth_of_the_cost():
    """One run of each of 5 % and a whole one on 8 nodes: (0.05 x 425 + 108) / (5 x 425)."""
    cell = simulate_probes("reference", 0.02, sweeps=20)
    assert (cell.right, cell.wrong, cell.undecided) == (1, 0, 0)
    assert cell.cost_share == pytest.approx((0.05 * 425 + 108) / (5 * 425))
    assert cell == simulate_probes("reference", 0.02, sweeps=20)


def test_noisy_probes_are_wrong_or_undecided_near_a_limit():
    alone = simulate_probes("5 % below", 0.15, sweeps=40)
    assert alone.wrong > 0.2
    three = simulate_probes("5 % above", 0.15, sweeps=40, repeats=3)
    assert three.undecided > 0.3
    assert three.most_cost_share < 0.25


def test_what_a_probe_sweep_simulates_is_written_with_its_settings(tmp_path, capsys):
    file = tmp_path / "probes.json"
    few = ["--design", "probe", "--sweeps", "3", "--noise", "0.15", "--curves", "5 % below"]
    assert main([*few, "--output", str(file)]) == 0
    written = json.loads(file.read_text())
    assert (written["repeats"], written["probe_share"], written["precision"]) == (1, 0.05, 0.01)
    assert "5 % below" in capsys.readouterr().out
