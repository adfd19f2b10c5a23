from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch import registry
from nodesweep.launch.sagemaker.backend import bind
from nodesweep.launch.sagemaker.utilisation import (
    NAMESPACE,
    read_job_utilisation,
    read_utilisation,
)
from nodesweep.scaling.job import JobStatus

STARTED = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
ENDED = STARTED + timedelta(minutes=5)


def put(cloudwatch: Any, metric: str, host: str, minute: int, percent: float) -> None:
    data = {
        "MetricName": metric,
        "Dimensions": [{"Name": "Host", "Value": host}],
        "Timestamp": STARTED + timedelta(minutes=minute),
        "Value": percent,
        "Unit": "Percent",
    }
    cloudwatch.put_metric_data(Namespace=NAMESPACE, MetricData=[data])


def test_the_mean_is_over_nodes_and_time_of_this_job(aws: Callable[[str], Any]) -> None:
    cloudwatch = aws("cloudwatch")
    put(cloudwatch, "CPUUtilization", "job/algo-1", 0, 80)
    put(cloudwatch, "CPUUtilization", "job/algo-1", 1, 100)
    put(cloudwatch, "CPUUtilization", "job/algo-2", 0, 60)
    put(cloudwatch, "MemoryUtilization", "job/algo-2", 2, 12.5)
    put(cloudwatch, "CPUUtilization", "other/algo-1", 0, 5)
    put(cloudwatch, "CPUUtilization", "job/algo-1", 8, 1)  # after its end
    found = read_utilisation(cloudwatch, "job", 2, STARTED, ENDED)
    assert found == {"cpu_percent": pytest.approx(80), "memory_percent": pytest.approx(12.5)}


@pytest.mark.parametrize(("kind", "expected"), [("emulated", 40.0), ("aws", None)])
def test_what_emulated_nodes_attained_is_that_of_the_worst_and_aws_is_not_asked(
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    expected: float | None,
) -> None:
    cloudwatch = aws("cloudwatch")
    for node, percent in enumerate((100, 40), start=1):
        put(cloudwatch, "CPUAttained", f"job/algo-{node}", 1, percent)
        put(cloudwatch, "CPUThrottled", f"job/algo-{node}", 1, percent)
    monkeypatch.setattr(registry, "aws_client", lambda service, platform: cloudwatch)
    job = JobStatus(
        "job",
        "completed",
        nodes=2,
        platform_kind=kind,
        billing_began_at=STARTED,
        billing_ended_at=ENDED,
    )
    found = read_job_utilisation(bind(platform), job)
    assert found.get("attained_percent") == expected
    assert found.get("throttled_percent") == (70.0 if expected else None)


def test_without_metrics_or_permission_there_is_none(
    aws: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cloudwatch = aws("cloudwatch")
    assert read_utilisation(cloudwatch, "job", 2, STARTED, ENDED) == {}

    def refuse(operation: str) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetMetricData")

    monkeypatch.setattr(cloudwatch, "get_paginator", refuse)
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    assert read_utilisation(cloudwatch, "job", 2, STARTED, ENDED) == {}
    [warning] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "AccessDenied" in warning.getMessage()


def test_of_many_nodes_as_many_are_asked_as_one_call_holds() -> None:
    asked: list[int] = []

    class CloudWatch:
        def get_paginator(self, operation: str) -> CloudWatch:
            return self

        def paginate(self, MetricDataQueries: list[Any], **window: Any) -> list[Any]:
            asked.append(len(MetricDataQueries))
            return []

    assert read_utilisation(CloudWatch(), "job", 512, STARTED, ENDED) == {}
    assert asked == [320], "5 metrics of the first 64 nodes"


def test_of_a_job_that_never_ran_nothing_is_asked() -> None:
    backend: Any = None
    assert read_job_utilisation(backend, JobStatus("job", "failed")) == {}
