"""The trend benchmark on few histories: that it runs, and that it would notice a wrong chart."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import trend
from benchmarks.trend import CREEP_AFTER, NOTHING, STEP_AFTER, first_alarm, main, simulate


def test_nothing_alarms_seldom_and_a_step_is_found() -> None:
    assert simulate(0.02, 3, 0.02, NOTHING, 40, seed=1).share <= 0.1
    assert simulate(0.02, 3, 0.02, STEP_AFTER, 40, seed=1).share >= 0.8


def test_first_alarm_is_that_of_the_first_count() -> None:
    times = np.full((10, 2, 3), 100.0)
    assert first_alarm(times, 0.05) is None
    times[8:, 0], times[7:, 1] = 130.0, 130.0
    assert first_alarm(times, 0.05) == 7


def test_alarm_before_the_event_is_not_its_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trend, "first_alarm", lambda times, tolerance: 4)
    assert simulate(0.02, 3, 0.0, CREEP_AFTER, 2, seed=1).share == 0


def test_result_is_printed_and_stored(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(trend, "NOISES", ((0.02, 3),))
    output = tmp_path / "trend.json"
    assert main(["--histories=2", f"--output={output}"]) == 0
    assert len(json.loads(output.read_text())["cells"]) == 8
    assert "found in 12" in capsys.readouterr().out


def test_missed_goal_is_the_exit_code(capsys, monkeypatch) -> None:
    monkeypatch.setattr(trend, "NOISES", ((0.02, 3),))
    monkeypatch.setattr(trend, "first_alarm", lambda times, tolerance: None)
    assert main(["--histories=1"]) == 1
    assert "goal missed" in capsys.readouterr().out
