"""Members of a request that are accepted and recorded, that have an effect here, or that are
refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import job_request, resources, run_job, wait_until
from sagemaker_emulator.interfaces import JobSpec, Node

KEY = "arn:aws:kms:us-east-1:000000000000:key/1"
RECORDED: dict[str, Any] = {
    "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1", "subnet-2"]},
    "OutputDataConfig": {"S3OutputPath": "s3://results/jobs", "KmsKeyId": KEY},
    "ResourceConfig": {**resources(1), "VolumeKmsKeyId": KEY},
    "EnableInterContainerTrafficEncryption": True,
    "EnableNetworkIsolation": True,
    "Environment": {"NCCL_DEBUG": "INFO"},
    "RetryStrategy": {"MaximumRetryAttempts": 30},
    "TensorBoardOutputConfig": {
        "S3OutputPath": "s3://results/tb",
        "LocalPath": "/opt/ml/output/tensorboard",
    },
    "InfraCheckConfig": {"EnableInfraCheck": True},
    "MlflowConfig": {
        "MlflowResourceArn": "arn:aws:sagemaker:us-east-1:000000000000:mlflow-app/bench",
        "MlflowExperimentName": "scaling",
    },
    "ProfilerConfig": {"S3OutputPath": "s3://results/profiler", "DisableProfiler": False},
    "DebugHookConfig": {"S3OutputPath": "s3://results/debug"},
    "CheckpointConfig": {"S3Uri": "s3://results/cp", "LocalPath": "/opt/ml/checkpoints"},
}
IMAGE = job_request("any")["AlgorithmSpecification"]


def test_describe_gives_back_what_was_asked(platform: SimpleNamespace) -> None:
    job = run_job(platform, "recorded", **RECORDED)
    assert job["TrainingJobStatus"] == "Completed"
    assert {name: job[name] for name in RECORDED} == RECORDED
    assert job["ProfilingStatus"] == "Disabled"  # there is no profiling


def test_environment_reaches_the_nodes(platform: SimpleNamespace) -> None:
    seen: list[Any] = []

    def look(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        seen.append(dict(job.environment))

    platform.engine.programs["look"] = look
    run_job(platform, "environment", "look", Environment={"A": "1"})
    assert seen == [{"A": "1"}]


def test_what_a_job_is_given_is_in_the_record_and_for_whoever_may_describe_it(
    platform: SimpleNamespace,
) -> None:
    platform.engine.programs["given"] = lambda job, node, say, stop: None
    run_job(platform, "given", "given", Environment={"HF_TOKEN": "Pl4nted-token"})
    described = platform.sagemaker.describe_training_job(TrainingJobName="given")
    assert described["Environment"] == {"HF_TOKEN": "Pl4nted-token"}
    folder = Path(platform.state_dir)
    # the engine removes the folder a moment after the job has completed
    wait_until(lambda: not (folder / "engine" / "given").exists(), HANG_SECONDS)
    holders = {
        path.relative_to(folder).parts[0]
        for path in folder.rglob("*")
        if path.is_file() and b"Pl4nted-token" in path.read_bytes()
    }
    assert holders == {"training_jobs"}


@pytest.mark.parametrize("local_path", [None, "/opt/ml/output/tb"])
def test_tensorboard_logs_go_to_s3(platform: SimpleNamespace, local_path: str | None) -> None:
    """The SageMaker SDK looks for them in <S3OutputPath>/<job>/tensorboard-output/."""

    def write(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        folder = node.opt_ml / (local_path or "/opt/ml/output/tensorboard").removeprefix("/opt/ml/")
        (folder / "events.out.tfevents.1").write_text("event")

    platform.engine.programs["write"] = write
    name = f"board-{'own' if local_path else 'default'}"
    config = {
        "S3OutputPath": "s3://results/tb/",
        **({"LocalPath": local_path} if local_path else {}),
    }
    assert (
        run_job(platform, name, "write", TensorBoardOutputConfig=config)["TrainingJobStatus"]
        == "Completed"
    )
    key = f"tb/{name}/tensorboard-output/events.out.tfevents.1"
    assert platform.s3.get_object(Bucket="results", Key=key)["Body"].read() == b"event"


@pytest.mark.parametrize(
    "config",
    [
        {"CheckpointConfig": {"S3Uri": "s3://not-there/cp"}},
        {"TensorBoardOutputConfig": {"S3OutputPath": "s3://not-there/tb"}},
    ],
    ids=["checkpoints", "tensorboard"],
)
def test_folder_without_a_bucket_fails_the_job_before_it_trains(
    platform: SimpleNamespace, config: dict[str, Any]
) -> None:
    """The files in the folder would be lost."""
    job = run_job(platform, f"lost-{next(iter(config)).lower()}", **config)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("ClientError: ") and "not-there" in job["FailureReason"]
    assert job["SecondaryStatusTransitions"][-2]["Status"] == "Downloading"


def channel(**changes: Any) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://results/data/"}
    return {"ChannelName": "train", "DataSource": {"S3DataSource": source}, **changes}


@pytest.mark.parametrize(
    ("default", "own"), [("FastFile", None), ("File", "FastFile"), ("Pipe", "FastFile")]
)
def test_fast_file_is_served_as_file(
    platform: SimpleNamespace, default: str, own: str | None
) -> None:
    platform.s3.put_object(Bucket="results", Key="data/a.csv", Body=b"1")
    seen: list[str] = []

    def read(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        seen.append((node.opt_ml / "input" / "data" / "train" / "a.csv").read_text())

    platform.engine.programs["read"] = read
    algorithm = {**job_request("x")["AlgorithmSpecification"], "TrainingInputMode": default}
    channels = [channel(InputMode=own) if own else channel()]
    run_job(
        platform,
        f"mode-{default}",
        "read",
        AlgorithmSpecification=algorithm,
        InputDataConfig=channels,
    )
    assert seen == ["1"]


@pytest.mark.parametrize(("default", "own"), [("Pipe", None), ("File", "Pipe"), ("Pipe", "Pipe")])
def test_pipe_mode_is_refused(platform: SimpleNamespace, default: str, own: str | None) -> None:
    platform.s3.put_object(Bucket="results", Key="data/a.csv", Body=b"1")
    algorithm = {**job_request("x")["AlgorithmSpecification"], "TrainingInputMode": default}
    channels = [channel(InputMode=own) if own else channel()]
    with pytest.raises(ClientError, match=r"\(ValidationException\).*Pipe.*FastFile"):
        platform.sagemaker.create_training_job(
            **job_request("pipe", AlgorithmSpecification=algorithm, InputDataConfig=channels)
        )


def test_own_command_reaches_the_nodes(platform: SimpleNamespace) -> None:
    seen: list[Any] = []

    def look(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        seen.append((job.container_entrypoint, job.container_arguments, job.has_own_command))

    platform.engine.programs["look"] = look
    command = {"ContainerEntrypoint": ["/bin/bash"], "ContainerArguments": ["-c", "x" * 256]}
    job = run_job(platform, "command", "look", AlgorithmSpecification={**IMAGE, **command})
    run_job(platform, "no-command", "look")
    assert seen == [(["/bin/bash"], ["-c", "x" * 256], True), ((), (), False)]
    assert {name: job["AlgorithmSpecification"][name] for name in command} == command


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"ContainerEntrypoint": ["absent"]}, "no absent here"),
        ({"ContainerEntrypoint": ["x"] * 101}, "Member must have length less than or equal to 100"),
        ({"ContainerArguments": ["x" * 257]}, "Member must have length less than or equal to 256"),
        ({"ContainerEntrypoint": ["two\nlines"]}, "Member must satisfy regular expression pattern"),
    ],
)
def test_own_command_is_checked_as_the_service_does(
    platform: SimpleNamespace, command: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ClientError, match="ValidationException") as refused:
        request = job_request("command-refused", AlgorithmSpecification={**IMAGE, **command})
        platform.sagemaker.create_training_job(**request)
    assert message in str(refused.value)


def test_placement_is_for_ultra_servers(platform: SimpleNamespace) -> None:
    placed = {**resources(1), "InstancePlacementConfig": {"EnableMultipleJobs": False}}
    with pytest.raises(ClientError, match="UltraServer capacity, not to ml"):
        platform.sagemaker.create_training_job(**job_request("placed", ResourceConfig=placed))
