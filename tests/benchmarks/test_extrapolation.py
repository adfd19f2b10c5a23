"""The benchmark of predictions on few sweeps: that it runs, and would notice a wrong interval."""

from __future__ import annotations

import json

import pytest

from benchmarks import extrapolation
from benchmarks.extrapolation import CURVES, FROM_SUPPORTED, Cell, main, simulate
from scaling.fits import extrapolation as rule


def test_right_where_the_link_stays_and_wrong_where_it_gets_slower():
    same, little, twice, four = simulate("amdahl 10 %", 0.003, 5, sweeps=25, seed=1)
    cells = (same, little, twice, four)
    assert [cell.link_factor for cell in cells] == [1, 1.25, 2, 4]
    assert same.covered >= 0.85 and same.supported >= 0.7
    assert same.supported_off_by_more == 0
    # Nothing measured differs between them, so as many are supported, and all of these are wrong.
    assert {cell.supported for cell in cells} == {same.supported}
    assert (four.supported_covered, four.supported_off_by_more) == (0, 1)
    # T(16) = 600 (1/16 + 2·0.1·15/16) instead of 600 (1/16 + 0.1·15/16): 37.5 % too short.
    assert twice.supported_median_error == pytest.approx(-0.375, abs=0.01)


def test_truth_beyond_is_that_of_the_curve():
    curve = CURVES["amdahl 10 %"]
    assert curve.seconds(16) == pytest.approx(600 * (1 + 0.1 * 15) / 16)
    assert curve.seconds(16, 2) == pytest.approx(600 * (1 + 2 * 0.1 * 15) / 16)
    assert CURVES["ring"].steps_ratio[16] == 1 / 16 and curve.steps_ratio[16] == 1


def test_interval_that_is_too_narrow_is_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(extrapolation, "FROM_SUPPORTED", 10)
    monkeypatch.setattr(rule, "stdtrit", lambda freedom, level: 0.1)
    arguments = ["--sweeps=20", "--noise", "0.002", "--runs", "3", "--curves", "amdahl 10 %"]
    assert main(arguments) == 1
    assert "required is more" in capsys.readouterr().out


def test_few_supported_predictions_and_slower_links_ask_for_nothing():
    wrong = {
        "median_ratio": 1.1,
        "supported_covered": 0.0,
        "supported_off_by_more": 1.0,
        "supported_median_error": 0.2,
    }
    few = (FROM_SUPPORTED - 1) / 1000
    for curve, factor, supported, covered, right in (
        ("ring", 1, 1.0, 1.0, False),
        ("ring", 1, few, 1.0, True),
        ("ring", 1, few, 0.5, False),
        ("ring", 2, 1.0, 0.0, True),
        ("tree", 1, 1.0, 0.0, True),
    ):
        cell = Cell(curve, factor, 0.01, 3, 1000, covered=covered, supported=supported, **wrong)
        assert cell.is_right is right


def test_result_is_printed_and_stored(tmp_path, capsys):
    output = tmp_path / "extrapolation.json"
    arguments = ["--sweeps=3", "--noise", "0.2", "--runs", "3", "--curves", "tree"]
    assert main([*arguments, f"--output={output}"]) == 0
    stored = json.loads(output.read_text())
    assert stored["predicted_at"] == 16 and len(stored["cells"]) == 4
    assert stored["cells"][0]["supported_covered"] is None
    assert "link 4x: none of 3 predictions supported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [("--runs=2", "needs 3"), ("--sweeps=0", "1 or more"), ("--noise=0", "above 0")],
)
def test_options_that_simulate_nothing_are_refused(option, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([option])
    assert message in capsys.readouterr().err
