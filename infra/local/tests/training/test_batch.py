"""AWS Batch: training jobs that wait in a queue, with an unmodified boto3 client."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    job_request,
    made_queue,
    resources,
    serve_platform,
    wait_until,
)
from sagemaker_emulator.state.files import RecordStore
from sagemaker_emulator.state.unsaved import NotSaved
from sagemaker_emulator.training.batch import Batch


def submit(
    platform: SimpleNamespace, queue: str, name: str, program: str = "endless", **members: Any
) -> str:
    """Submit a service job with this number of nodes, and return its id."""
    resource_config = resources(members.pop("nodes", 1))
    payload = members.pop("payload", job_request(name, program, ResourceConfig=resource_config))
    text = payload if isinstance(payload, str) else json.dumps(payload)
    answer = platform.batch.submit_service_job(
        jobName=name,
        jobQueue=queue,
        serviceJobType="SAGEMAKER_TRAINING",
        serviceRequestPayload=text,
        **members,
    )
    return str(answer["jobId"])


def described(platform: SimpleNamespace, job: str) -> dict[str, Any]:
    return dict(platform.batch.describe_service_job(jobId=job))


def ended(platform: SimpleNamespace, job: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        found = described(platform, job)
        return found if found["status"] in ("SUCCEEDED", "FAILED") else None

    found: dict[str, Any] = wait_until(over)
    return found


def broken(*_: Any) -> None:
    raise ValueError("boom")


def refusal(platform: SimpleNamespace, queue: str, **members: Any) -> str:
    with pytest.raises(ClientError) as refused:
        submit(platform, queue, "refused", **members)
    assert refused.value.response["Error"]["Code"] == "ClientException"
    return str(refused.value)


def test_service_job_runs_a_training_job_of_its_own_name(platform: SimpleNamespace) -> None:
    queue = made_queue(platform, "runs")
    job = ended(platform, submit(platform, queue, "a-rather-long-name-of-a-job", "quick"))
    assert (job["status"], job["jobName"]) == ("SUCCEEDED", "a-rather-long-name-of-a-job")
    arn = job["latestAttempt"]["serviceResourceId"]["value"]
    name = arn.rpartition("/")[2]
    assert name.startswith("AWSBatcha-rather-long-name-of-a") and len(name) == 63
    training = platform.sagemaker.describe_training_job(TrainingJobName=name)
    assert training["TrainingJobArn"] == arn and training["TrainingJobStatus"] == "Completed"
    assert job["createdAt"] <= job["scheduledAt"] <= job["stoppedAt"]
    platform.engine.programs["broken"] = broken
    failed = ended(platform, submit(platform, queue, "fails", "broken"))
    assert failed["status"] == "FAILED" and failed["statusReason"] and not failed["isTerminated"]


def test_jobs_wait_until_the_environment_has_room(platform: SimpleNamespace) -> None:
    queue = made_queue(platform, "waits", capacity=2)
    first = submit(platform, queue, "first", nodes=2)
    second = submit(platform, queue, "second")
    assert described(platform, second)["status"] == "RUNNABLE"
    assert "latestAttempt" not in described(platform, second)
    third = submit(platform, queue, "third")
    platform.batch.terminate_service_job(jobId=third, reason="not needed")
    out = described(platform, third)
    assert (out["status"], out["isTerminated"], out["statusReason"]) == (
        "FAILED", True, "not needed",
    )  # fmt: skip
    platform.batch.terminate_service_job(jobId=first, reason="enough")
    assert ended(platform, first)["statusReason"] == "enough"
    assert described(platform, second)["status"] in ("SCHEDULED", "STARTING", "RUNNING")
    listed = platform.batch.list_service_jobs(
        jobQueue=queue, filters=[{"name": "JOB_NAME", "values": ["*"]}], maxResults=2
    )
    assert [one["jobName"] for one in listed["jobSummaryList"]] == ["third", "second"]
    rest = platform.batch.list_service_jobs(
        jobQueue=queue,
        filters=[{"name": "JOB_NAME", "values": ["*"]}],
        nextToken=listed["nextToken"],
    )
    assert [one["jobName"] for one in rest["jobSummaryList"]] == ["first"]
    runnable = platform.batch.list_service_jobs(jobQueue=queue, jobStatus="RUNNABLE")
    assert runnable["jobSummaryList"] == []
    platform.batch.terminate_service_job(jobId=second, reason="done")
    ended(platform, second)


def test_what_a_queue_refuses(platform: SimpleNamespace) -> None:
    queue = made_queue(platform, "refuses")
    assert "not found" in refusal(platform, "no-such-queue")
    assert "shareIdentifier" in refusal(platform, queue, shareIdentifier="a")
    policy = "arn:aws:batch:us-east-1:000000000000:scheduling-policy/fair"
    assert "shareIdentifier" in refusal(
        platform, made_queue(platform, "shares", schedulingPolicyArn=policy)
    )
    job = submit(platform, queue, "once", "quick", clientToken="t1")
    assert "clientToken" in refusal(platform, queue, clientToken="t1")
    ended(platform, job)
    platform.batch.update_job_queue(jobQueue=queue, state="DISABLED")
    assert "not enabled" in refusal(platform, queue)
    [found] = platform.batch.describe_job_queues(jobQueues=[queue])["jobQueues"]
    assert (found["state"], found["jobQueueType"]) == ("DISABLED", "SAGEMAKER_TRAINING")
    assert platform.batch.describe_job_queues(jobQueues=["no-such-queue"])["jobQueues"] == []


def test_payload_that_sagemaker_refuses_fails_the_job(platform: SimpleNamespace) -> None:
    queue = made_queue(platform, "payload")
    payload = job_request("bad", OutputDataConfig={"S3OutputPath": "s3://no-such-bucket-at-all/x"})
    job = described(platform, submit(platform, queue, "bad", payload=payload))
    assert job["status"] == "FAILED" and job["statusReason"].startswith("ValidationException")


@pytest.mark.parametrize(
    "payload", ["{not json", "[]", {"TrainingJobName": "alone"}, job_request("no name!")]
)
def test_invalid_payload_is_refused_and_blocks_no_other_job(
    platform: SimpleNamespace, payload: Any
) -> None:
    queue = made_queue(platform, f"invalid-{len(payload)}")
    assert "serviceRequestPayload" in refusal(platform, queue, payload=payload)
    nulls = {**job_request("good"), "Tags": None, "Environment": None}
    assert ended(platform, submit(platform, queue, "good", payload=nulls))["status"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        ("list_service_jobs", {"nextToken": "abc"}),
        ("list_service_jobs", {"maxResults": 0}),
        ("list_service_jobs", {"filters": [{"name": "JOB_NAME", "values": []}]}),
        ("list_service_jobs", {"filters": [{"name": "JOB_NAME", "values": ["a"]}] * 2}),
        ("list_service_jobs", {"filters": [{"name": "AFTER_CREATED_AT", "values": ["today"]}]}),
        ("update_job_queue", {"serviceEnvironmentOrder": []}),
        (
            "update_job_queue",
            {"serviceEnvironmentOrder": [{"order": 1, "serviceEnvironment": "none"}]},
        ),
        ("create_service_environment", {"capacityLimits": []}),
        ("create_service_environment", {"capacityLimits": [{"capacityUnit": "NUM_INSTANCES"}]}),
    ],
)
def test_invalid_members_are_refused(
    platform: SimpleNamespace, operation: str, members: dict[str, Any]
) -> None:
    queue = f"members-{operation.replace('_', '-')}"
    if not platform.batch.describe_job_queues(jobQueues=[queue])["jobQueues"]:
        made_queue(platform, queue)
    target = {"serviceEnvironmentName": "new", "serviceEnvironmentType": "SAGEMAKER_TRAINING"}
    where = target if operation.startswith("create") else {"jobQueue": queue}
    with pytest.raises(ClientError) as refused:
        getattr(platform.batch, operation)(**where, **members)
    assert refused.value.response["Error"]["Code"] == "ClientException"


class FailingSageMaker:
    """A SageMaker service whose CreateTrainingJob raises the error, or succeeds without one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def check(self, action: str, request: dict[str, Any]) -> None:
        pass

    def call(self, action: str, region: str, request: dict[str, Any]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}


