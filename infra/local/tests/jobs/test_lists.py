"""Filters, sorting and pagination of ListTrainingJobs, and tags."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import client, job_request, resources, wait_for_end
from sagemaker_emulator.api.protocol import ApiError
from sagemaker_emulator.jobs.lists import Listing

NAMES = ["beta-1", "alpha-1", "alpha-2", "gamma-1"]


@pytest.fixture(scope="module")
def jobs(platform: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """Create four jobs in the order of NAMES. gamma-1 has failed, the others have completed."""
    for name in NAMES:
        count = 9 if name == "gamma-1" else 1
        platform.sagemaker.create_training_job(**job_request(name, ResourceConfig=resources(count)))
    for name in NAMES:
        wait_for_end(platform.sagemaker, name)
    yield platform


def names(platform: SimpleNamespace, **query: Any) -> list[str]:
    found = platform.sagemaker.list_training_jobs(**query)["TrainingJobSummaries"]
    return [job["TrainingJobName"] for job in found]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, NAMES),
        ({"SortOrder": "Descending"}, NAMES[::-1]),
        ({"SortBy": "Name"}, sorted(NAMES)),
        (
            {"SortBy": "Status", "SortOrder": "Descending"},
            ["gamma-1", "beta-1", "alpha-2", "alpha-1"],
        ),
        ({"NameContains": "ALPHA"}, ["alpha-1", "alpha-2"]),
        ({"StatusEquals": "Failed"}, ["gamma-1"]),
        ({"MaxResults": 2}, NAMES[:2]),
        ({"WarmPoolStatusEquals": "Available"}, []),
    ],
)
def test_filters_and_order(
    jobs: SimpleNamespace, query: dict[str, Any], expected: list[str]
) -> None:
    assert names(jobs, **query) == expected


def test_time_filters(jobs: SimpleNamespace) -> None:
    created = jobs.sagemaker.describe_training_job(TrainingJobName="beta-1")["CreationTime"]
    minute = timedelta(minutes=1)
    assert (
        names(jobs, CreationTimeAfter=created - minute, CreationTimeBefore=created + minute)
        == NAMES
    )
    assert names(jobs, CreationTimeAfter=created + minute) == []
    assert names(jobs, LastModifiedTimeBefore=created - minute) == []


def test_pages(jobs: SimpleNamespace) -> None:
    pages = jobs.sagemaker.get_paginator("list_training_jobs").paginate(MaxResults=3)
    assert [[job["TrainingJobName"] for job in page["TrainingJobSummaries"]] for page in pages] == [
        NAMES[:3],
        NAMES[3:],
    ]


@pytest.mark.parametrize("order", ["Ascending", "Descending"])
@pytest.mark.parametrize("sort_by", ["Name", "CreationTime", "Status"])
def test_pages_of_a_list_whose_items_are_deleted(sort_by: str, order: str) -> None:
    """Clients page through all jobs and delete each."""
    left = [
        {"Name": f"job-{i}", "CreationTime": i // 2, "LastModifiedTime": 0, "Status": f"s{i % 2}"}
        for i in range(9)
    ]
    query: dict[str, Any] = {"SortBy": sort_by, "SortOrder": order, "MaxResults": 2}
    while True:
        page = Listing("Jobs", "Name", "Status").page(left, query)
        left = [job for job in left if job not in page["Jobs"]]
        if "NextToken" not in page:
            break
        query["NextToken"] = page["NextToken"]
    assert left == []


@pytest.mark.parametrize(
    "place", [0, [], ["text", "name"], [1, 2], [None, "name"], {"value": 1, "name": "x"}]
)
def test_forged_token(place: Any) -> None:
    token = base64.urlsafe_b64encode(json.dumps([place, {}]).encode()).decode()
    job = {"Name": "job", "CreationTime": 1, "LastModifiedTime": 0, "Status": "s"}
    with pytest.raises(ApiError, match="Invalid pagination token"):
        Listing("Jobs", "Name", "Status").page([job], {"NextToken": token})


@pytest.mark.parametrize("changes", [{"NextToken": "nonsense"}, {"SortBy": "Name"}])
def test_token_of_another_query(jobs: SimpleNamespace, changes: dict[str, str]) -> None:
    token = jobs.sagemaker.list_training_jobs(MaxResults=1)["NextToken"]
    with pytest.raises(ClientError, match="Invalid pagination token"):
        jobs.sagemaker.list_training_jobs(**{"NextToken": token, **changes})


def test_page_size_limit(jobs: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match="'101' at 'maxResults' failed to satisfy constraint"):
        jobs.sagemaker.list_training_jobs(MaxResults=101)


def test_summary_has_no_billing_fields(jobs: SimpleNamespace) -> None:
    summary = jobs.sagemaker.list_training_jobs(NameContains="beta")["TrainingJobSummaries"][0]
    assert set(summary) == {
        "TrainingJobName",
        "TrainingJobArn",
        "CreationTime",
        "TrainingEndTime",
        "LastModifiedTime",
        "TrainingJobStatus",
        "SecondaryStatus",
    }


def test_regions_are_separate(jobs: SimpleNamespace) -> None:
    elsewhere = client(jobs.endpoint, "sagemaker", "eu-west-1")
    assert elsewhere.list_training_jobs()["TrainingJobSummaries"] == []


def test_tags(jobs: SimpleNamespace) -> None:
    tags = [{"Key": "team", "Value": "a"}]
    arn = jobs.sagemaker.create_training_job(**job_request("tagged", Tags=tags))["TrainingJobArn"]
    jobs.sagemaker.add_tags(
        ResourceArn=arn, Tags=[{"Key": "team", "Value": "b"}, {"Key": "x", "Value": "y"}]
    )
    found = jobs.sagemaker.list_tags(ResourceArn=arn)["Tags"]
    assert found == [{"Key": "team", "Value": "b"}, {"Key": "x", "Value": "y"}]
    wait_for_end(jobs.sagemaker, "tagged")


def test_tags_of_an_unknown_job(jobs: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match=r"Requested resource not found\."):
        jobs.sagemaker.list_tags(
            ResourceArn="arn:aws:sagemaker:us-east-1:000000000000:training-job/none"
        )
