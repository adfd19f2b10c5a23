"""Clients, requests, and waits for tests of a served platform."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

from infra.local.tests.platform_fakes import IMAGE_URI, FakeEngine, FakeImageStore
from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.interfaces import AccessKey
from sagemaker_emulator.server.backends import with_real_nodes
from sagemaker_emulator.server.contract import STATUS_PATH, ServerConfig
from sagemaker_emulator.server.serving import running

_ONE_AT_A_TIME = threading.Lock()
TESTS_CLIENT = "tests"
"""Suffix of the user agent of clients in tests."""
ROLE_ARN = "arn:aws:iam::000000000000:role/SageMakerRole"


def client(endpoint: str, service: str, region: str = "us-east-1") -> Any:
    """Return a boto3 client with the platform's key that does not retry."""
    return _client(_key_of(endpoint), endpoint, service, region)


def _client(key: AccessKey, endpoint: str, service: str, region: str = "us-east-1") -> Any:
    config = Config(retries={"total_max_attempts": 1}, user_agent_extra=TESTS_CLIENT)
    with _ONE_AT_A_TIME:  # threads can't share a session to create clients
        return _session_without_key().client(
            service,
            region_name=region,
            endpoint_url=endpoint,
            aws_access_key_id=key.id,
            aws_secret_access_key=key.secret,
            config=config,
        )


def _key_of(endpoint: str) -> AccessKey:
    """Return the key in the platform's state folder."""
    return access_keys(Path(status_of(endpoint)["state_dir"])).user


def session(endpoint: str, region: str = "us-east-1") -> boto3.Session:
    """Return a session with the key in the platform's state folder."""
    key = _key_of(endpoint)
    return boto3.Session(key.id, key.secret, region_name=region, botocore_session=_own_session())


@functools.cache
def _session_without_key() -> boto3.Session:
    """Return the session of all clients; a new one costs more CPU time than a client."""
    return boto3.Session(botocore_session=_own_session())


