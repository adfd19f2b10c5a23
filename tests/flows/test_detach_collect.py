"""`run --detach` and `collect`: a sweep that nobody waits for, through the served platform."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from configs.models import BenchmarkConfig
from flows.collect import collect_sweep
from flows.detach import start_detached_sweep
from scaling import names
from tasks.errors import PreflightRefused, SweepNotFound
from tasks.owner import read_owner_sign
from tests.infra.local.platform_client import wait_for_end

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def jobs_of(served: SimpleNamespace, sweep: str) -> list[str]:
    listed = served.sagemaker.list_training_jobs(NameContains=names.job_prefix(sweep))["TrainingJobSummaries"]
    return sorted(job["TrainingJobName"] for job in listed)


def test_detached_sweep_is_collected_from_the_platform_alone(pipeline_config: Configs, served: SimpleNamespace) -> None:
    config = pipeline_config("scaling", name="apart", sweep={"max_parallel_jobs": 3})
    sweep = start_detached_sweep(config)
    assert len(sweep.job_names) == 3 and sweep.refused == ()
    assert jobs_of(served, sweep.sweep_id) == sorted(sweep.job_names)
    sign = read_owner_sign(served.s3, config.platform, sweep.sweep_id)
    assert sign is not None and sign.left_running, "a reaper would take its jobs for orphans"
    for name in sweep.job_names:
        assert wait_for_end(served.sagemaker, name)["TrainingJobStatus"] == "Completed"
    collected = collect_sweep(config, sweep.sweep_id)
    assert collected is not None
    assert (collected.planned_points, collected.missing_points) == (3, 0)
    assert [row.nodes for row in collected.report.summary] == [1, 2, 4]
    assert (collected.folder / names.REPORT_HTML).is_file()
    assert jobs_of(served, sweep.sweep_id) == sorted(sweep.job_names), "collecting starts none"


def test_collect_waits_for_the_last_job_and_counts_what_is_missing(
    pipeline_config: Configs, served: SimpleNamespace
) -> None:
    config = pipeline_config("endless", name="patient", sweep={"node_counts": [1, 2], "max_parallel_jobs": 2})
    sweep = start_detached_sweep(config)
    first, second = sweep.job_names
    assert collect_sweep(config, sweep.sweep_id) is None
    served.sagemaker.stop_training_job(TrainingJobName=first)
    wait_for_end(served.sagemaker, first)
    assert collect_sweep(config, sweep.sweep_id) is None, "the second one still runs"
    served.sagemaker.stop_training_job(TrainingJobName=second)
    wait_for_end(served.sagemaker, second)
    collected = collect_sweep(config, sweep.sweep_id)
    assert collected is not None
    assert (collected.planned_points, collected.missing_points) == (2, 2)


def test_points_that_would_have_to_queue_are_refused_before_anything_is_sent(
    pipeline_config: Configs, served: SimpleNamespace
) -> None:
    config = pipeline_config("scaling", name="queued", sweep={"max_parallel_jobs": 2})
    with pytest.raises(PreflightRefused, match=r"sweep\.max_parallel_jobs: is 2, and --detach starts all 3 jobs"):
        start_detached_sweep(config)
    assert not served.sagemaker.list_training_jobs(NameContains="queued-")["TrainingJobSummaries"]


def test_unknown_sweep_has_nothing_to_collect(pipeline_config: Configs) -> None:
    with pytest.raises(SweepNotFound, match="no sweep bench-20260102030405-0a1b2c3d"):
        collect_sweep(pipeline_config("scaling"), "bench-20260102030405-0a1b2c3d")
