"""Values that metric definitions extract are in CloudWatch, in the form in which its clients read
them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from infra.local.tests.platform_client import job_request, run_job

NAMESPACE = "/aws/sagemaker/TrainingJobs"


def job_with_metric(platform: SimpleNamespace, name: str, **algorithm: Any) -> dict[str, Any]:
    """Run a job that prints train_loss=1.000, 0.500 and 0.333."""
    definitions = [{"Name": "train:loss", "Regex": "train_loss=([^;]+);"}]
    specification = {
        **job_request("x")["AlgorithmSpecification"],
        "MetricDefinitions": definitions,
        **algorithm,
    }
    return run_job(platform, name, AlgorithmSpecification=specification)


def dimensions(job: str) -> list[dict[str, str]]:
    return [{"Name": "TrainingJobName", "Value": job}]


def test_every_value_is_in_cloudwatch(platform: SimpleNamespace) -> None:
    """TrainingJobAnalytics in the SDK first lists metrics by dimension and then reads the values
    minute by minute.
    """
    job = job_with_metric(platform, "measured")
    [metric] = platform.cloudwatch.list_metrics(
        Namespace=NAMESPACE, Dimensions=dimensions("measured")
    )["Metrics"]
    assert metric["MetricName"] == "train:loss"
    points = platform.cloudwatch.get_metric_statistics(
        Namespace=NAMESPACE,
        MetricName="train:loss",
        Dimensions=dimensions("measured"),
        StartTime=job["TrainingStartTime"] - timedelta(minutes=1),
        EndTime=datetime.now(UTC) + timedelta(minutes=1),
        Period=3600,
        Statistics=["SampleCount", "Maximum", "Minimum", "Average"],
    )["Datapoints"]
    assert sum(point["SampleCount"] for point in points) == 3
    assert max(point["Maximum"] for point in points) == 1.0
    assert min(point["Minimum"] for point in points) == 0.333


def test_get_metric_data(platform: SimpleNamespace) -> None:
    job = job_with_metric(platform, "queried")
    metric = {
        "Namespace": NAMESPACE,
        "MetricName": "train:loss",
        "Dimensions": dimensions("queried"),
    }
    [result] = platform.cloudwatch.get_metric_data(
        MetricDataQueries=[
            {"Id": "m", "MetricStat": {"Metric": metric, "Period": 3600, "Stat": "Minimum"}}
        ],
        StartTime=job["TrainingStartTime"] - timedelta(minutes=1),
        EndTime=datetime.now(UTC) + timedelta(minutes=1),
    )["MetricDataResults"]
    assert min(result["Values"]) == 0.333
