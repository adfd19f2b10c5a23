"""`run --resume SWEEP_ID --as-started` of a finished sweep starts neither platform nor Prefect."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from nodesweep.cli.commands.finished import finished_report
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report import analyse
from nodesweep.scaling.secrets import hide_in_config

OURS = {"versions": {"nodesweep": version("nodesweep")}}
MakeConfig = Callable[..., BenchmarkConfig]


@pytest.fixture
def config(tmp_path: Path, make_config: MakeConfig) -> BenchmarkConfig:
    return make_config(
        sweep={"node_counts": [1, 2], "repeats": 1}, report={"directory": str(tmp_path)}
    )


def write_sweep(
    config: BenchmarkConfig, second: str = "Completed", provenance: dict[str, Any] = OURS
) -> str:
    """Write the folder of a sweep that completed 1 node, and whose run on 2 nodes ended as
    `second`."""
    at = datetime(2026, 1, 5, tzinfo=UTC)
    sweep = names.sweep_id(config, at)
    outcomes = [
        JobOutcome(
            nodes=nodes, repeat=1, attempt=1, job_name=f"{sweep}-n{nodes}-r1-a1-abcd",
            status=status, platform_kind="aws", instance_type="ml.m5.xlarge", region="us-east-1",
            clocks=Clocks(train_seconds=100 / nodes if status == "Completed" else None),
            train_clock="program",
        )
        for nodes, status in ((1, "Completed"), (2, second))
    ]  # fmt: skip
    report = analyse(sweep, config, None, outcomes, None, provenance, at).model_dump(mode="json")
    report["config"] = hide_in_config(config)
    record = {"config": hide_in_config(config), "inputs": {}, "provenance": provenance}
    folder = Path(config.report.directory) / sweep
    folder.mkdir()
    for name, body in (("sweep.json", record), ("report.json", report)):
        (folder / name).write_bytes(names.pretty_json(body))
    (folder / "report.html").write_text("<html>")
    return sweep


def test_the_report_of_a_finished_sweep_is_taken_as_it_lies(config: BenchmarkConfig) -> None:
    sweep = write_sweep(config)
    report = finished_report(config, sweep)
    assert report is not None and [row.nodes for row in report.summary] == [1, 2]
    moved = config.platform.model_copy(update={"endpoint_url": "http://127.0.0.1:1"})
    assert finished_report(config.model_copy(update={"platform": moved}), sweep) == report


def test_what_a_run_may_still_do_is_left_to_it(config: BenchmarkConfig) -> None:
    assert finished_report(config, write_sweep(config, "Failed")) is None


def test_a_report_of_another_version_is_made_anew(config: BenchmarkConfig) -> None:
    sweep = write_sweep(config, provenance={"versions": {"nodesweep": "0.0.1"}})
    assert finished_report(config, sweep) is None


def test_other_goals_make_another_report(config: BenchmarkConfig) -> None:
    sweep = write_sweep(config)
    goals = config.report.recommendation.model_copy(update={"deadline_seconds": 60.0})
    rules = config.report.model_copy(update={"recommendation": goals})
    assert finished_report(config.model_copy(update={"report": rules}), sweep) is None


@pytest.mark.parametrize("name", ["report.html", "report.json", "sweep.json"])
def test_a_folder_that_lacks_a_file_is_left_to_the_run(config: BenchmarkConfig, name: str) -> None:
    sweep = write_sweep(config)
    (Path(config.report.directory) / sweep / name).unlink()
    if name != "sweep.json":
        assert finished_report(config, sweep) is None
    else:  # what was asked for stands in the report, too
        assert finished_report(config, sweep) is not None


def test_a_damaged_report_is_left_to_the_run(config: BenchmarkConfig) -> None:
    sweep = write_sweep(config)
    (Path(config.report.directory) / sweep / "report.json").write_text("{")
    assert finished_report(config, sweep) is None
