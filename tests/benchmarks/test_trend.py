"""The trend benchmark on few histories: it runs, and would detect a wrong chart."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import trend
from benchmarks.trend import (
    AFTER_A_BAD_SWEEP,
    AFTER_A_SLOW_WEEK,
    NOISES,
    NOTHING,
    STEP,
    STEP_BACK,
    Event,
    judge,
    main,
    simulate,
)

NOISE = "runs 2%"


@pytest.mark.parametrize("noise", NOISES)
def test_nothing_alarms_seldom(noise: str) -> None:
    assert simulate(noise, 3, NOTHING, 10, seed=1).share <= 0.2


@pytest.mark.parametrize(
    "event", [STEP, STEP_BACK, AFTER_A_BAD_SWEEP, AFTER_A_SLOW_WEEK], ids=lambda each: each.name
)
def test_a_step_is_found(event: Event) -> None:
    assert simulate(NOISE, 3, event, 20, seed=1).share >= 0.8


def test_judgements_are_those_of_all_counts() -> None:
    times = np.full((10, 2, 3), 100.0)
    assert not any(each.alarms for _, each in judge(times, 0.05))
    times[8:, 0], times[7:, 1] = 130.0, 130.0
    assert [index for index, each in judge(times, 0.05) if each.alarms] == [8, 9, 7, 8, 9]


def test_alarm_before_the_event_is_not_its_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Event("slow from the sixth on", 8, 3, lambda sweeps: np.log(1.5) * (sweeps >= 5))
    assert simulate(NOISE, 3, slow, 2, seed=1).share == 0


def test_result_is_printed_and_stored(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(trend, "NOISES", {NOISE: NOISES[NOISE]})
    monkeypatch.setattr(trend, "RUNS", (3,))
    output = tmp_path / "trend.json"
    assert main(["--histories=2", f"--output={output}"]) == 0
    assert len(json.loads(output.read_text())["cells"]) == len(trend.EVENTS)
    assert "found" in capsys.readouterr().out


def test_missed_goal_is_the_exit_code(capsys, monkeypatch) -> None:
    monkeypatch.setattr(trend, "NOISES", {NOISE: NOISES[NOISE]})
    monkeypatch.setattr(trend, "RUNS", (3,))
    monkeypatch.setattr(trend, "LEAST_FOUND", 1.1)
    assert main(["--histories=1"]) == 1
    assert "goal missed" in capsys.readouterr().out
