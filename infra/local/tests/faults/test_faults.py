"""Faults of a plan: API errors by call number, and failures of named jobs while they queue or
train."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    job_request,
    phases,
    resources,
    run_job,
    serve_platform,
    session,
    wait_for_end,
    wait_for_phase,
)
from sagemaker_emulator.interfaces import JobSpec, Node


@contextmanager
def platform_with(
    folder: Path, *faults: dict[str, Any], **options: Any
) -> Iterator[SimpleNamespace]:
    """Serve a platform with a fault plan, whose programs print a line and then wait or end."""

    def line(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        say("step 1")
        stop.wait()

    with contextmanager(serve_platform)(folder, faults, **options) as served:
        served.s3.create_bucket(Bucket="results")
        served.engine.programs["line"] = line
        yield served


def codes(call: Callable[[], Any], count: int) -> list[str | None]:
    """Return the error codes of `count` calls, with None for calls that succeeded."""
    found: list[str | None] = []
    for _ in range(count):
        try:
            call()
            found.append(None)
        except ClientError as error:
            found.append(error.response["Error"]["Code"])
    return found


def test_throttling_hits_the_calls_it_numbers(tmp_path: Path) -> None:
    rule = {"fault": "throttle", "operation": "ListTrainingJobs", "calls": [2, 3]}
    with platform_with(tmp_path, rule) as platform:
        with pytest.raises(ClientError, match=r"\(ThrottlingException\).*Rate exceeded"):
            platform.sagemaker.list_training_jobs()
            platform.sagemaker.list_training_jobs()
        assert codes(platform.sagemaker.list_training_jobs, 3) == [
            "ThrottlingException",
            None,
            None,
        ]


def test_boto3_retries_over_a_short_throttling(tmp_path: Path) -> None:
    """A user's client retries in this way.

    The plan counts HTTP calls, including botocore's retries.
    """
    rule = {"fault": "throttle", "operation": "ListTrainingJobs", "calls": [1, 2]}
    with platform_with(tmp_path, rule) as platform:
        config = Config(retries={"total_max_attempts": 3, "mode": "standard"})
        own = session(platform.endpoint)
        patient = own.client("sagemaker", endpoint_url=platform.endpoint, config=config)
        answer = patient.list_training_jobs()
        assert answer["ResponseMetadata"]["RetryAttempts"] == 2


def test_error_by_job_name_and_by_another_service(tmp_path: Path) -> None:
    refused = {"fault": "error", "operation": "CreateTrainingJob", "calls": [1, 1], "jobs": "b-*"}
    ecr = {"fault": "error", "service": "ecr", "operation": "DescribeRepositories", "calls": [1, 1]}
    rules = [
        refused | {"code": "AccessDeniedException", "message": "no"},
        ecr | {"code": "ServerException"},
    ]
    with platform_with(tmp_path, *rules) as platform:
        platform.sagemaker.create_training_job(**job_request("a-1"))
        with pytest.raises(ClientError, match=r"\(AccessDeniedException\).*no$"):
            platform.sagemaker.create_training_job(**job_request("b-1"))
        platform.sagemaker.create_training_job(**job_request("b-1"))
        assert codes(platform.ecr.describe_repositories, 2) == ["ServerException", None]
        assert [
            job["TrainingJobName"]
            for job in platform.sagemaker.list_training_jobs()["TrainingJobSummaries"]
        ] == [
            "a-1",
            "b-1",
        ]


def test_error_with_a_servers_status(tmp_path: Path) -> None:
    rule = {
        "fault": "error",
        "operation": "ListTrainingJobs",
        "calls": [1, 1],
        "code": "InternalFailure",
    }
    with platform_with(tmp_path, rule | {"http_status": 503}) as platform:
        with pytest.raises(ClientError) as caught:
            platform.sagemaker.list_training_jobs()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503


def test_the_platforms_own_calls_are_spared(tmp_path: Path) -> None:
    rule = {"fault": "throttle", "service": "logs", "operation": "PutLogEvents", "calls": [1, 1000]}
    with platform_with(tmp_path, rule) as platform:
        run_job(platform, "logged")
        group = "/aws/sagemaker/TrainingJobs"
        [stream] = platform.logs.describe_log_streams(logGroupName=group)["logStreams"]
        events = platform.logs.get_log_events(
            logGroupName=group, logStreamName=stream["logStreamName"]
        )["events"]
        assert len(events) == 3


def test_pending_job_lets_others_pass(tmp_path: Path) -> None:
    rules = [
        {"fault": "pending", "jobs": "slowest", "seconds": 3600},
        {"fault": "pending", "jobs": "slow", "seconds": 0.5},
    ]
    with platform_with(tmp_path, *rules) as platform:
        platform.sagemaker.create_training_job(**job_request("slowest"))
        quick = run_job(platform, "quick")
        slowest = platform.sagemaker.describe_training_job(TrainingJobName="slowest")
        assert (quick["TrainingJobStatus"], slowest["SecondaryStatus"]) == ("Completed", "Pending")
        slow = run_job(platform, "slow")
        assert phases(slow) == [
            "Starting",
            "Pending",
            "Downloading",
            "Training",
            "Uploading",
            "Completed",
        ]
        assert (slow["TrainingStartTime"] - slow["CreationTime"]).total_seconds() >= 0.5


def test_capacity_error_after_pending_even_while_another_job_runs(tmp_path: Path) -> None:
    rule = {"fault": "capacity_error", "jobs": "*-n8-*", "seconds": 0.5, "max_jobs": 1}
    with platform_with(tmp_path, rule) as platform:
        platform.sagemaker.create_training_job(**job_request("busy", "endless"))
        wait_for_phase(platform.sagemaker, "busy", "Training")
        job = run_job(platform, "s-n8-a1")
        assert job["FailureReason"].startswith(
            "CapacityError: Unable to provision requested ML compute capacity."
        )
        assert phases(job) == ["Starting", "Pending", "Failed"]
        assert "TrainingStartTime" not in job
        platform.sagemaker.stop_training_job(TrainingJobName="busy")
        assert run_job(platform, "s-n8-a2")["TrainingJobStatus"] == "Completed"  # max_jobs


def test_stop_of_a_pending_job(tmp_path: Path) -> None:
    with platform_with(tmp_path, {"fault": "capacity_error", "seconds": 3600}) as platform:
        platform.sagemaker.create_training_job(**job_request("waits"))
        platform.sagemaker.stop_training_job(TrainingJobName="waits")
        assert phases(wait_for_end(platform.sagemaker, "waits"))[-2:] == ["Stopping", "Stopped"]


INTERNAL_ERROR = "InternalServerError: We encountered an internal error. Please try again."


def test_internal_error_fails_the_job(tmp_path: Path) -> None:
    with platform_with(tmp_path, {"fault": "internal_error", "after_seconds": 0.1}) as platform:
        job = run_job(platform, "lost", "endless")
        assert job["FailureReason"] == INTERNAL_ERROR
        assert phases(job) == ["Starting", "Downloading", "Training", "Failed"]
        assert job["BillableTimeInSeconds"] >= 1


def test_retry_strategy_retries_internal_errors(tmp_path: Path) -> None:
    with platform_with(
        tmp_path, {"fault": "internal_error", "at_line": "step 1", "times": 2}
    ) as platform:
        attempts: list[float] = []

        def third_time(
            job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
        ) -> None:
            attempts.append(time.monotonic())
            say("step 1")
            if len(attempts) < 3:
                stop.wait()

        platform.engine.programs["third-time"] = third_time
        job = run_job(platform, "retried", "third-time", RetryStrategy={"MaximumRetryAttempts": 2})
        assert job["RetryStrategy"] == {"MaximumRetryAttempts": 2}
        segment = ["Starting", "Downloading", "Training"]
        assert phases(job) == [*segment * 3, "Uploading", "Completed"]
        message = job["SecondaryStatusTransitions"][3]["StatusMessage"]
        assert "retry 1 of 2" in message


def test_retries_come_to_an_end(tmp_path: Path) -> None:
    with platform_with(
        tmp_path, {"fault": "internal_error", "after_seconds": 0, "times": 9}
    ) as platform:
        job = run_job(platform, "hopeless", "endless", RetryStrategy={"MaximumRetryAttempts": 1})
        assert job["FailureReason"] == INTERNAL_ERROR
        assert phases(job).count("Training") == 2


def test_algorithm_error_is_not_retried(tmp_path: Path) -> None:
    rule = {"fault": "algorithm_error", "node": "algo-2", "at_line": "step 1"}
    with platform_with(tmp_path, rule) as platform:
        retry = {"MaximumRetryAttempts": 3}
        job = run_job(platform, "killed", "line", ResourceConfig=resources(2), RetryStrategy=retry)
        assert job["FailureReason"].startswith("AlgorithmError: algo-2 ")
        assert job["FailureReason"].endswith("exit code: 137")
        assert phases(job).count("Training") == 1


def test_stop_comes_before_a_fault(tmp_path: Path) -> None:
    with platform_with(tmp_path, {"fault": "internal_error", "after_seconds": 3600}) as platform:
        platform.sagemaker.create_training_job(**job_request("stopped", "line"))
        wait_for_phase(platform.sagemaker, "stopped", "Training")
        platform.sagemaker.stop_training_job(TrainingJobName="stopped")
        assert wait_for_end(platform.sagemaker, "stopped")["TrainingJobStatus"] == "Stopped"


def test_node_that_the_job_has_not(tmp_path: Path) -> None:
    with platform_with(
        tmp_path, {"fault": "algorithm_error", "node": "algo-2", "after_seconds": 0}
    ) as platform:
        assert run_job(platform, "single")["TrainingJobStatus"] == "Completed"


def test_faults_of_a_jobs_own_environment(tmp_path: Path) -> None:
    with platform_with(tmp_path) as platform:
        own = json.dumps([{"fault": "internal_error", "after_seconds": 0}])
        job = run_job(platform, "own", "endless", Environment={"NODESWEEP_FAULTS": own})
        assert job["FailureReason"] == INTERNAL_ERROR


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[", "NODESWEEP_FAULTS .*JSON"),
        ('{"fault": "pending"}', r"NODESWEEP_FAULTS\[0\].seconds: "),
        (
            '[{"fault": "throttle", "operation": "CreateTrainingJob", "calls": [1, 1]}]',
            "throttle",
        ),
    ],
)
def test_bad_faults_of_a_job_are_refused(tmp_path: Path, text: str, fact: str) -> None:
    with (
        platform_with(tmp_path) as platform,
        pytest.raises(ClientError, match=rf"\(ValidationException\).*{fact}"),
    ):
        platform.sagemaker.create_training_job(
            **job_request("bad", Environment={"NODESWEEP_FAULTS": text})
        )
