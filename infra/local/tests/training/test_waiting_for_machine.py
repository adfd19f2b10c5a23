"""While another platform's job uses the machine, a job is Pending: it does not train, is not
billed, and its runtime limit does not run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.platform_client import (
    endless_until,
    job_request,
    phases,
    wait_for_end,
    wait_for_phase,
)


@pytest.fixture
def busy(platform: SimpleNamespace) -> Iterator[SimpleNamespace]:
    platform.engine.machine_is_free.clear()
    yield platform
    platform.engine.machine_is_free.set()


def create(platform: SimpleNamespace, name: str, **changes: Any) -> None:
    platform.sagemaker.create_training_job(**job_request(name, **changes))
    wait_for_phase(platform.sagemaker, name, "Pending")


def test_wait_is_pending_and_neither_billed_nor_runtime(busy: SimpleNamespace) -> None:
    create(busy, "waits")
    waiting = busy.sagemaker.describe_training_job(TrainingJobName="waits")
    assert not {"TrainingStartTime", "TrainingTimeInSeconds", "BillableTimeInSeconds"} & set(
        waiting
    )
    message = waiting["SecondaryStatusTransitions"][-1]["StatusMessage"]
    assert "capacity" in message
    busy.engine.machine_is_free.set()
    job = wait_for_end(busy.sagemaker, "waits")
    assert phases(job) == [
        "Starting",
        "Pending",
        "Downloading",
        "Training",
        "Uploading",
        "Completed",
    ]
    assert job["TrainingStartTime"] >= job["SecondaryStatusTransitions"][1]["EndTime"]
    assert busy.engine.limits_seconds[-1] == job["StoppingCondition"]["MaxRuntimeInSeconds"]
    wall_seconds = (job["TrainingEndTime"] - job["TrainingStartTime"]).total_seconds()
    assert (
        job["BillableTimeInSeconds"] == job["TrainingTimeInSeconds"] == max(1, round(wall_seconds))
    )


def test_stop_ends_the_wait(busy: SimpleNamespace) -> None:
    create(busy, "stopped-while-waiting")
    busy.sagemaker.stop_training_job(TrainingJobName="stopped-while-waiting")
    job = wait_for_end(busy.sagemaker, "stopped-while-waiting")
    assert phases(job) == ["Starting", "Pending", "Stopping", "Stopped"]
    assert "BillableTimeInSeconds" not in job


def test_wait_of_a_spot_job_has_its_limit(busy: SimpleNamespace) -> None:
    job = endless_until(busy, "spot-waits", "Pending")
    assert phases(job)[:2] == ["Starting", "Pending"]
    assert job["SecondaryStatus"] == "MaxWaitTimeExceeded"
    assert "BillableTimeInSeconds" not in job


def test_jobs_wait_one_after_the_other(busy: SimpleNamespace) -> None:
    """For users, waiting in the queue and waiting for another platform look the same."""
    create(busy, "first-in-line")
    create(busy, "second-in-line")
    busy.engine.machine_is_free.set()
    ended = [wait_for_end(busy.sagemaker, name) for name in ("first-in-line", "second-in-line")]
    assert [job["TrainingJobStatus"] for job in ended] == ["Completed", "Completed"]
    assert ended[0]["TrainingEndTime"] <= ended[1]["TrainingStartTime"]