def batch_of(folder: Path, sagemaker: Any) -> tuple[Batch, str]:
    """Return a Batch with an environment and a queue, and a service job in it."""
    batch, region = Batch(RecordStore(folder), "000000000000", sagemaker), "us-east-1"
    environment = batch.create_environment(
        region, {"serviceEnvironmentName": "e", "capacityLimits": [{"maxCapacity": 1}]}
    )
    used = [{"order": 1, "serviceEnvironment": environment["serviceEnvironmentArn"]}]
    batch.create_queue(region, {"jobQueueName": "q", "serviceEnvironmentOrder": used})
    request = {"jobName": "j", "jobQueue": "q", "serviceRequestPayload": '{"TrainingJobName": "j"}'}
    return batch, batch.submit(region, request)["jobId"]


def test_job_that_the_platform_cannot_start_fails_or_waits_for_the_disk(tmp_path: Path) -> None:
    batch, job = batch_of(tmp_path / "broken", FailingSageMaker(IndexError("odd")))
    found = batch.describe("us-east-1", {"jobId": job})
    assert (found["status"], found["statusReason"]) == ("FAILED", "IndexError: odd")
    assert "latestAttempt" not in found
    sagemaker = FailingSageMaker(NotSaved("the disk is full"))
    batch, job = batch_of(tmp_path / "full", sagemaker)
    assert batch.describe("us-east-1", {"jobId": job})["status"] == "RUNNABLE"
    sagemaker.error = None
    assert batch.describe("us-east-1", {"jobId": job})["status"] == "SCHEDULED"


def test_unusable_records_are_left_out(tmp_path: Path) -> None:
    _, job = batch_of(tmp_path, FailingSageMaker())
    [path] = tmp_path.rglob(f"{job}.json")
    record = json.loads(path.read_text())
    queue = {"jobQueueArn": "arn:aws:batch:us-east-1:000000000000:job-queue/odd"}
    odd = {
        "short": {"region": "us-east-1", "id": "short"},
        "no-time": {**record, "id": "no-time", "times": {}},
        "queue": {
            "arn": queue["jobQueueArn"],
            "resource": {**queue, "serviceEnvironmentOrder": []},
        },
    }
    for name, content in odd.items():
        path.with_name(f"{name}.json").write_text(json.dumps(content))
    store = RecordStore(tmp_path)
    batch = Batch(store, "000000000000", FailingSageMaker())  # type: ignore[arg-type]
    batch.load()
    assert len(store.ledger.damaged()) == len(odd)
    assert batch.describe("us-east-1", {"jobId": job})["status"] == "RUNNING"


def test_queued_jobs_outlive_the_server(tmp_path: Path) -> None:
    serve = contextmanager(serve_platform)
    with serve(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="results")
        queue = made_queue(platform, "kept")
        first, second = (submit(platform, queue, name) for name in ("running", "waiting"))
        assert described(platform, second)["status"] == "RUNNABLE"
    with serve(tmp_path) as platform:
        assert ended(platform, first)["status"] == "FAILED", "its training job was stopped"
        assert described(platform, second)["latestAttempt"]
        platform.batch.terminate_service_job(jobId=second, reason="done")
        ended(platform, second)
