"""Job features in the CreateTrainingJob request, and every request checked against botocore's model
of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.model import ListShape, MapShape, Shape, StructureShape
from botocore.validate import ParamValidator

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import load_config
from nodesweep.scaling import names
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import plan_arms, plan_sweep
from tests.nodesweep.launch.sagemaker.rendered import build_request, request_digest

SWEEP = "bench-20260102030405-0a1b2c3d"
JOBS = f"s3://bench-bucket/nodesweep/sweeps/{SWEEP}/jobs"
INPUTS = ResolvedInputs(
    sweep_id=SWEEP,
    image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/nodesweep@sha256:" + "a" * 64,
    dataset_uri="s3://bench-bucket/nodesweep/datasets/digits/0123456789abcdef/data/",
)
EXAMPLES = sorted((Path(__file__).resolve().parents[4] / "configs" / "examples").glob("*.yaml"))
VPC = {"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]}
EVERYTHING: dict[str, Any] = {
    "checkpoints": {},
    "vpc": VPC,
    "encrypt_inter_container_traffic": True,
    "volume_kms_key_id": "alias/volumes",
    "output_kms_key_id": "alias/output",
    "extra_channels": {
        "corpus": {"type": "FSxLustre", "id": "fs-0123456789abcdef0", "directory_path": "/fsx/a"},
        "labels": {"type": "S3", "uri": "s3://other/labels/", "input_mode": "Pipe"},
    },
    "tensorboard": True,
    "retry_attempts": 2,
    "tags": {"owner": "vision", "cost-centre": "4711"},
    "environment": {"NCCL_DEBUG": "WARN"},
    "metric_definitions": {"loss": "loss=([0-9.]+)"},
}
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p5-march"
MLFLOW = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/bench"
CAPACITY: dict[str, Any] = {
    "training_plan_arn": PLAN,
    "infra_check": True,
    "placement": {"ultra_server_id": "us-0123"},
    "mlflow": {"resource_arn": MLFLOW, "experiment_name": "scaling"},
}
SPOT = {"spot": {"max_wait_seconds": 7200}}


def requests_of(config):
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    return [build_request(config, point, INPUTS) for point in plan.points]


@pytest.fixture
def request_with(make_config):
    """Return the first request of the small config with these training settings, as in
    request_with(spot=…)."""

    def make(dataset=None, **training):
        return requests_of(make_config(training=training, dataset=dataset or {}))[0]

    return make


@pytest.fixture(scope="module")
def service_shape():
    return (
        botocore.session.get_session()
        .get_service_model("sagemaker")
        .operation_model("CreateTrainingJob")
        .input_shape
    )


def test_spot_sets_the_flag_and_the_longest_wait(request_with):
    request = request_with(**SPOT)
    assert request["EnableManagedSpotTraining"] is True
    assert request["StoppingCondition"] == {
        "MaxRuntimeInSeconds": 3600,
        "MaxWaitTimeInSeconds": 7200,
    }


def test_checkpoints_lie_under_the_jobs_own_prefix(request_with):
    request = request_with(checkpoints={})
    assert request["CheckpointConfig"] == {
        "S3Uri": f"{JOBS}/{request['TrainingJobName']}/checkpoints",
        "LocalPath": "/opt/ml/checkpoints",
    }


def test_another_attempt_has_its_own_checkpoints_and_the_same_digest(make_config):
    config = make_config(training={"checkpoints": {}})
    point = plan_sweep(config, load_catalogue().get("ml.m5.xlarge")).points[0]
    first, second = (build_request(config, point, INPUTS, attempt) for attempt in (1, 2))
    assert request_digest(first) == request_digest(second)
    assert first["CheckpointConfig"]["S3Uri"] != second["CheckpointConfig"]["S3Uri"]
    elsewhere = {
        **first,
        "CheckpointConfig": {**first["CheckpointConfig"], "LocalPath": "/opt/ml/other"},
    }
    assert request_digest(elsewhere) != request_digest(first)


def test_the_tag_holds_the_digest_of_the_whole_request(make_config):
    for request in requests_of(make_config(training=EVERYTHING)):
        tags = {tag["Key"]: tag["Value"] for tag in request["Tags"]}
        assert tags[names.TAG_REQUEST_DIGEST] == request_digest(request)


def test_a_warm_pool_and_the_volumes_key_are_the_nodes(request_with):
    request = request_with(keep_alive_seconds=0, volume_kms_key_id="alias/volumes")
    assert request["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 0
    assert request["ResourceConfig"]["VolumeKmsKeyId"] == "alias/volumes"


def test_a_training_plan_is_of_the_nodes(request_with):
    request = request_with(training_plan_arn=PLAN)
    assert request["ResourceConfig"]["TrainingPlanArn"] == PLAN
    assert "TrainingPlanArn" not in request_with()["ResourceConfig"]


def test_the_whole_request_of_a_job_on_a_plan(request_with, snapshot):
    assert request_with(**CAPACITY) == snapshot


def test_placement_is_of_all_nodes_of_a_job(make_config):
    requests = requests_of(make_config(training={"placement": {"ultra_server_id": "us-0123"}}))
    for resources in (request["ResourceConfig"] for request in requests):
        assert resources["InstancePlacementConfig"] == {
            "EnableMultipleJobs": False,
            "PlacementSpecifications": [
                {"UltraServerId": "us-0123", "InstanceCount": resources["InstanceCount"]}
            ],
        }
    shared = requests_of(make_config(training={"placement": {"share_ultra_servers": True}}))
    assert shared[0]["ResourceConfig"]["InstancePlacementConfig"] == {"EnableMultipleJobs": True}


def test_mlflow_has_a_default_experiment(request_with):
    request = request_with(mlflow={"resource_arn": MLFLOW})
    assert request["MlflowConfig"] == {"MlflowResourceArn": MLFLOW}


def test_each_type_of_a_sweep_has_its_own_plan(make_config):
    plans = {"ml.m5.2xlarge": PLAN}
    config = make_config(
        training={"training_plan_arns": plans},
        sweep={"instance_types": ["ml.m5.xlarge", "ml.m5.2xlarge"]},
    )
    types = [load_catalogue().get(name) for name in config.instance_types]
    requests = [build_request(config, point, INPUTS) for point in plan_arms(config, types).points]
    assert {
        each["ResourceConfig"]["InstanceType"]: each["ResourceConfig"].get("TrainingPlanArn")
        for each in requests
    } == {"ml.m5.xlarge": None, **plans}


def test_network_and_output(request_with):
    request = request_with(
        vpc=VPC, encrypt_inter_container_traffic=True, output_kms_key_id="alias/output"
    )
    assert request["VpcConfig"] == {
        "Subnets": ["subnet-1", "subnet-2"],
        "SecurityGroupIds": ["sg-1"],
    }
    assert request["EnableInterContainerTrafficEncryption"] is True
    assert request["OutputDataConfig"] == {"S3OutputPath": JOBS, "KmsKeyId": "alias/output"}


def test_the_input_mode_is_the_datasets(request_with):
    request = request_with(dataset={"input_mode": "FastFile"})
    assert request["AlgorithmSpecification"]["TrainingInputMode"] == "FastFile"
    assert request["InputDataConfig"][0]["InputMode"] == "FastFile"


def test_extra_channels_follow_the_datasets_in_order_of_name(request_with):
    channels = {
        "labels": {
            "type": "S3",
            "uri": "s3://other/labels/",
            "distribution": "ShardedByS3Key",
            "input_mode": "Pipe",
        },
        "corpus": {
            "type": "EFS",
            "id": "fs-01234567",
            "directory_path": "/corpus",
            "access_mode": "rw",
        },
    }
    dataset, corpus, labels = request_with(extra_channels=channels, vpc=VPC)["InputDataConfig"]
    assert dataset["ChannelName"] == "training"
    assert corpus == {
        "ChannelName": "corpus",
        "DataSource": {
            "FileSystemDataSource": {
                "FileSystemId": "fs-01234567",
                "FileSystemType": "EFS",
                "FileSystemAccessMode": "rw",
                "DirectoryPath": "/corpus",
            }
        },
        "InputMode": "File",
    }
    assert labels == {
        "ChannelName": "labels",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": "s3://other/labels/",
                "S3DataDistributionType": "ShardedByS3Key",
            }
        },
        "InputMode": "Pipe",
    }


def test_tensorboard_retries_and_tags(request_with):
    request = request_with(tensorboard=True, retry_attempts=2, tags={"owner": "vision"})
    assert request["TensorBoardOutputConfig"] == {
        "LocalPath": "/opt/ml/output/tensorboard",
        "S3OutputPath": JOBS,
    }
    assert request["Environment"]["TENSORBOARD_DIR"] == "/opt/ml/output/tensorboard", (
        "where the program writes"
    )
    own = request_with(tensorboard=True, environment={"TENSORBOARD_DIR": "/tmp/tb"})
    assert own["Environment"]["TENSORBOARD_DIR"] == "/tmp/tb"
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 2}
    assert request["Tags"][-1] == {"Key": "owner", "Value": "vision"} and len(request["Tags"]) == 6


def test_the_digest_says_nothing_of_tags(request_with):
    assert (
        request_with()["TrainingJobName"]
        == request_with(tags={"owner": "vision"})["TrainingJobName"]
    )


@pytest.mark.parametrize(
    "training",
    [
        {**EVERYTHING, **SPOT},
        {**EVERYTHING, "keep_alive_seconds": 600},
        {**EVERYTHING, **CAPACITY},
    ],
)
def test_a_request_with_every_feature_is_what_the_service_takes(
    training, make_config, service_shape
):
    for request in requests_of(make_config(training=training)):
        assert_valid(request, service_shape)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_requests_are_what_the_service_takes(path, service_shape):
    for request in requests_of(load_config(path)):
        assert_valid(request, service_shape)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("RetryStrategy", {"MaximumRetryAttempts": 31}),
        ("Environment", {"A-B": "x"}),
        ("VpcConfig", {"Subnets": ["s"] * 17, "SecurityGroupIds": ["s"]}),
        ("ProfilerConfig", {"S3OutputPath": "ftp://x"}),
    ],
)
def test_the_comparison_with_the_model_finds_what_is_broken(member, value, service_shape, snapshot):
    (problem,) = model_problems({member: value}, service_shape)
    assert problem == snapshot


def assert_valid(request: dict[str, Any], shape: StructureShape) -> None:
    assert ParamValidator().validate(request, shape).generate_report() == ""
    assert model_problems(request, shape) == []


def model_problems(value: Any, shape: Shape, path: str = "") -> list[str]:
    """Check the maxima, patterns and enumerations of the model, which ParamValidator ignores."""
    found = []
    size = len(value) if hasattr(value, "__len__") else value
    most, pattern, allowed = (shape.metadata.get(key) for key in ("max", "pattern", "enum"))
    if most is not None and size > most:
        found.append(f"{path}: {size} > {most}")
    if pattern is not None and "\\p" not in pattern and not re.fullmatch(pattern, value):
        found.append(f"{path}: does not match {pattern}")
    if allowed and value not in allowed:
        found.append(f"{path}: {value} is none of the enumeration")
    if isinstance(shape, StructureShape):
        for name, member in value.items():
            found += model_problems(member, shape.members[name], f"{path}.{name}".lstrip("."))
    elif isinstance(shape, ListShape):
        for place, item in enumerate(value):
            found += model_problems(item, shape.member, f"{path}[{place}]")
    elif isinstance(shape, MapShape):
        for key, item in value.items():
            found += model_problems(key, shape.key, f"{path}.{key}")
            found += model_problems(item, shape.value, f"{path}.{key}")
    return found
