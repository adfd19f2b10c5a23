"""Search finds training jobs by their properties, tags, hyperparameters and metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import run_job
from sagemaker_emulator.sagemaker.search import found_jobs

JOBS: list[dict[str, Any]] = [
    {
        "TrainingJobName": f"job-{number}",
        "TrainingJobStatus": "Completed" if number < 3 else "Failed",
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": number},
        "HyperParameters": {"lr": f"0.{number}", "model.depth": str(10 * number)},
        "Tags": [{"Key": "team", "Value": "a" if number == 1 else "b"}],
        "FinalMetricDataList": [{"MetricName": "loss", "Value": 1.0 / number}]
        if number < 3
        else [],
        "InputDataConfig": [
            {
                "ChannelName": "train",
                "DataSource": {"S3DataSource": {"S3Uri": f"s3://data/{number}"}},
            },
            {"ChannelName": "test", "DataSource": {"S3DataSource": {"S3Uri": "s3://data/test"}}},
        ],
        "EnableManagedSpotTraining": number == 2,
        "CreationTime": 1_800_000_000.0 + number,
        "LastModifiedTime": 1_800_000_100.0 + number,
    }
    for number in (1, 2, 3)
]


def found(expression: dict[str, Any], **more: Any) -> list[int]:
    """The numbers of the jobs, in the order they are answered in."""
    request = {"SearchExpression": expression, **more}
    return [int(job["TrainingJobName"].removeprefix("job-")) for job in found_jobs(JOBS, request)]


@pytest.mark.parametrize(
    ("name", "operator", "value", "expected"),
    [
        ("TrainingJobStatus", "Equals", "Completed", [2, 1]),
        ("TrainingJobStatus", None, "Failed", [3]),
        ("TrainingJobStatus", "NotEquals", "Completed", [3]),
        ("TrainingJobName", "Contains", "B-2", [2]),
        ("TrainingJobName", "In", "job-1, job-3", [3, 1]),
        ("ResourceConfig.InstanceCount", "GreaterThan", "1", [3, 2]),
        ("ResourceConfig.InstanceCount", "LessThanOrEqualTo", "2", [2, 1]),
        ("HyperParameters.lr", "GreaterThanOrEqualTo", "0.20", [3, 2]),
        ("HyperParameters.model.depth", "Equals", "20", [2]),
        ("Tags.team", "Equals", "a", [1]),
        ("Tags.absent", "NotExists", None, [3, 2, 1]),
        ("Metrics.loss", "LessThan", "0.7", [2]),
        ("Metrics.loss", "Exists", None, [2, 1]),
        ("EnableManagedSpotTraining", "Equals", "true", [2]),
        ("CreationTime", "LessThan", "2027-01-15T08:00:02Z", [1]),
        ("CreationTime", "GreaterThanOrEqualTo", "2027-01-15T08:00:02", [3, 2]),
        ("FailureReason", "NotEquals", "x", [3, 2, 1]),
    ],
)
def test_filter(name: str, operator: str | None, value: str | None, expected: list[int]) -> None:
    condition = (
        {"Name": name}
        | ({"Operator": operator} if operator else {})
        | ({"Value": value} if value else {})
    )
    assert found({"Filters": [condition]}) == expected


def condition(name: str, value: str) -> dict[str, str]:
    return {"Name": name, "Operator": "Equals", "Value": value}


def test_all_conditions_or_any() -> None:
    filters = [condition("Tags.team", "b"), condition("TrainingJobStatus", "Completed")]
    assert found({"Filters": filters}) == [2]
    assert found({"Filters": filters, "Operator": "Or"}) == [3, 2, 1]
    inner = {
        "Filters": [condition("TrainingJobName", "job-1"), condition("TrainingJobName", "job-3")],
        "Operator": "Or",
    }
    assert found({"Filters": filters[1:], "SubExpressions": [inner]}) == [1]
    assert found({}) == found({"Operator": "Or"}) == [3, 2, 1]


def test_nested_filters_are_of_one_element() -> None:
    uri = "InputDataConfig.DataSource.S3DataSource.S3Uri"
    both = [condition("InputDataConfig.ChannelName", "train"), condition(uri, "s3://data/2")]
    assert found(
        {"NestedFilters": [{"NestedPropertyName": "InputDataConfig", "Filters": both}]}
    ) == [2]
    both[1] = condition(uri, "s3://data/test")
    assert (
        found({"NestedFilters": [{"NestedPropertyName": "InputDataConfig", "Filters": both}]}) == []
    )


def test_order() -> None:
    assert found({}, SortBy="CreationTime", SortOrder="Ascending") == [1, 2, 3]
    assert found({}, SortBy="Metrics.loss") == [1, 2, 3]  # what has no value comes last


def test_on_the_platform_page_by_page(platform: SimpleNamespace) -> None:
    for number in range(3):
        run_job(platform, f"searched-{number}", Tags=[{"Key": "purpose", "Value": "search"}])
    ask = {
        "Resource": "TrainingJob",
        "SearchExpression": {"Filters": [condition("Tags.purpose", "search")]},
        "MaxResults": 2,
        "SortBy": "CreationTime",
    }
    first = platform.sagemaker.search(**ask)
    second = platform.sagemaker.search(**ask, NextToken=first["NextToken"])
    names = [
        one["TrainingJob"]["TrainingJobName"] for page in (first, second) for one in page["Results"]
    ]
    assert names == ["searched-2", "searched-1", "searched-0"]
    assert first["TotalHits"]["Value"] == 3 and "NextToken" not in second
    assert first["Results"][0]["TrainingJob"]["Tags"] == [{"Key": "purpose", "Value": "search"}]
    with pytest.raises(ClientError, match="Invalid pagination token"):
        platform.sagemaker.search(Resource="TrainingJob", NextToken=first["NextToken"])


def test_what_is_refused(platform: SimpleNamespace) -> None:
    nonsense = {"Filters": [condition("Nonsense.x", "1")]}
    with pytest.raises(
        ClientError, match=r"\(ValidationException\).*Unknown property name: Nonsense.x"
    ):
        platform.sagemaker.search(Resource="TrainingJob", SearchExpression=nonsense)


def test_other_resources_are_motos(platform: SimpleNamespace) -> None:
    platform.sagemaker.create_experiment(ExperimentName="searched-experiment")
    [found] = platform.sagemaker.search(Resource="Experiment")["Results"]
    assert found["Experiment"]["ExperimentName"] == "searched-experiment"


def test_kind_that_nobody_here_can_search(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError) as caught:
        platform.sagemaker.search(Resource="HyperParameterTuningJob")
    error = caught.value.response["Error"]
    assert error["Code"] == "UnknownOperationException"
    assert "SageMaker.Search" in error["Message"] and "HyperParameterTuningJob" in error["Message"]
    with pytest.raises(ClientError, match=r"satisfy enum value set: \[TrainingJob, "):
        platform.sagemaker.search(Resource="Nonsense")
