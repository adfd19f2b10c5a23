"""A report with a deadline uses the benchmark's history to tell how much nights differ."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import nodesweep.flows.report
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.registry import backend_of
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report import ScalingReport, analyse
from nodesweep.scaling.trend.history import history_frame, write_history

TYPE = "ml.m5.xlarge"
Make = Callable[..., BenchmarkConfig]


def report_of(day: int) -> ScalingReport:
    at = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=day)
    shift = math.exp(0.02 * (-1) ** day)
    outcomes = [
        JobOutcome(
            nodes=nodes, repeat=1, attempt=1, job_name=f"n{nodes}", status="Completed",
            platform_kind="aws", instance_type=TYPE, created_at=at.isoformat(),
            clocks=Clocks(train_seconds=100 / nodes * shift), train_clock="program",
        )
        for nodes in (1, 2)
    ]  # fmt: skip
    return analyse(f"bench-2026110{day}000000-0a1b2c3d", None, None, outcomes, None, {}, at)


@pytest.fixture
def histories(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    monkeypatch.setattr(nodesweep.flows.report, "read_history_of", lambda platform, name: files)
    for day in range(1, 7):
        report = report_of(day)
        files[f"s3://b/{report.sweep_id}.parquet"] = write_history(history_frame(report), "bench")
    return files


def nights(config: BenchmarkConfig) -> dict[str, dict[int, float]]:
    store = backend_of(config.platform).store
    return nodesweep.flows.report._nights(config.report, store, config.name, {TYPE: report_of(8)})


def late(make_config: Make) -> BenchmarkConfig:
    return make_config(report={"recommendation": {"deadline_seconds": 60}})


def test_a_deadline_reads_how_nights_differ(
    histories: dict[str, bytes], make_config: Make, caplog: pytest.LogCaptureFixture
) -> None:
    found = nights(late(make_config))
    assert set(found[TYPE]) == {1, 2} and 0.01 < found[TYPE][2] < 0.1
    budget = make_config(report={"recommendation": {"budget_usd_per_run": 5}})
    assert nights(budget) == found
    assert nights(make_config()) == {}
    caplog.set_level(logging.WARNING, logger="nodesweep.report")
    histories["s3://b/damaged.parquet"] = b"no"
    assert nights(late(make_config)) == found
    assert "damaged" in caplog.text


def test_a_history_that_cannot_be_read_leaves_the_report(
    monkeypatch: pytest.MonkeyPatch, make_config: Make
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(nodesweep.flows.report, "read_history_of", refuse)
    assert nights(late(make_config)) == {}
