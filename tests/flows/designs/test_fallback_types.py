"""training.instance_fallbacks through the whole flow: the report is a curve of the type that had
capacity."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PointsMissing, PreflightRefused
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling import names

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
PLANNED, FALLBACK = "ml.local.small", "ml.local.medium"


@pytest.fixture
def full(served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The types for which the platform has no capacity."""
    types: set[str] = set()

    def capacity_problem(instance_type: str, instance_count: int) -> str | None:
        return f"no {instance_type} is free" if instance_type in types else None

    monkeypatch.setattr(served.engine, "capacity_problem", capacity_problem)
    return types


@pytest.fixture
def config(pipeline_config: Configs) -> BenchmarkConfig:
    return pipeline_config(
        "scaling",
        training={"instance_type": PLANNED, "instance_fallbacks": [FALLBACK]},
        sweep={"node_counts": [1, 2], "max_attempts": 2},
    )


def jobs_of(served: SimpleNamespace, sweep: str) -> dict[str, tuple[str | None, str | None]]:
    """Return (requested type, type selected from several) of every job of the sweep, by its
    place."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate(NameContains=sweep)
    jobs = {}
    for name in [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]:
        key = names.parse_job_name(name)
        assert key is not None
        found = served.sagemaker.describe_training_job(TrainingJobName=name)["ResourceConfig"]
        jobs[key.text] = found.get("InstanceType"), found.get("SelectedInstanceType")
    return jobs


def test_without_room_only_the_first_job_is_tried_and_resumes_stay_on_the_type_that_it_gets(
    served: SimpleNamespace, config: BenchmarkConfig, full: set[str]
) -> None:
    full |= {PLANNED, FALLBACK}
    with pytest.raises(PointsMissing) as lacking:
        scaling_benchmark(config)
    result, tried = lacking.value.result, {"n1-r1-a1": (None, None), "n1-r1-a2": (None, None)}
    assert jobs_of(served, result.sweep_id) == tried
    assert (result.missing_points, result.report.platform.instance_type) == (2, None)
    full.remove(FALLBACK)
    resumed = scaling_benchmark(config, sweep_id=result.sweep_id, resume=True)
    jobs = {**tried, "n1-r1-a3": (None, FALLBACK), "n2-r1-a1": (FALLBACK, None)}
    assert jobs_of(served, result.sweep_id) == jobs
    assert resumed.missing_points == 0
    assert any(each.startswith(f"Instance type: the first job got {FALLBACK}, a fallback")
               for each in resumed.report.caveats)  # fmt: skip
    full.clear()  # the planned type is free again
    again = scaling_benchmark(config, sweep_id=result.sweep_id, resume=True)
    rebuilt, _ = report_sweep(result.sweep_id, config)
    assert jobs_of(served, result.sweep_id) == jobs
    for report in (resumed.report, again.report, rebuilt):
        assert [row.n for row in report.summary] == [1, 1]
        assert report.platform.instance_type == FALLBACK


def test_detached_jobs_have_no_type_yet(config: BenchmarkConfig) -> None:
    with pytest.raises(PreflightRefused, match=r"training\.instance_fallbacks"):
        start_detached_sweep(config)
