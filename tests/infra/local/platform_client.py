"""Clients, requests and waits for tests of a served platform."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
from botocore.config import Config

from infra.local.server import running
from infra.local.server_contract import ServerConfig
from tests.infra.local.platform_fakes import IMAGE_URI, FakeEngine, FakeImageStore

ROLE_ARN = "arn:aws:iam::000000000000:role/SageMakerRole"


def client(endpoint: str, service: str, region: str = "us-east-1") -> Any:
    """An unmodified client that gives up at once rather than retry."""
    return boto3.client(
        service,
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id="anything",
        aws_secret_access_key="goes",
        config=Config(retries={"total_max_attempts": 1}),
    )


def job_request(name: str, program: str = "quick", **changes: Any) -> dict[str, Any]:
    """A valid CreateTrainingJob request without input channels; `changes` replace top-level members."""
    return {
        "TrainingJobName": name,
        "AlgorithmSpecification": {"TrainingImage": IMAGE_URI, "TrainingInputMode": "File"},
        "RoleArn": ROLE_ARN,
        "HyperParameters": {"program": program},
        "OutputDataConfig": {"S3OutputPath": "s3://results/jobs"},
        "ResourceConfig": {"InstanceType": "ml.local.small", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        **changes,
    }


def resources(count: int, instance_type: str = "ml.local.small") -> dict[str, Any]:
    return {"InstanceType": instance_type, "InstanceCount": count, "VolumeSizeInGB": 1}


def wait_until(condition: Callable[[], Any], deadline_seconds: float = 15.0) -> Any:
    """The first truthy value of `condition`; fails the test after the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the deadline passed"
        time.sleep(0.02)
    return value


def wait_for_end(sagemaker: Any, name: str) -> dict[str, Any]:
    """The job's description once it is over."""

    def over() -> dict[str, Any] | None:
        job = sagemaker.describe_training_job(TrainingJobName=name)
        return job if job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped") else None

    return wait_until(over)


def wait_for_phase(sagemaker: Any, name: str, phase: str) -> None:
    wait_until(lambda: sagemaker.describe_training_job(TrainingJobName=name)["SecondaryStatus"] == phase)


def serve_platform(state_dir: Path, **quotas: int) -> Iterator[SimpleNamespace]:
    """The platform in this process; a generator, so that fixtures and tests can both enter it."""
    engine, images = FakeEngine(state_dir / "engine"), FakeImageStore()
    config = ServerConfig(port=0, state_dir=state_dir, quotas=quotas)
    with running(config, lambda folder, endpoint: (engine, images)) as endpoint:
        yield SimpleNamespace(
            endpoint=endpoint,
            engine=engine,
            images=images,
            sagemaker=client(endpoint, "sagemaker"),
            s3=client(endpoint, "s3"),
            logs=client(endpoint, "logs"),
            ecr=client(endpoint, "ecr"),
            codebuild=client(endpoint, "codebuild"),
        )
