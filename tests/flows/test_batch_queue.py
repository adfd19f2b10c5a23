"""A sweep through an AWS Batch queue has the same jobs and report, and pays for each job once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.local.tests.platform_client import made_queue
from nodesweep.cli.commands.logs import LogFilter, show_logs
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.platform import BatchConfig
from nodesweep.errors import PreflightRefused
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stop import stop_sweep
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.batch import payload_name
from nodesweep.scaling import names

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def queued(config: BenchmarkConfig, queue: str) -> BenchmarkConfig:
    changes = {"batch": BatchConfig(queue=queue)}
    return config.on_platform(config.platform.model_copy(update=changes))


def test_sweep_through_a_queue_is_measured_and_resumed_and_found_whatever_the_config_says_now(
    simulated: Callable[..., Any], sweep_config: Configs, capsys: pytest.CaptureFixture[str]
) -> None:
    with simulated() as served:
        direct = sweep_config(served)
        config = queued(direct, queue := made_queue(served, "training", capacity=4))
        result = scaling_benchmark(config)
        sweep = result.sweep_id
        assert [point.status for point in result.report.points] == ["Completed"] * 3
        listed = [job.name for job in backend_of(config.platform).launcher().jobs_of(sweep)]
        assert len(listed) == 3
        again = scaling_benchmark(config, sweep_id=sweep, resume=True)
        assert again.report.points == result.report.points
        trained = served.sagemaker.list_training_jobs()["TrainingJobSummaries"]
        digests = Counter(job["TrainingJobName"].removeprefix("AWSBatch")[:23] for job in trained)
        assert digests == Counter(map(payload_name, listed)), "each was paid for once"
        assert stop_sweep(sweep, config) == []
        report, _ = report_sweep(sweep, direct)
        assert [point.status for point in report.points] == ["Completed"] * 3
        shutil.rmtree(Path(direct.report.directory) / sweep / names.LOGS)
        show_logs(direct, sweep, LogFilter(nodes=1), None)
        assert "[simulated]" in capsys.readouterr().out
        other = queued(direct, made_queue(served, "other", capacity=4))
        for config in (direct, other):
            name = waiting_job(served, queue, sweep)
            assert stop_sweep(sweep, config) == [name]
            assert stop_sweep(sweep, config) == []


def test_queue_that_is_too_small_or_missing_or_without_a_deadline_is_refused_and_nothing_is_sent(
    simulated: Callable[..., Any], sweep_config: Configs
) -> None:
    with simulated() as served:
        small = made_queue(served, "small", capacity=2)
        for queue in (small, "absent"):
            with pytest.raises(PreflightRefused, match="queue"):
                scaling_benchmark(queued(sweep_config(served), queue))
        with pytest.raises(PreflightRefused, match=r"platform\.batch: .*--detach"):
            start_detached_sweep(
                queued(sweep_config(served), made_queue(served, "large", capacity=4))
            )
        assert served.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
        found = served.batch.list_service_jobs(
            jobQueue=small, filters=[{"name": "JOB_NAME", "values": ["*"]}]
        )
        assert found["jobSummaryList"] == []


def waiting_job(served: Any, queue: str, sweep: str) -> str:
    """Submit another job of a sweep, with more nodes than the queue has, and return its name."""
    filters = [{"name": "JOB_NAME", "values": [f"{names.job_prefix(sweep)}*"]}]
    jobs = served.batch.list_service_jobs(jobQueue=queue, filters=filters)["jobSummaryList"]
    known = served.batch.describe_service_job(jobId=jobs[0]["jobId"])
    payload = json.loads(known["serviceRequestPayload"])
    payload["ResourceConfig"]["InstanceCount"] = 8
    name = names.job_name(sweep, 8, 1, len(jobs), "abcd")
    served.batch.submit_service_job(
        jobName=name,
        jobQueue=queue,
        serviceJobType=known["serviceJobType"],
        serviceRequestPayload=json.dumps(payload),
    )
    return name
