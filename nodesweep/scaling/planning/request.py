"""PlannedPoint -> CreateTrainingJob request,
in the wire format of the SageMaker training toolkit (SDK v2).
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
from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_STEPS
from nodesweep.scaling.planning.amount import amount_variables
from nodesweep.scaling.planning.plan import PlannedPoint, fill_placeholders, letter_of
from nodesweep.scaling.rules.distribution import distribution_hyperparameters
from nodesweep.scaling.rules.distribution.option import Value
from nodesweep.scaling.rules.plan import hyperparameter_problems

TENSORBOARD_PATH = "/opt/ml/output/tensorboard"
"""Where SageMaker's containers look for TensorBoard logs by default."""


@dataclass(frozen=True)
class ResolvedInputs:
    """What the earlier stages made: all a request needs beside config and point.

    `dataset_uri` is None where the config has no dataset. `dataset_folders` are the folders under
    it that become channels, where dataset.channel is null.
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
    """The whole CreateTrainingJob request of one attempt at one point, which is told to make so
    many `steps` where a sweep has found how many (nodesweep/scaling/planning/amount.py).
    Raises ValueError where a limit is passed.
    """
    letter = letter_of(config, point.instance_type)
    amount = amount_variables(config, point, steps)
    config = config.of_type(point.instance_type)
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
            **_given(KmsKeyId=training.output_kms_key_id),
        },
        "ResourceConfig": {
            "InstanceType": training.instance_type,
            "InstanceCount": point.nodes,
            "VolumeSizeInGB": training.volume_size_gb,
            **_given(
                VolumeKmsKeyId=training.volume_kms_key_id,
                KeepAlivePeriodInSeconds=training.keep_alive_seconds,
            ),
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": training.max_runtime_seconds},
        "HyperParameters": _hyperparameters(config, point, inputs),
        # The profiler samples every node during training; a benchmark measures without it.
        "ProfilerConfig": {"DisableProfiler": True},
        **_features(training, jobs_uri),
    }
    if training.spot is not None:
        request["EnableManagedSpotTraining"] = True
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = training.spot.max_wait_seconds
    environment = dict(training.environment)
    if inputs.source_uri is not None:
        # In the toolkit the image's ENV SAGEMAKER_PROGRAM beats the hyperparameter; the job's own
        # beats the image's.
        environment["SAGEMAKER_PROGRAM"] = training.entry_point
    if training.tensorboard:
        environment.setdefault("TENSORBOARD_DIR", TENSORBOARD_PATH)
    environment |= _probe_variables(config, point) | amount
    if environment:
        request["Environment"] = environment
    if training.checkpoints is not None:
        request["CheckpointConfig"] = {"LocalPath": training.checkpoints.local_path}
    return _named(config, request, point, inputs, attempt, letter)


def _probe_variables(config: BenchmarkConfig, point: PlannedPoint) -> dict[str, str]:
    """What has a program end itself early: the same of every probe, so that they differ from whole
    jobs, the check's too, by their digest.
    """
    if config.sweep.design != "probe" or point.repeat > config.sweep.repeats:
        return {}
    ends = config.sweep.probe_ends
    return {ASKED_BY: f"{ends.precision:g}", MOST_STEPS: str(ends.max_steps)}


def _named(
    config: BenchmarkConfig,
    request: dict[str, Any],
    point: PlannedPoint,
    inputs: ResolvedInputs,
    attempt: int,
    letter: str,
) -> dict[str, Any]:
    """The request with what its own digest names: the job, its tags,
    and the S3 prefix of its checkpoints.
    """
    platform, digest = config.platform, names.request_digest(request)
    job = names.job_name(inputs.sweep_id, point.nodes, point.repeat, attempt, digest, letter)
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
    """The request's members that are there only where they were asked for."""
    features: dict[str, Any] = {}
    if training.vpc is not None:
        features["VpcConfig"] = {
            "Subnets": list(training.vpc.subnets),
            "SecurityGroupIds": list(training.vpc.security_group_ids),
        }
    if training.encrypt_inter_container_traffic:
        features["EnableInterContainerTrafficEncryption"] = True
    if training.tensorboard:
        # SageMaker adds <job>/tensorboard-output, so the logs lie beside the job's output.
        features["TensorBoardOutputConfig"] = {
            "LocalPath": TENSORBOARD_PATH,
            "S3OutputPath": jobs_uri,
        }
    if training.retry_attempts is not None:
        features["RetryStrategy"] = {"MaximumRetryAttempts": training.retry_attempts}
    return features


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
    """The member InputDataConfig, which the service wants left out where there is no channel."""
    return {"InputDataConfig": channels} if channels else {}


def _dataset_channels(config: BenchmarkConfig, inputs: ResolvedInputs) -> list[dict[str, Any]]:
    """One for the dataset, or one per folder of it; none where there is no dataset."""
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
    """InputMode File, whatever the other channels': the file system is mounted,
    nothing is copied.
    """
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
    """User hyperparameters and the toolkit's own, each JSON-encoded as the SDK sends them."""
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


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
