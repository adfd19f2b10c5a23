"""InstancePreferences: the job gets one of several instance types, depending on the free
capacity."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import job_request, resources, run_job

SMALL, MEDIUM, LARGE = (f"ml.local.{size}" for size in ("small", "medium", "large"))


def preferring(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"VolumeSizeInGB": 1, "InstancePreferences": list(choices), **more}


def choice(kind: str, count: int | None = None) -> dict[str, Any]:
    return {"InstanceType": kind} | ({} if count is None else {"InstanceCount": count})


@pytest.mark.parametrize(
    ("wanted", "selected"),
    [
        (preferring(choice(LARGE, 1), choice(SMALL, 2)), (LARGE, 1)),
        (preferring(choice(LARGE, 9), choice(SMALL, 2)), (SMALL, 2)),  # the engine has 8 nodes
        (preferring(choice(MEDIUM), choice(SMALL), InstanceCount=2), (MEDIUM, 2)),
    ],
    ids=["first", "fallback", "one count"],
)
def test_job_runs_on_the_first_type_that_there_is_room_for(
    platform: SimpleNamespace,
    wanted: dict[str, Any],
    selected: tuple[str, int],
    request: pytest.FixtureRequest,
) -> None:
    job = run_job(platform, request.node.callspec.id.replace(" ", "-"), ResourceConfig=wanted)
    assert job["TrainingJobStatus"] == "Completed"
    kind, count = selected
    chosen = {"SelectedInstanceType": kind, "SelectedInstanceCount": count}
    assert job["ResourceConfig"] == wanted | chosen
    streams = platform.logs.describe_log_streams(logGroupName="/aws/sagemaker/TrainingJobs")
    own = [
        s for s in streams["logStreams"] if s["logStreamName"].startswith(job["TrainingJobName"])
    ]
    assert len(own) == count


def test_without_room_for_any_type_the_job_fails_for_lack_of_capacity(
    platform: SimpleNamespace,
) -> None:
    wanted = preferring(choice(LARGE, 9), choice(SMALL, 10))
    job = run_job(platform, "no-room", ResourceConfig=wanted)
    assert job["FailureReason"].startswith("CapacityError: ")
    assert job["ResourceConfig"] == wanted, "no type was selected"


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [
        (preferring(choice(SMALL, 1), InstanceType=SMALL), "with ResourceConfig.InstanceType"),
        (
            preferring(choice(SMALL, 1), InstancePlacementConfig={"EnableMultipleJobs": True}),
            "with ResourceConfig.InstancePlacementConfig",
        ),
        (preferring(choice(SMALL, 1), choice(SMALL, 2)), "must not repeat"),
        (preferring(choice(SMALL, 1), choice(LARGE)), "either in ResourceConfig or in every"),
        (preferring(choice(SMALL, 1), InstanceCount=1), "either in ResourceConfig or in every"),
        (preferring(choice(SMALL)), "either in ResourceConfig or in every"),
        (preferring(choice(SMALL, 0)), "greater than or equal to 1"),
        (preferring(choice(SMALL), InstanceCount=0), "greater than or equal to 1"),
        ({**resources(1), "SelectedInstanceType": SMALL}, "SelectedInstanceType is read-only"),
        (
            preferring(
                choice(SMALL, 1)
                | {
                    "TrainingPlanArns": [
                        "arn:aws:sagemaker:us-east-1:000000000000:training-plan/march"
                    ]
                }
            ),
            "does not model ResourceConfig.InstancePreferences with a plan",
        ),
    ],
)
def test_refused_preferences(
    platform: SimpleNamespace, wanted: dict[str, Any], refused: str
) -> None:
    with pytest.raises(ClientError, match="ValidationException") as error:
        platform.sagemaker.create_training_job(**job_request("refused", ResourceConfig=wanted))
    assert refused in str(error.value)


def test_preferences_are_not_for_spot(platform: SimpleNamespace) -> None:
    request = job_request(
        "spot-preferences",
        ResourceConfig=preferring(choice(SMALL, 1)),
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
    )
    with pytest.raises(ClientError, match="with EnableManagedSpotTraining"):
        platform.sagemaker.create_training_job(**request)
