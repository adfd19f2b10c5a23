"""Render a JobSpec as a CreateTrainingJob request.

Hyperparameters and channels follow the conventions of the SageMaker training toolkit (SDK v2).
"""

from __future__ import annotations

import json
from typing import Any

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.job import FileSystemConfig, S3ChannelConfig
from nodesweep.configs.models import PlatformConfig
from nodesweep.configs.training import TrainingConfig
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec
from nodesweep.scaling.rules.distribution import distribution_hyperparameters
from nodesweep.scaling.rules.distribution.option import Value
from nodesweep.scaling.rules.plan import hyperparameter_problems

TENSORBOARD_PATH = "/opt/ml/output/tensorboard"
"""SageMaker's default path for TensorBoard logs in a container."""


def render(platform: PlatformConfig, spec: JobSpec) -> dict[str, Any]:
    """Return the CreateTrainingJob request of a job.

    If the spec has no name, the request lacks the parts that identify the job: the name, the tags
    and the S3 prefix of the checkpoints.

    Raises:
        ValueError: A SageMaker limit is exceeded.
    """
    training = spec.training
    jobs_uri = (
        f"s3://{platform.bucket}/{names.sweep_output_prefix(platform.prefix, spec.inputs.sweep_id)}"
    )
    request: dict[str, Any] = {
        "AlgorithmSpecification": _algorithm(spec),
        "RoleArn": platform.role_arn,
        **_input_data([*_dataset_channels(spec), *_extra_channels(training)]),
        "OutputDataConfig": {
            "S3OutputPath": jobs_uri,
            **without_none(KmsKeyId=training.output_kms_key_id),
        },
        "ResourceConfig": {
            **_types(training),
            "InstanceCount": spec.nodes,
            "VolumeSizeInGB": training.volume_size_gb,
            **without_none(
                VolumeKmsKeyId=training.volume_kms_key_id,
                KeepAlivePeriodInSeconds=training.keep_alive_seconds,
                TrainingPlanArn=training.training_plan_arn,
                InstancePlacementConfig=_placement(training, spec.nodes),
            ),
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": training.max_runtime_seconds},
        "HyperParameters": _hyperparameters(platform.region, spec),
        # The profiler samples every node during training, which would distort a benchmark.
        "ProfilerConfig": {"DisableProfiler": True},
        **_features(training, jobs_uri),
    }
    if training.spot is not None:
        request["EnableManagedSpotTraining"] = True
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = training.spot.max_wait_seconds
    environment = dict(training.environment)
    if spec.inputs.source_uri is not None:
        # In the toolkit, the image's SAGEMAKER_PROGRAM overrides the hyperparameter, and the job's
        # environment overrides the image's.
        environment["SAGEMAKER_PROGRAM"] = training.entry_point
    if training.tensorboard:
        environment.setdefault("TENSORBOARD_DIR", TENSORBOARD_PATH)
    environment |= spec.variables
    if environment:
        request["Environment"] = environment
    if training.checkpoints is not None:
        request["CheckpointConfig"] = {"LocalPath": training.checkpoints.local_path}
    if not spec.name:
        return request
    key = names.job_checkpoint_prefix(platform.prefix, spec.inputs.sweep_id, spec.name)
    return _named(request, spec, f"s3://{platform.bucket}/{key}")


def _named(request: dict[str, Any], spec: JobSpec, checkpoints_uri: str) -> dict[str, Any]:
    """Add the parts that identify the job to the request."""
    request["HyperParameters"]["sagemaker_job_name"] = json.dumps(spec.name)
    if problems := hyperparameter_problems(request["HyperParameters"]):
        raise ValueError("; ".join(problems))
    if "CheckpointConfig" in request:
        request["CheckpointConfig"]["S3Uri"] = checkpoints_uri
    tags = {
        names.TAG_SWEEP_ID: spec.inputs.sweep_id,
        names.TAG_REQUEST_DIGEST: spec.digest,
        "nodesweep:nodes": str(spec.nodes),
        "nodesweep:repeat": str(spec.repeat),
        "nodesweep:attempt": str(spec.attempt),
        **spec.training.tags,
    }
    request["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    return {"TrainingJobName": spec.name, **request}


def without_none(**members: Any) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def network_members(training: TrainingConfig) -> dict[str, Any]:
    """Return the members for the VPC and inter-container encryption, if configured."""
    vpc = training.vpc and {
        "Subnets": list(training.vpc.subnets),
        "SecurityGroupIds": list(training.vpc.security_group_ids),
    }
    return without_none(
        VpcConfig=vpc,
        EnableInterContainerTrafficEncryption=training.encrypt_inter_container_traffic or None,
    )


def _features(training: TrainingConfig, jobs_uri: str) -> dict[str, Any]:
    """Return the request's optional members that are configured."""
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
            **without_none(MlflowExperimentName=training.mlflow.experiment_name),
        }
    return features


def _types(training: TrainingConfig) -> dict[str, Any]:
    """Return the job's instance type, or types, of which the first with capacity is used."""
    if not training.instance_fallbacks:
        return {"InstanceType": training.instance_type}
    types = (training.instance_type, *training.instance_fallbacks)
    return {"InstancePreferences": [{"InstanceType": name} for name in types]}


def _placement(training: TrainingConfig, nodes: int) -> dict[str, Any] | None:
    """Return InstancePlacementConfig for a job of this many nodes, if it is configured."""
    placement = training.placement
    if placement is None:
        return None
    ultra_server = placement.ultra_server_id
    on_one = [{"UltraServerId": ultra_server, "InstanceCount": nodes}]
    return {
        "EnableMultipleJobs": placement.share_ultra_servers,
        **without_none(PlacementSpecifications=None if ultra_server is None else on_one),
    }


def _algorithm(spec: JobSpec) -> dict[str, Any]:
    algorithm: dict[str, Any] = {
        "TrainingImage": spec.inputs.image_uri,
        "TrainingInputMode": "File" if spec.dataset is None else spec.dataset.input_mode,
        "EnableSageMakerMetricsTimeSeries": True,
    }
    if spec.training.metric_definitions:
        algorithm["MetricDefinitions"] = [
            {"Name": name, "Regex": regex}
            for name, regex in sorted(spec.training.metric_definitions.items())
        ]
    return algorithm


def _input_data(channels: list[dict[str, Any]]) -> dict[str, Any]:
    """Return InputDataConfig, which the service requires to be absent if there are no channels."""
    return {"InputDataConfig": channels} if channels else {}


def _dataset_channels(spec: JobSpec) -> list[dict[str, Any]]:
    """Return one channel for the dataset or for each of its folders, or none without a dataset."""
    dataset, uri = spec.dataset, spec.inputs.dataset_uri
    if dataset is None or uri is None:
        return []
    channel_uris = (
        {dataset.channel: uri}
        if dataset.channel
        else {name: f"{uri}{name}/" for name in spec.inputs.dataset_folders}
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


def _hyperparameters(region: str, spec: JobSpec) -> dict[str, str]:
    """Return the user's and the toolkit's hyperparameters, JSON-encoded as the SDK does."""
    training = spec.training
    values: dict[str, Value] = dict(spec.hyperparameters)
    values["sagemaker_program"] = training.entry_point
    values["sagemaker_container_log_level"] = 20
    values["sagemaker_region"] = region
    if spec.inputs.source_uri is not None:
        values["sagemaker_submit_directory"] = spec.inputs.source_uri
    instance = load_catalogue().get(training.instance_type)
    values |= distribution_hyperparameters(training.distribution, instance)
    if training.instance_fallbacks:
        # If it is missing, all runners of sagemaker-training 5.1.4 use the type of their own node.
        values.pop("sagemaker_instance_type", None)
    return {key: json.dumps(value) for key, value in values.items()}
