"""The benchmarks of validation: their generated data meet the checks, by every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import expectations, validation


def test_generated_data_meets_36_checks_both_ways(tmp_path: Path) -> None:
    validation.write_data(tmp_path, rows=600, files=2)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2 and len(validation.checks()) == 36
    assert validation.prepare_scan(files)() and validation.prepare_ours(files)()


def test_what_is_measured_is_said(tmp_path: Path) -> None:
    validation.write_data(tmp_path, rows=600, files=2)
    found = validation.measure("scan", tmp_path)
    assert found["success"] is True
    assert found["wall_seconds"] >= 0 and found["peak_bytes"] >= 0


@pytest.mark.slow
def test_each_expectation_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few = expectations.cases()[:3] + expectations.cases()[-2:]
    monkeypatch.setattr(expectations, "cases", lambda: few)
    found = expectations.measure(500)
    assert len(found) == 5 and all(row["evaluated"] for row in found)
    assert sorted(row["proven"] for row in found) == [False, False, True, True, True]
    lines = expectations.table(found).splitlines()
    assert len(lines) == 6 and "expect_column_stdev_to_be_between" in "\n".join(lines)
