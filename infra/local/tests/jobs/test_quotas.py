"""Quotas per instance type are separate for on-demand, spot and warm pool usage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    job_request,
    resources,
    run_job,
    serve_platform,
    wait_for_end,
    wait_for_phase,
)

QUOTAS = {
    "ml.local.small": 3,
    "ml.local.small for spot training job usage": 1,
    "ml.local.small for training warm pool usage": 2,
    "ml.local.medium for training job usage": 1,
}
SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
}


@pytest.fixture
def limited(tmp_path: Any) -> Iterator[SimpleNamespace]:
    with contextmanager(serve_platform)(tmp_path, **QUOTAS) as served:
        served.s3.create_bucket(Bucket="results")
        yield served


def refusal(platform: SimpleNamespace, **changes: Any) -> str:
    with pytest.raises(ClientError) as caught:
        platform.sagemaker.create_training_job(**job_request("too-many", **changes))
    assert caught.value.response["Error"]["Code"] == "ResourceLimitExceeded"
    return str(caught.value.response["Error"]["Message"])


def test_jobs_in_progress_count_and_finished_ones_do_not(limited: SimpleNamespace) -> None:
    run_job(limited, "done", ResourceConfig=resources(3))
    limited.sagemaker.create_training_job(
        **job_request("running", "endless", ResourceConfig=resources(2))
    )
    assert (
        refusal(limited, ResourceConfig=resources(2))
        == "The account-level service limit 'ml.local.small for training job usage' is 3 Instances,"
        " with current utilization of 2 Instances and a request delta of 2 Instances. Please use"
        " AWS Service Quotas to request an increase for this quota."
    )
    limited.sagemaker.create_training_job(**job_request("queued", ResourceConfig=resources(1)))
    assert "utilization of 3 Instances" in refusal(limited, ResourceConfig=resources(1))
    limited.sagemaker.stop_training_job(TrainingJobName="running")
    wait_for_end(limited.sagemaker, "running")
    wait_for_end(limited.sagemaker, "queued")
    assert (
        run_job(limited, "too-many", ResourceConfig=resources(3))["TrainingJobStatus"]
        == "Completed"
    )


def test_spot_has_a_quota_of_its_own(limited: SimpleNamespace) -> None:
    limited.sagemaker.create_training_job(
        **job_request("on-demand", "endless", ResourceConfig=resources(3))
    )
    limited.sagemaker.create_training_job(**job_request("spot", **SPOT))
    message = refusal(limited, **SPOT)
    assert (
        "'ml.local.small for spot training job usage' is 1 Instances, with current utilization of 1"
        in message
    )
    limited.sagemaker.stop_training_job(TrainingJobName="on-demand")
    wait_for_end(limited.sagemaker, "spot")


def test_quota_by_its_full_name_and_a_type_without_one(limited: SimpleNamespace) -> None:
    assert "is 1 Instances" in refusal(limited, ResourceConfig=resources(2, "ml.local.medium"))
    assert (
        run_job(limited, "free", ResourceConfig=resources(8, "ml.local.large"))["TrainingJobStatus"]
        == "Completed"
    )


def test_warm_pools_count_until_they_end(limited: SimpleNamespace) -> None:
    def kept(count: int) -> dict[str, Any]:
        return {**resources(count), "KeepAlivePeriodInSeconds": 600}

    run_job(limited, "pool", ResourceConfig=kept(1))
    message = refusal(limited, ResourceConfig=kept(2))
    assert (
        "'ml.local.small for training warm pool usage' is 2 Instances, with current utilization"
        " of 1" in message
    )
    run_job(limited, "same-pool", ResourceConfig=kept(1))  # reuses the pool, so 1 of 2 is in use
    limited.sagemaker.create_training_job(
        **job_request("other", "endless", ResourceConfig=resources(2))
    )
    wait_for_phase(limited.sagemaker, "other", "Training")
    limited.sagemaker.stop_training_job(TrainingJobName="other")
    wait_for_end(limited.sagemaker, "other")
    update = {"KeepAlivePeriodInSeconds": 0}
    limited.sagemaker.update_training_job(TrainingJobName="same-pool", ResourceConfig=update)
    assert run_job(limited, "too-many", ResourceConfig=kept(2))["TrainingJobStatus"] == "Completed"
