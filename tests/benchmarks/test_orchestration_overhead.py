"""The overhead benchmark: its parts add up, its counts are right, and a short run works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import orchestration_overhead
from benchmarks.chaos.proxy import Call
from benchmarks.orchestration_overhead import count_calls, main, measure, split, summarise, table
from tests.processes.prefect_home import with_tables

JOBS = [(120.0, 130.0), (131.5, 151.5)]
"""(created, ended) of two jobs of a process that ran from 100 to 160."""


def call(at: float, label: str, service: str = "sagemaker") -> Call:
    return Call(label, "/", 0, 200, answered=True, service=service, began_at=at)


CALLS = [
    call(108.0, "HEAD bucket", "s3"),
    call(119.9, "CreateTrainingJob"),
    call(121.0, "ListTrainingJobs"),
    call(130.5, "ListTrainingJobs"),
    call(130.75, "GET output", "s3"),
    call(131.4, "CreateTrainingJob"),
    call(152.0, "ListTrainingJobs"),
    call(152.5, "GET output", "s3"),
    call(155.0, "PUT report", "s3"),
]


def test_parts_are_told_apart_and_add_up_to_the_overhead() -> None:
    parts = split(100.0, 160.0, JOBS, CALLS)
    assert (parts.start_up, parts.preparation) == (8.0, 12.0)
    assert parts.poll_lag == 0.75 + 1.0
    assert parts.between_jobs == 0.75
    assert parts.report == 7.5
    assert parts.sum == (160.0 - 100.0) - sum(end - start for start, end in JOBS)


def test_calls_are_counted_by_service_and_those_amid_jobs_per_job() -> None:
    counted = count_calls(JOBS, CALLS)
    assert counted["run"]["sagemaker:ListTrainingJobs"] == 3
    assert counted["per_job"] == {
        "s3:GET output": 1.0,
        "sagemaker:CreateTrainingJob": 0.5,
        "sagemaker:ListTrainingJobs": 1.5,
    }
    assert (counted["sum"], counted["sum_per_job"]) == (9, 3.0)


def run_of(overhead_seconds: float, critical_seconds: float) -> dict[str, Any]:
    return {
        "wall_seconds": critical_seconds + overhead_seconds,
        "critical_path_seconds": critical_seconds,
        "overhead_seconds": overhead_seconds,
        "parts": {"report": overhead_seconds},
        "calls": count_calls(JOBS, CALLS),
    }


@pytest.mark.parametrize(
    ("overhead_seconds", "critical_seconds", "met"),
    [(9.9, 100.0, True), (10.1, 100.0, False), (49.0, 1000.0, True), (51.0, 1000.0, False)],
)
def test_limit_is_ten_seconds_or_five_percent(
    overhead_seconds: float, critical_seconds: float, met: bool
) -> None:
    runs = [run_of(overhead_seconds, critical_seconds)]
    result = summarise(runs[0], runs)
    assert result["overhead"]["within_target"] is met
    assert result["overhead"]["below_share_from_seconds"] == pytest.approx(20 * overhead_seconds)
    assert ("met" in table(result), "MISSED" in table(result)) == (met, not met)


@pytest.mark.parametrize(("overhead_seconds", "code"), [(5.0, 0), (50.0, 1)])
def test_a_missed_limit_is_the_exit_code(
    overhead_seconds: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(overhead_seconds, 100.0)
    monkeypatch.setattr(
        orchestration_overhead, "measure", lambda *_: (run, [run, run_of(500.0, 100.0), run])
    )
    output = tmp_path / "overhead.json"
    assert main([f"--output={output}", "--stretch=2"]) == code
    assert json.loads(output.read_text())["settings"]["model"]["t_compute_seconds"] == 40.0
    assert json.loads(output.read_text())["overhead"]["overhead_seconds"] == overhead_seconds, (
        "the median"
    )


@pytest.mark.slow
def test_a_short_sweep_is_measured(tmp_path: Path) -> None:
    model = {
        **orchestration_overhead._MODEL,
        **dict.fromkeys(
            ("startup_seconds", "download_seconds", "setup_seconds", "upload_seconds"), 0.2
        ),
        "t_compute_seconds": 1.0,
    }
    with_tables(tmp_path / "prefect")
    first, (run,) = measure(tmp_path, 1, (1, 2), 1, model)
    assert run["critical_path_seconds"] == pytest.approx(1.8 + 1.3, abs=0.5)
    assert sum(run["parts"].values()) == pytest.approx(run["overhead_seconds"])
    assert min(run["parts"].values()) > 0
    assert run["calls"]["run"]["sagemaker:CreateTrainingJob"] == 2
    assert (
        "s3:PUT datasets" in first["calls"]["run"] and "s3:PUT datasets" not in run["calls"]["run"]
    )
