"""Turn a PlannedPoint into a CreateTrainingJob request.

The wire format is that of the SageMaker training toolkit (SDK v2).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.job import FileSystemConfig, S3ChannelConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.training import TrainingConfig
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec
from nodesweep.scaling.outcome.observed import SWITCH
from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_STEPS
from nodesweep.scaling.planning.members import given, network_members
from nodesweep.scaling.planning.plan import PlannedPoint, fill_placeholders
from nodesweep.scaling.planning.workload import workload_variables
from nodesweep.scaling.rules.distribution import distribution_hyperparameters
from nodesweep.scaling.rules.distribution.option import Value
from nodesweep.scaling.rules.plan import hyperparameter_problems

TENSORBOARD_PATH = "/opt/ml/output/tensorboard"
"""SageMaker's default path for TensorBoard logs in a container."""


@dataclass(frozen=True)
class ResolvedInputs:
    """The results of earlier stages that a request needs besides config and point.

    `dataset_uri` is None if the config has no dataset. `dataset_folders` are the folders below it
    that become channels if dataset.channel is null.
    """

    sweep_id: str
    image_uri: str
    dataset_uri: str | None
    source_uri: str | None = None
    dataset_folders: tuple[str, ...] = ()


def build_request(
    config: BenchmarkConfig,
    point: PlannedPoint,
    inputs: ResolvedInputs,
    attempt: int = 1,
    steps: int | None = None,
) -> dict[str, Any]:
    """Return the complete CreateTrainingJob request of one attempt at a point.

    Args:
        config: The benchmark.
        point: The point to run.
        inputs: The results of earlier stages.
        attempt: Number of the attempt, from 1.
        steps: Steps for the program to make, if the sweep has sized them
            (nodesweep/scaling/planning/workload.py).

    Raises:
        ValueError: A SageMaker limit is exceeded.
    """
    amount = workload_variables(config, point, steps)
    config = config.of_arm(point.arm.name)
    training, platform = config.training, config.platform
    jobs_uri = (
        f"s3://{platform.bucket}/{names.sweep_output_prefix(platform.prefix, inputs.sweep_id)}"
    )
    request: dict[str, Any] = {
        "AlgorithmSpecification": _algorithm(config, inputs),
        "RoleArn": platform.role_arn,
        **_input_data([*_dataset_channels(config, inputs), *_extra_channels(training)]),
        "OutputDataConfig": {
            "S3OutputPath": jobs_uri,
            **given(KmsKeyId=training.output_kms_key_id),
        },
        "ResourceConfig": {
            "InstanceType": training.instance_type,
            "InstanceCount": point.nodes,
            "VolumeSizeInGB": training.volume_size_gb,
            **given(
                VolumeKmsKeyId=training.volume_kms_key_id,
                KeepAlivePeriodInSeconds=training.keep_alive_seconds,
                TrainingPlanArn=training.training_plan_arn,
                InstancePlacementConfig=_placement(training, point.nodes),
            ),
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": training.max_runtime_seconds},
        "HyperParameters": _hyperparameters(config, point, inputs),
        # The profiler samples every node during training, which would distort a benchmark.
        "ProfilerConfig": {"DisableProfiler": True},
        **_features(training, jobs_uri),
    }
    if training.spot is not None:
        request["EnableManagedSpotTraining"] = True
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = training.spot.max_wait_seconds
    environment = dict(training.environment)
    if inputs.source_uri is not None:
        # In the toolkit the image's SAGEMAKER_PROGRAM overrides the hyperparameter; the job's
        # environment overrides the image's.
        environment["SAGEMAKER_PROGRAM"] = training.entry_point
    if training.tensorboard:
        environment.setdefault("TENSORBOARD_DIR", TENSORBOARD_PATH)
    if training.measure != "auto":
        environment[SWITCH] = training.measure
    environment |= _probe_variables(config, point) | amount
    if environment:
        request["Environment"] = environment
    if training.checkpoints is not None:
        request["CheckpointConfig"] = {"LocalPath": training.checkpoints.local_path}
    return _named(config, request, point, inputs, attempt)


def build_spec(
    config: BenchmarkConfig,
    point: PlannedPoint,
    inputs: ResolvedInputs,
    attempt: int = 1,
    steps: int | None = None,
) -> JobSpec:
    """Return the job of one attempt at a point; the arguments are those of build_request()."""
    request = build_request(config, point, inputs, attempt, steps)
    instance_type = config.of_arm(point.arm.name).training.instance_type
    return JobSpec(request["TrainingJobName"], point.nodes, instance_type, request)


def _probe_variables(config: BenchmarkConfig, point: PlannedPoint) -> dict[str, str]:
    """Return the environment variables that tell a program to end early.

    They are the same for every probe, so that the request digest distinguishes probes from full
    jobs such as the validation run.
    """
    if not config.sweep.ends_early(point.repeat):
        return {}
    ends = config.sweep.probe_ends
    return {ASKED_BY: f"{ends.precision:g}", MOST_STEPS: str(ends.max_steps)}


def _named(
    config: BenchmarkConfig,
    request: dict[str, Any],
    point: PlannedPoint,
    inputs: ResolvedInputs,
    attempt: int,
) -> dict[str, Any]:
    """Return the request, completed with the parts that depend on its own digest.

    These are the job name, the tags, and the S3 prefix of the checkpoints.
    """
    platform, digest = config.platform, names.request_digest(request)
    job = names.job_name(
        inputs.sweep_id, point.nodes, point.repeat, attempt, digest, point.arm.code
    )
    request["HyperParameters"]["sagemaker_job_name"] = json.dumps(job)
    if problems := hyperparameter_problems(request["HyperParameters"]):
        raise ValueError("; ".join(problems))
    if "CheckpointConfig" in request:
        key = names.job_checkpoint_prefix(platform.prefix, inputs.sweep_id, job)
        request["CheckpointConfig"]["S3Uri"] = f"s3://{platform.bucket}/{key}"
    tags = {
        names.TAG_SWEEP_ID: inputs.sweep_id,
        names.TAG_REQUEST_DIGEST: digest,
        "nodesweep:nodes": str(point.nodes),
        "nodesweep:repeat": str(point.repeat),
        "nodesweep:attempt": str(attempt),
        **config.training.tags,
    }
    request["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    return {"TrainingJobName": job, **request}


def _features(training: TrainingConfig, jobs_uri: str) -> dict[str, Any]:
    """Return the request's optional members, as far as they are configured."""
    features = network_members(training)
    if training.tensorboard:
        # SageMaker appends <job>/tensorboard-output, so the logs are next to the job's output.
        features["TensorBoardOutputConfig"] = {
            "LocalPath": TENSORBOARD_PATH,
            "S3OutputPath": jobs_uri,
        }
    if training.retry_attempts is not None:
        features["RetryStrategy"] = {"MaximumRetryAttempts": training.retry_attempts}
    if training.infra_check:
        features["InfraCheckConfig"] = {"EnableInfraCheck": True}
    if training.mlflow is not None:
        features["MlflowConfig"] = {
            "MlflowResourceArn": training.mlflow.resource_arn,
            **given(MlflowExperimentName=training.mlflow.experiment_name),
        }
    return features


def _placement(training: TrainingConfig, nodes: int) -> dict[str, Any] | None:
    """Return InstancePlacementConfig for a job of this many nodes, if it is configured."""
    placement = training.placement
    if placement is None:
        return None
    ultra_server = placement.ultra_server_id
    on_one = [{"UltraServerId": ultra_server, "InstanceCount": nodes}]
    return {
        "EnableMultipleJobs": placement.share_ultra_servers,
        **given(PlacementSpecifications=None if ultra_server is None else on_one),
    }


def _algorithm(config: BenchmarkConfig, inputs: ResolvedInputs) -> dict[str, Any]:
    algorithm: dict[str, Any] = {
        "TrainingImage": inputs.image_uri,
        "TrainingInputMode": "File" if config.dataset is None else config.dataset.input_mode,
        "EnableSageMakerMetricsTimeSeries": True,
    }
    if config.training.metric_definitions:
        algorithm["MetricDefinitions"] = [
            {"Name": name, "Regex": regex}
            for name, regex in sorted(config.training.metric_definitions.items())
        ]
    return algorithm


def _input_data(channels: list[dict[str, Any]]) -> dict[str, Any]:
    """Return InputDataConfig, which the service requires to be absent if there are no channels."""
    return {"InputDataConfig": channels} if channels else {}


def _dataset_channels(config: BenchmarkConfig, inputs: ResolvedInputs) -> list[dict[str, Any]]:
    """Return one channel for the dataset, or one per folder of it; none without a dataset."""
    dataset, uri = config.dataset, inputs.dataset_uri
    if dataset is None or uri is None:
        return []
    channel_uris = (
        {dataset.channel: uri}
        if dataset.channel
        else {name: f"{uri}{name}/" for name in inputs.dataset_folders}
    )
    return [
        _s3_channel(name, channel_uri, dataset.distribution, dataset.input_mode)
        for name, channel_uri in sorted(channel_uris.items())
    ]


def _extra_channels(training: TrainingConfig) -> list[dict[str, Any]]:
    return [
        (
            _s3_channel(name, channel.uri, channel.distribution, channel.input_mode)
            if isinstance(channel, S3ChannelConfig)
            else _file_system_channel(name, channel)
        )
        for name, channel in sorted(training.extra_channels.items())
    ]


def _s3_channel(name: str, uri: str, distribution: str, input_mode: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": distribution}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, "InputMode": input_mode}


def _file_system_channel(name: str, channel: FileSystemConfig) -> dict[str, Any]:
    """Return a file system's channel; its InputMode is always File, since it is mounted."""
    source = {
        "FileSystemId": channel.id,
        "FileSystemType": channel.type,
        "FileSystemAccessMode": channel.access_mode,
        "DirectoryPath": channel.directory_path,
    }
    return {
        "ChannelName": name,
        "DataSource": {"FileSystemDataSource": source},
        "InputMode": "File",
    }


def _hyperparameters(
    config: BenchmarkConfig, point: PlannedPoint, inputs: ResolvedInputs
) -> dict[str, str]:
    """Return the user's and the toolkit's hyperparameters, JSON-encoded as the SDK does."""
    training = config.training
    values: dict[str, Value] = {
        key: fill_placeholders(value, point) for key, value in training.hyperparameters.items()
    }
    values["sagemaker_program"] = training.entry_point
    values["sagemaker_container_log_level"] = 20
    values["sagemaker_region"] = config.platform.region
    if inputs.source_uri is not None:
        values["sagemaker_submit_directory"] = inputs.source_uri
    instance = load_catalogue().get(training.instance_type)
    values |= distribution_hyperparameters(training.distribution, instance)
    return {key: json.dumps(value) for key, value in values.items()}
