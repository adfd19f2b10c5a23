"""Job features through the whole pipeline, against a served platform whose engine is a fake."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from tests.flows.simulated_sweep import measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def test_warm_pool_is_reused_recorded_and_released(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    config = pipeline_config(
        "scaling",
        training={"keep_alive_seconds": 600},
        sweep={"node_counts": [1], "repeats": 2, "order": "ascending"},
    )
    report = scaling_benchmark(config).report
    assert [point.start for point in report.points] == ["cold", "warm"]
    assert report.conditions.start == "mixed"
    for point in report.points:
        pool = served.sagemaker.describe_training_job(TrainingJobName=point.job_name)[
            "WarmPoolStatus"
        ]
        assert pool["Status"] in ("Reused", "Terminated"), (
            "nothing is kept once the sweep has ended"
        )
        assert point.costs.warm_pool_usd is None, "an emulated node has no price"


@pytest.mark.pages
def test_spot_runs_are_kept_and_left_out(pipeline_config: Configs) -> None:
    spot = {"spot": {"max_wait_seconds": 7200}, "max_runtime_seconds": 600}
    report = scaling_benchmark(
        pipeline_config("scaling", training=spot, sweep={"node_counts": [1, 2]})
    ).report
    assert [(point.spot, point.used) for point in report.points] == [(True, False)] * 2
    assert (
        report.headline.startswith("On emulated nodes") or "Nothing to compare" in report.headline
    )
    assert any("spot" in caveat for caveat in report.caveats)


def test_lines_of_a_running_job_are_followed(
    served: SimpleNamespace,
    pipeline_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep.log")
    measure(pipeline_config("broken-at-2", sweep={"node_counts": [2]}))
    assert "algo-1: about to fail" in [record.getMessage() for record in caplog.records]
