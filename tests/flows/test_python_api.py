"""`nodesweep.run`: a sweep from Python, its refusals, and resuming it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import nodesweep
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PointsMissing, PreflightRefused
from tests.flows.simulated_sweep import ledger, write_config

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def test_run_measures_to_a_report_that_can_be_read_again(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> None:
    written = write_config(pipeline_config("scaling", name="by-hand"), tmp_path)
    config = nodesweep.load_config(written, ["sweep.node_counts=[1,2]"])
    report = nodesweep.run(config)
    assert list(report.summary()["nodes"]) == [1, 2]
    assert ledger(served) == [(1, 1, "Completed"), (2, 1, "Completed")]
    folder = Path(config.report.directory) / report.sweep_id
    assert nodesweep.read_report(folder).summary().equals(report.summary())
    history = nodesweep.history(config)
    assert set(history["sweep_id"]) == {report.sweep_id}


def test_run_that_misses_points_is_resumed_by_its_id(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = {"node_counts": [2], "min_points": 1}
    config = pipeline_config("broken-at-2", name="broken-by-hand", sweep=sweep)
    with pytest.raises(PointsMissing) as missing:
        nodesweep.run(config)
    sweep_id = missing.value.result.sweep_id
    programs = served.engine.programs
    monkeypatch.setitem(programs, '"broken-at-2"', programs['"scaling"'])
    report = nodesweep.run(config, resume=sweep_id)
    assert report.sweep_id == sweep_id
    assert list(report.summary()["nodes"]) == [2]


def test_run_refuses_before_anything_is_started(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    before = ledger(served)
    config = pipeline_config("scaling", sweep={"node_counts": [3]})
    with pytest.raises(PreflightRefused, match=r"64 .* 3"):
        nodesweep.run(config)
    assert ledger(served) == before