def _own_session() -> botocore.session.Session:
    """Return a session that ignores the user's profiles.

    All sessions share a loader of botocore's models, which are megabytes of JSON.
    """
    own = botocore.session.Session(
        {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
    )
    own.register_component("data_loader", _models())
    return own


@functools.cache
def _models() -> Any:
    return botocore.session.Session().get_component("data_loader")


def status_of(endpoint: str) -> dict[str, Any]:
    """Return the platform's status, even while it is stopping (503)."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        answer = opener.open(endpoint + STATUS_PATH, timeout=300)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return dict(json.load(answer))


class ServedPlatform(SimpleNamespace):
    """The endpoint and parts of a platform. Clients such as `platform.s3` are created on first use.

    Creating a client takes tens of milliseconds.
    """

    SERVICES = ("sagemaker", "s3", "logs", "ecr", "codebuild", "cloudwatch", "sts", "batch")

    @cached_property
    def _key(self) -> AccessKey:
        return _key_of(self.endpoint)

    def __getattr__(self, name: str) -> Any:
        if name not in self.SERVICES:
            raise AttributeError(name)
        setattr(self, name, made := _client(self._key, self.endpoint, name))
        return made


def job_request(name: str, program: str = "quick", **changes: Any) -> dict[str, Any]:
    """Return a valid CreateTrainingJob request without input channels.

    Args:
        name: The job's name.
        program: The hyperparameter that selects the fake engine's program.
        **changes: Replacements of top-level members.
    """
    return {
        "TrainingJobName": name,
        "AlgorithmSpecification": {"TrainingImage": IMAGE_URI, "TrainingInputMode": "File"},
        "RoleArn": ROLE_ARN,
        "HyperParameters": {"program": program},
        "OutputDataConfig": {"S3OutputPath": "s3://results/jobs"},
        "ResourceConfig": {
            "InstanceType": "ml.local.small",
            "InstanceCount": 1,
            "VolumeSizeInGB": 1,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        **changes,
    }


def resources(count: int, instance_type: str = "ml.local.small") -> dict[str, Any]:
    """Return a ResourceConfig."""
    return {"InstanceType": instance_type, "InstanceCount": count, "VolumeSizeInGB": 1}


def made_plan(platform: SimpleNamespace, instance_type: str, count: int, **terms: Any) -> str:
    """Create a training plan named after its instance type, and return its ARN.

    Args:
        platform: The platform.
        instance_type: The reserved instance type.
        count: The number of instances.
        **terms: Further parameters of SearchTrainingPlanOfferings, such as StartTimeAfter.
    """
    found = platform.sagemaker.search_training_plan_offerings(
        InstanceType=instance_type, InstanceCount=count, TargetResources=["training-job"], **terms
    )
    created = platform.sagemaker.create_training_plan(
        TrainingPlanName=f"plan-{instance_type.replace('.', '-')}-{count}-{len(terms)}",
        TrainingPlanOfferingId=found["TrainingPlanOfferings"][0]["TrainingPlanOfferingId"],
    )
    return str(created["TrainingPlanArn"])


def made_queue(platform: SimpleNamespace, name: str, capacity: int = 1, **members: Any) -> str:
    """Create a Batch queue of training jobs with a service environment, and return its ARN.

    Args:
        platform: The platform.
        name: The name of the queue and the service environment.
        capacity: The maximum number of instances of jobs in progress.
        **members: Further parameters of CreateJobQueue, such as schedulingPolicyArn.
    """
    environment = platform.batch.create_service_environment(
        serviceEnvironmentName=name,
        serviceEnvironmentType="SAGEMAKER_TRAINING",
        capacityLimits=[{"maxCapacity": capacity, "capacityUnit": "NUM_INSTANCES"}],
    )
    used = {"order": 1, "serviceEnvironment": environment["serviceEnvironmentArn"]}
    queue = platform.batch.create_job_queue(
        jobQueueName=name,
        priority=1,
        jobQueueType="SAGEMAKER_TRAINING",
        serviceEnvironmentOrder=[used],
        **members,
    )
    return str(queue["jobQueueArn"])


def wait_until(condition: Callable[[], Any], deadline_seconds: float = 300.0) -> Any:
    """Return the first truthy result of `condition`, or fail the test after the deadline.

    Only a hang exceeds the default deadline. Pauses grow to 0.1 s, because a poll can be a call
    that takes milliseconds of CPU time.
    """
    deadline, pause_seconds = time.monotonic() + deadline_seconds, 0.01
    while not (value := condition()):
        assert time.monotonic() < deadline, "the deadline passed"
        time.sleep(pause_seconds)
        pause_seconds = min(1.5 * pause_seconds, 0.1)
    return value


def wait_for_end(sagemaker: Any, name: str) -> dict[str, Any]:
    """Wait until a job has ended, and return its description."""

    def over() -> dict[str, Any] | None:
        job = sagemaker.describe_training_job(TrainingJobName=name)
        return job if job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped") else None

    return wait_until(over)


def run_job(
    platform: SimpleNamespace, name: str, program: str = "quick", **changes: Any
) -> dict[str, Any]:
    """Create a job, wait until it has ended, and return its description."""
    platform.sagemaker.create_training_job(**job_request(name, program, **changes))
    return wait_for_end(platform.sagemaker, name)


def spot_for(seconds: int) -> dict[str, Any]:
    """Return the members of a request for a spot job with this maximum runtime and wait."""
    limits = {"MaxRuntimeInSeconds": seconds, "MaxWaitTimeInSeconds": seconds}
    return {"EnableManagedSpotTraining": True, "StoppingCondition": limits}


def endless_until(platform: SimpleNamespace, name: str, phase: str) -> dict[str, Any]:
    """Run endless spot jobs with growing limits until a job gets that far on this machine."""
    for seconds in (1, 4, 16, 64, 256):
        job = run_job(platform, f"{name}-{seconds}", "endless", **spot_for(seconds))
        if phase in phases(job):
            break
    return job


def phases(job: dict[str, Any]) -> list[str]:
    """Return the secondary statuses of a job in order."""
    return [transition["Status"] for transition in job["SecondaryStatusTransitions"]]


def wait_for_phase(sagemaker: Any, name: str, phase: str) -> None:
    """Wait until a job has this secondary status."""
    wait_until(
        lambda: sagemaker.describe_training_job(TrainingJobName=name)["SecondaryStatus"] == phase
    )


def serve_platform(
    state_dir: Path,
    faults: Sequence[dict[str, Any]] = (),
    cold_start_seconds: float = 0.0,
    file_systems: Mapping[str, Path] | None = None,
    **quotas: int,
) -> Iterator[SimpleNamespace]:
    """Serve a platform with fakes in this process.

    A generator, so that both fixtures and tests can use it.
    """
    engine, images = FakeEngine(state_dir / "engine"), FakeImageStore()
    faults_file = None
    if faults:
        faults_file = state_dir / "faults.json"
        faults_file.write_text(json.dumps({"faults": list(faults)}))
    config = ServerConfig(
        0,
        state_dir,
        quotas=quotas,
        faults_file=faults_file,
        cold_start_seconds=cold_start_seconds,
        file_systems=file_systems or {},
    )
    with running(config, lambda *_: with_real_nodes(config, engine, images)) as endpoint:
        yield ServedPlatform(endpoint=endpoint, state_dir=state_dir, engine=engine, images=images)


def serve_simulated(
    state_dir: Path,
    faults: Sequence[dict[str, Any]] = (),
    model: Mapping[str, Any] | None = None,
    time_scale: float = 0.0,
    processing_leaves: Path | None = None,
    **quotas: int,
) -> Iterator[SimpleNamespace]:
    """Serve a platform with the simulated engine in this process, with a bucket for results."""
    faults_file, model_file = state_dir / "faults.json", state_dir / "model.json"
    faults_file.write_text(json.dumps({"faults": list(faults)}))
    model_file.write_text(json.dumps(model or {}))
    config = ServerConfig(
        0,
        state_dir,
        quotas=quotas,
        faults_file=faults_file,
        engine="simulated",
        model_file=model_file,
        time_scale=time_scale,
        processing_leaves=processing_leaves,
    )
    with running(config) as endpoint:
        served = ServedPlatform(endpoint=endpoint, state_dir=state_dir)
        served.s3.create_bucket(Bucket="results")
        yield served
