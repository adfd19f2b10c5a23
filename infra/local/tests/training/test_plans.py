"""Training plans are offered, created, described, used by jobs, and kept across restarts."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    client,
    job_request,
    made_plan,
    resources,
    run_job,
    serve_platform,
    wait_for_end,
    wait_for_phase,
)
from sagemaker_emulator.training.plans import Terms


def on_plan(arn: str, count: int = 1, instance_type: str = "ml.local.small") -> dict[str, Any]:
    return {"ResourceConfig": {**resources(count, instance_type), "TrainingPlanArn": arn}}


def refusal(platform: SimpleNamespace, **changes: Any) -> str:
    with pytest.raises(ClientError) as refused:
        platform.sagemaker.create_training_job(**job_request("refused", **changes))
    return str(refused.value)


def test_job_on_a_plan_uses_its_instances(platform: SimpleNamespace) -> None:
    arn = made_plan(platform, "ml.local.small", 3)

    def described() -> dict[str, Any]:
        return dict(platform.sagemaker.describe_training_plan(TrainingPlanName=arn))

    plan = described()
    assert (plan["TrainingPlanArn"], plan["Status"]) == (arn, "Active")
    assert plan["EndTime"] - plan["StartTime"] == timedelta(hours=24)
    assert (plan["UpfrontFee"], plan["CurrencyCode"]) == ("0.00", "USD")
    assert [
        (one["InstanceType"], one["TotalInstanceCount"])
        for one in plan["ReservedCapacitySummaries"]
    ] == [("ml.local.small", 3)]
    platform.sagemaker.create_training_job(**job_request("planned", "endless", **on_plan(arn, 2)))
    wait_for_phase(platform.sagemaker, "planned", "Training")
    assert (described()["InUseInstanceCount"], described()["AvailableInstanceCount"]) == (2, 1)
    platform.sagemaker.stop_training_job(TrainingJobName="planned")
    job = wait_for_end(platform.sagemaker, "planned")
    assert job["ResourceConfig"]["TrainingPlanArn"] == arn
    assert described()["InUseInstanceCount"] == 0
    run_job(platform, "unplanned")
    listed = platform.sagemaker.list_training_jobs(TrainingPlanArnEquals=arn)
    assert [
        (one["TrainingJobName"], one["TrainingPlanArn"]) for one in listed["TrainingJobSummaries"]
    ] == [("planned", arn)]


@pytest.mark.parametrize(
    ("plan", "job", "reason"),
    [
        ({"StartTimeAfter": 0}, {}, "is Expired"),
        ({"StartTimeAfter": datetime(2100, 1, 1, tzinfo=UTC)}, {}, "is Scheduled"),
        ({"DurationHours": 2}, {"count": 5}, "reserves 4 instances"),
        ({"DurationHours": 3, "EndTimeBefore": datetime(2100, 1, 1, tzinfo=UTC)},
         {"instance_type": "ml.local.large"}, "reserves ml.local.small"),
    ],
    ids=["expired", "later", "fewer", "type"],
)  # fmt: skip
def test_plan_that_does_not_fit_the_job(
    platform: SimpleNamespace, plan: dict[str, Any], job: dict[str, Any], reason: str
) -> None:
    plan = {"DurationHours": 1, **plan}
    found = platform.sagemaker.search_training_plan_offerings(
        InstanceType="ml.local.small", InstanceCount=4, TargetResources=["training-job"], **plan
    )
    arn = platform.sagemaker.create_training_plan(
        TrainingPlanName=f"misfit-{reason.replace(' ', '-').replace('.', '-')}",
        TrainingPlanOfferingId=found["TrainingPlanOfferings"][0]["TrainingPlanOfferingId"],
    )["TrainingPlanArn"]
    text = refusal(platform, **on_plan(arn, **job))
    assert "ValidationException" in text and reason in text


def test_plan_is_not_for_spot(platform: SimpleNamespace) -> None:
    arn = made_plan(platform, "ml.local.small", 5)
    spot = {
        "EnableManagedSpotTraining": True,
        "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
    }
    assert "spot" in refusal(platform, **on_plan(arn), **spot)


def test_unknown_plans_and_offerings_are_not_found(platform: SimpleNamespace) -> None:
    arn = made_plan(platform, "ml.local.small", 6)
    sagemaker = platform.sagemaker
    elsewhere = client(platform.endpoint, "sagemaker", region="eu-west-1")
    hand_made = Terms("ml.local.small", -1, 0, 10**9).offering_id
    [offering] = sagemaker.search_training_plan_offerings(
        InstanceType="ml.local.small", InstanceCount=6, TargetResources=["training-job"]
    )["TrainingPlanOfferings"]
    offered = offering["TrainingPlanOfferingId"]
    for call in (
        lambda: sagemaker.describe_training_plan(TrainingPlanName="nobodys"),
        lambda: elsewhere.describe_training_plan(TrainingPlanName=arn.rpartition("/")[2]),
        lambda: elsewhere.create_training_job(**job_request("elsewhere", **on_plan(arn))),
        lambda: sagemaker.create_training_job(**job_request("lost", **on_plan(f"{arn}-lost"))),
        lambda: sagemaker.create_training_plan(
            TrainingPlanName="new", TrainingPlanOfferingId="tpo-00"
        ),
        lambda: sagemaker.create_training_plan(
            TrainingPlanName="new", TrainingPlanOfferingId=hand_made
        ),
        lambda: elsewhere.create_training_plan(
            TrainingPlanName="new", TrainingPlanOfferingId=offered
        ),
    ):
        with pytest.raises(ClientError) as refused:
            call()
        assert refused.value.response["Error"]["Code"] == "ResourceNotFound"


def test_plan_name_is_taken_once(platform: SimpleNamespace) -> None:
    made_plan(platform, "ml.local.small", 7)
    with pytest.raises(ClientError) as refused:
        made_plan(platform, "ml.local.small", 7)
    assert refused.value.response["Error"]["Code"] == "ResourceInUse"


@pytest.mark.parametrize(
    "query",
    [
        {"TargetResources": ["hyperpod-cluster"]},
        {"EndTimeBefore": datetime.now(UTC) + timedelta(hours=1)},
    ],
)
def test_nothing_is_offered_for_other_uses_or_too_short_a_time(
    platform: SimpleNamespace, query: dict[str, Any]
) -> None:
    asked = {
        "InstanceType": "ml.p5.48xlarge", "InstanceCount": 1, "TargetResources": ["training-job"],
    }  # fmt: skip
    found = platform.sagemaker.search_training_plan_offerings(**{**asked, **query})
    assert found["TrainingPlanOfferings"] == []


def test_offering_costs_nothing(platform: SimpleNamespace) -> None:
    [found] = platform.sagemaker.search_training_plan_offerings(
        InstanceType="ml.p5.48xlarge", InstanceCount=1, TargetResources=["training-job"]
    )["TrainingPlanOfferings"]
    assert (found["UpfrontFee"], found["CurrencyCode"]) == ("0.00", "USD")


def test_offering_needs_a_type_and_a_count(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match="InstanceCount must be specified"):
        platform.sagemaker.search_training_plan_offerings(
            InstanceType="ml.p5.48xlarge", TargetResources=["training-job"]
        )


def test_next_server_has_the_plans(tmp_path: Path) -> None:
    started = time.time()
    with contextmanager(serve_platform)(tmp_path) as served:
        arn = made_plan(served, "ml.p5.48xlarge", 4)
    with contextmanager(serve_platform)(tmp_path) as served:
        plan = served.sagemaker.describe_training_plan(TrainingPlanName=arn)
    assert (plan["TrainingPlanArn"], plan["TotalInstanceCount"]) == (arn, 4)
    assert plan["StartTime"].timestamp() >= int(started)
