"""The coverage benchmark on few sweeps: it runs, and would detect wrong intervals."""

from __future__ import annotations

import json

import pytest

from benchmarks import interval_coverage
from benchmarks.interval_coverage import main, simulate


@pytest.fixture(scope="module")
def five_repeats():
    return simulate(noise=0.05, repeats=5, sweeps=400, seed=1)


def test_five_repeats_cover_about_95_percent(five_repeats):
    # Standard error of 400 sweeps: about 0.8 %.
    assert 0.93 < five_repeats.train_seconds.share < 0.97
    assert 0.93 < five_repeats.speedup.share < 0.98


def test_three_repeats_cover_as_much():
    cell = simulate(noise=0.05, repeats=3, sweeps=400, seed=1)
    assert cell.train_seconds.share == pytest.approx(0.95, abs=0.025)
    assert 0.93 < cell.speedup.share < 0.99


def test_width_follows_the_noise(five_repeats):
    # 2 t / sqrt(5) with t = 2.776, times the mean of s, 0.94 sigma
    width = 2 * 2.776 / 5**0.5 * 0.94 * 0.05
    assert five_repeats.train_seconds.mean_relative_width == pytest.approx(width, rel=0.05)
    assert five_repeats.speedup.mean_relative_width > five_repeats.train_seconds.mean_relative_width


def test_standard_error_is_over_sweeps(five_repeats):
    # Four independent T per sweep: sqrt(p (1 - p) / 1600).
    share = five_repeats.train_seconds.share
    assert five_repeats.train_seconds.standard_error == pytest.approx(
        (share * (1 - share) / 1600) ** 0.5, rel=0.2
    )
    # The three S share T(1), so they say less than 1200 independent ones.
    share = five_repeats.speedup.share
    assert five_repeats.speedup.standard_error > (share * (1 - share) / 1200) ** 0.5


def test_result_is_printed_and_stored(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(interval_coverage, "REQUIRED_COVERAGE", (0.0, 1.0))
    output = tmp_path / "coverage.json"
    assert (
        main(["--sweeps=20", "--noise", "0.02", "--repeats", "5", "6", f"--output={output}"]) == 0
    )
    stored = json.loads(output.read_text())
    assert [(cell["noise"], cell["repeats"], cell["sweeps"]) for cell in stored["cells"]] == [
        (0.02, 5, 20),
        (0.02, 6, 20),
    ]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_missed_requirement_is_the_exit_code(capsys, monkeypatch):
    monkeypatch.setattr(
        interval_coverage,
        "ratio_interval",
        lambda base, runs: interval_coverage.mean_interval(base),
    )
    assert main(["--sweeps=2", "--noise", "0.02", "--repeats", "5"]) == 1
    assert "outside 93 to 98%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"), [("--repeats=2", "needs at least 3 runs"), ("--sweeps=1", "at least 2")]
)
def test_options_that_make_no_interval_are_refused(option, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([option])
    assert message in capsys.readouterr().err


def test_runs_in_a_row_cover_less_under_autocorrelated_noise():
    row = simulate(0.05, 5, 150, 1, "autocorrelated", "in_a_row")
    shuffled = simulate(0.05, 5, 150, 1, "autocorrelated", "shuffled")
    assert row.speedup.share < 0.75 < 0.9 < shuffled.paired_speedup.share
    # Pairs share what drifts, so they are narrower than two sides by themselves.
    assert shuffled.paired_speedup.mean_relative_width < 0.8 * shuffled.speedup.mean_relative_width
    assert row.meets_requirement  # asked of independent noise alone


@pytest.mark.parametrize("kind", ["slow_host", "session_shift"])
def test_pairs_of_shuffled_repeats_cover_what_they_say(kind):
    cell = simulate(0.05, 5, 150, 1, kind)
    assert 0.9 < cell.paired_speedup.share < 1
    assert (cell.kind, cell.order) == (kind, "shuffled")
