"""The benchmark of many jobs: its sweep shapes, limits and measurements, and a short run."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks import many_jobs
from benchmarks.many_jobs import (
    GLOBAL_BATCH_SIZE,
    JOBS,
    NODE_COUNTS,
    database_mb,
    main,
    measure,
    shape,
    table,
)
from tests.processes.prefect_home import with_tables


@pytest.mark.parametrize("jobs", [1, 20, *JOBS])
def test_a_sweep_has_as_many_jobs_as_are_asked_for(jobs: int) -> None:
    node_counts, repeats = shape(jobs)
    assert len(node_counts) * repeats == jobs
    assert all(GLOBAL_BATCH_SIZE % count == 0 for count in node_counts)


def test_a_size_that_no_sweep_has_is_refused() -> None:
    with pytest.raises(ValueError, match="1001 jobs"):
        shape(1001)
    assert len(NODE_COUNTS) == 20


def test_the_database_is_measured_with_its_log_merged_and_without_what_it_has_freed(
    tmp_path: Path,
) -> None:
    assert database_mb(tmp_path) == 0.0
    with closing(sqlite3.connect(tmp_path / "prefect.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE rows (body)")
        connection.executemany("INSERT INTO rows VALUES (?)", [(bytes(10_000),)] * 100)
        connection.commit()
        full = database_mb(tmp_path)
        connection.execute("DELETE FROM rows")
        connection.commit()
        assert full == pytest.approx(1.2, abs=0.2)
        assert database_mb(tmp_path) < 0.1


def sweep(jobs: int, **changes: float) -> dict[str, Any]:
    within = {
        "wall_seconds": 179.0,
        "peak_rss_mb": 599,
        "database_mb": 29.0,
        "database_mb_per_job": 0.029,
    }
    return {
        "jobs": jobs,
        **within,
        "calls": {},
        "calls_per_job": 9.0,
        "load_average_1_minute": 0.1,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"wall_seconds": 181.0}, 1),
        ({"peak_rss_mb": 601}, 1),
        ({"database_mb_per_job": 0.031}, 1),
    ],
)
def test_a_limit_that_the_largest_sweep_misses_is_the_exit_code(
    changes: dict[str, float], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = [sweep(50, database_mb_per_job=0.05), sweep(1000, **changes)]
    monkeypatch.setattr(many_jobs, "measure", lambda *_: sweeps)
    output = tmp_path / "many.json"
    assert main([f"--output={output}"]) == code
    result = json.loads(output.read_text())
    assert result["sweeps"] == sweeps and result["within_target"] is (code == 0)
    assert ("within the limits" in table(result)) is (code == 0)


@pytest.mark.slow
def test_a_short_sweep_is_measured(tmp_path: Path) -> None:
    with_tables(tmp_path / "prefect")
    [result] = measure(tmp_path, [20])
    assert result["calls"]["sagemaker:CreateTrainingJob"] == 20
    assert result["calls"]["s3:PUT claims"] == 20
    assert 100 < result["peak_rss_mb"] < 1000 and result["wall_seconds"] > 1.0
    assert 0.0 < result["database_mb_per_job"] < 0.09, (
        "one task run a job, and what a sweep has beside them: a report with its pictures, of which"
        " Prefect keeps three copies"
    )
