"""Values that metric definitions match are in CloudWatch and SageMaker Metrics, as their clients
ask for them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import client, job_request, run_job
from sagemaker_emulator.sagemaker.metric_series import (
    MOST_POINTS,
    MetricsApi,
    MetricSeries,
    Point,
)

NAMESPACE = "/aws/sagemaker/TrainingJobs"


def job_with_metric(platform: SimpleNamespace, name: str, **algorithm: Any) -> dict[str, Any]:
    """Its three lines are train_loss=1.000; 0.500; 0.333."""
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
    """As the SDK's TrainingJobAnalytics asks: the names by dimension, then minute by minute."""
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


def query(
    arn: str, name: str, stat: str = "Avg", period: str = "OneHour", axis: str = "Timestamp"
) -> dict[str, str]:
    return {
        "MetricName": name,
        "ResourceArn": arn,
        "MetricStat": stat,
        "Period": period,
        "XAxisType": axis,
    }


@pytest.fixture
def metrics(platform: SimpleNamespace) -> Any:
    return client(platform.endpoint, "sagemaker-metrics")


def test_series_of_a_job_that_asks_for_it(platform: SimpleNamespace, metrics: Any) -> None:
    arn = job_with_metric(platform, "with-series", EnableSageMakerMetricsTimeSeries=True)[
        "TrainingJobArn"
    ]
    other = job_with_metric(platform, "without-series")["TrainingJobArn"]
    asked = [
        query(arn, "train:loss", "Count"),
        query(arn, "train:loss", "Max"),
        query(other, "train:loss"),
    ]
    counted, largest, none = metrics.batch_get_metrics(MetricQueries=asked)["MetricQueryResults"]
    assert sum(counted["MetricValues"]) == 3 and counted["Status"] == "Complete"
    assert max(largest["MetricValues"]) == 1.0
    assert all(position % 3600 == 0 for position in largest["XAxisValues"])
    assert none["MetricValues"] == []


def test_metrics_of_a_trial_component(platform: SimpleNamespace, metrics: Any) -> None:
    arn = platform.sagemaker.create_trial_component(TrialComponentName="my-run")[
        "TrialComponentArn"
    ]
    data = [
        {"MetricName": "loss", "Timestamp": 1_800_000_000, "Step": step, "Value": 1 / step}
        for step in (2, 1, 2)
    ]
    assert (
        metrics.batch_put_metrics(TrialComponentName="my-run", MetricData=data).get("Errors", [])
        == []
    )
    by_step = query(arn, "loss", "Last", "IterationNumber", "IterationNumber")
    [result] = metrics.batch_get_metrics(MetricQueries=[by_step])["MetricQueryResults"]
    assert (result["XAxisValues"], result["MetricValues"]) == ([1, 2], [1.0, 0.5])
    [result] = metrics.batch_get_metrics(MetricQueries=[{**by_step, "Start": 2}])[
        "MetricQueryResults"
    ]
    assert result["XAxisValues"] == [2]
    [result] = metrics.batch_get_metrics(MetricQueries=[{**by_step, "Period": "OneHour"}])[
        "MetricQueryResults"
    ]
    assert result["Status"] == "ValidationError"


def test_trial_component_that_is_not_there(metrics: Any) -> None:
    data = [{"MetricName": "loss", "Timestamp": 1, "Step": 1, "Value": 1.0}] * 2
    errors = metrics.batch_put_metrics(TrialComponentName="absent", MetricData=data)["Errors"]
    assert errors == [{"Code": "VALIDATION_ERROR", "MetricIndex": index} for index in (0, 1)]


def test_requests_are_checked_by_the_model(metrics: Any) -> None:
    with pytest.raises(
        ClientError, match=r"\(ValidationException\).*'metricQueries.1.member.metricStat' failed"
    ):
        metrics.batch_get_metrics(
            MetricQueries=[query("arn:aws:sagemaker:us-east-1:000000000000:a/b", "x", "Odd")]
        )


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("Min", 1.0),
        ("Max", 4.0),
        ("Avg", 2.5),
        ("Count", 4.0),
        ("StdDev", 1.118033988749895),
        ("Last", 3.0),
    ],
)
def test_statistics(stat: str, expected: float) -> None:
    series = MetricSeries()
    for second, value in enumerate((1.0, 2.0, 4.0, 3.0)):
        series.add("arn", "m", Point(3600.0 + second, value))
    nothing: Any = None
    [result] = MetricsApi(series, nothing).get("r", {"MetricQueries": [query("arn", "m", stat)]})[
        "MetricQueryResults"
    ]
    assert (result["XAxisValues"], result["MetricValues"]) == ([3600], [pytest.approx(expected)])


def test_series_has_a_bound() -> None:
    series = MetricSeries()
    for number in range(MOST_POINTS + 1):
        series.add("arn", "m", Point(0.0, number))
    points = series.points("arn", "m")
    assert (len(points), points[0].value) == (MOST_POINTS, 1)
