"""A sweep through an AWS Batch queue: the same jobs and report, each job paid for once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from infra.local.tests.platform_client import made_queue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.platform import BatchConfig
from nodesweep.errors import PreflightRefused
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stop import stop_sweep
from nodesweep.launch.registry import launcher_of
from nodesweep.launch.sagemaker.batch import payload_name

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def queued(config: BenchmarkConfig, queue: str) -> BenchmarkConfig:
    changes = {"batch": BatchConfig(queue=queue), "calls_per_second": None}
    return config.on_platform(config.platform.model_copy(update=changes))


def test_sweep_through_a_queue_is_measured_resumed_and_stopped(
    simulated: Callable[..., Any], sweep_config: Configs
) -> None:
    with simulated() as served:
        config = queued(sweep_config(served), made_queue(served, "training", capacity=4))
        result = scaling_benchmark(config)
        assert [point.status for point in result.report.points] == ["Completed"] * 3
        listed = [job.name for job in launcher_of(config.platform).jobs_of(result.sweep_id)]
        assert len(listed) == 3
        again = scaling_benchmark(config, sweep_id=result.sweep_id, resume=True)
        assert again.report.points == result.report.points
        trained = served.sagemaker.list_training_jobs()["TrainingJobSummaries"]
        digests = Counter(job["TrainingJobName"].removeprefix("AWSBatch")[:23] for job in trained)
        assert digests == Counter(map(payload_name, listed)), "each was paid for once"
        assert stop_sweep(result.sweep_id, config) == []


def test_queue_that_is_too_small_or_missing_is_refused_and_nothing_is_sent(
    simulated: Callable[..., Any], sweep_config: Configs
) -> None:
    with simulated() as served:
        small = made_queue(served, "small", capacity=2)
        for queue in (small, "absent"):
            with pytest.raises(PreflightRefused, match="queue"):
                scaling_benchmark(queued(sweep_config(served), queue))
        assert served.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
        found = served.batch.list_service_jobs(
            jobQueue=small, filters=[{"name": "JOB_NAME", "values": ["*"]}]
        )
        assert found["jobSummaryList"] == []
