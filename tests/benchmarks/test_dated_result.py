"""The stored result of a simulation."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import pytest

from benchmarks.dated_result import store_result


@dataclass(frozen=True)
class Cell:
    noise: float
    share: float


def test_result_has_its_day_settings_and_cells(tmp_path) -> None:
    output = tmp_path / "result.json"
    store_result(output, time.perf_counter(), [Cell(0.02, 0.5)], seed=7, node_counts=(1, 2))
    stored = json.loads(output.read_text())
    assert list(stored) == ["date", "seed", "node_counts", "seconds", "python", "numpy", "cells"]
    assert time.strptime(stored["date"], "%Y-%m-%d")
    assert (stored["seed"], stored["node_counts"]) == (7, [1, 2])
    assert stored["seconds"] >= 0 and stored["python"] and stored["numpy"]
    assert stored["cells"] == [{"noise": 0.02, "share": 0.5}]
    assert list(tmp_path.iterdir()) == [output]


def test_result_that_can_not_be_written_leaves_the_earlier_one(tmp_path) -> None:
    output = tmp_path / "result.json"
    output.write_text("earlier")
    with pytest.raises(TypeError):
        store_result(output, time.perf_counter(), [], setting=object())
    assert output.read_text() == "earlier"


def test_nowhere_to_store_it_stores_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    store_result(None, time.perf_counter(), [Cell(0.02, 0.5)])
    assert list(tmp_path.iterdir()) == []
