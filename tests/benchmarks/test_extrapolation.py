"""The benchmark of extrapolations on few sweeps: it runs, and would detect a wrong interval."""

from __future__ import annotations

import json

import pytest

from benchmarks import extrapolation
from benchmarks.extrapolation import (
    CURVES,
    FROM_SUPPORTED,
    Cell,
    Supported,
    main,
    simulate,
)
from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.fits.extrapolation import LawPredictions


def test_right_where_the_link_stays_and_wrong_where_it_gets_slower():
    same, little, twice, four = simulate("amdahl 2 %", 0.001, 5, sweeps=25, seed=1)
    cells = (same, little, twice, four)
    assert [cell.link_factor for cell in cells] == [1, 1.25, 2, 4]
    assert same.covered >= 0.85 and same.supported.count >= 18
    assert same.supported.off_by_more == 0
    # Nothing measured differs between them, so as many are supported, and all of these are wrong.
    assert {cell.supported.count for cell in cells} == {same.supported.count}
    assert (four.supported.covered, four.supported.off_by_more) == (0, 1)
    # T(16) = 600 (1/16 + 2·0.02·15/16) instead of 600 (1/16 + 0.02·15/16): 18.75% too short.
    assert twice.supported.median_error == pytest.approx(-0.1875, abs=0.01)


def test_truth_beyond_is_that_of_the_curve():
    curve = CURVES["amdahl 10 %"]
    assert curve.seconds(16) == pytest.approx(600 * (1 + 0.1 * 15) / 16)
    assert curve.seconds(16, 2) == pytest.approx(600 * (1 + 2 * 0.1 * 15) / 16)
    assert CURVES["ring"].steps_ratio[16] == 1 / 16 and curve.steps_ratio[16] == 1


def test_interval_that_is_too_narrow_is_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(extrapolation, "FROM_SUPPORTED", 10)
    monkeypatch.setattr(
        extrapolation,
        "predict_by_law",
        lambda *_: LawPredictions(16, {}, (), Interval(low=1, high=2)),
    )
    arguments = ["--sweeps=20", "--noise", "0.002", "--runs", "3", "--curves", "amdahl 10 %"]
    assert main(arguments) == 1
    assert "below the requirement" in capsys.readouterr().out


def test_few_supported_predictions_and_slower_links_ask_for_nothing():
    few = FROM_SUPPORTED - 1
    for curve, factor, count, covered, right in (
        ("ring", 1, 1000, 1.0, False),
        ("ring", 1, few, 1.0, True),
        ("ring", 1, few, 0.5, False),
        ("ring", 2, 1000, 0.0, True),
        ("tree", 1, 1000, 0.0, False),
        ("tree", 1, 0, None, True),
    ):
        wrong = Supported(count, covered=0.0, off_by_more=1.0, median_error=0.2)
        cell = Cell(curve, factor, 0.01, 3, 1000, covered, 1.1, wrong)
        assert cell.is_right is right


def test_result_is_printed_and_stored(tmp_path, capsys):
    output = tmp_path / "extrapolation.json"
    arguments = ["--sweeps=3", "--noise", "0.2", "--runs", "3", "--curves", "tree"]
    assert main([*arguments, f"--output={output}"]) == 0
    stored = json.loads(output.read_text())
    assert stored["predicted_at"] == 16 and len(stored["cells"]) == 4
    assert stored["cells"][0]["supported"]["covered"] is None
    assert "link 4x slower, 3 sweeps: none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [("--runs=2", "needs 3"), ("--sweeps=0", "1 or more"), ("--noise=0", "above 0")],
)
def test_options_that_simulate_nothing_are_refused(option, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([option])
    assert message in capsys.readouterr().err
