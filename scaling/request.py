"""PlannedPoint -> CreateTrainingJob request, in the wire format of the SageMaker training toolkit (SDK v2)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from configs.models import BenchmarkConfig, Scalar
from scaling import names
from scaling.plan import PlannedPoint

# Limits of the service (API reference of CreateTrainingJob; botocore checks none of the maxima).
MAX_HYPERPARAMETERS = 100
MAX_HYPERPARAMETER_CHARS = 2500


@dataclass(frozen=True)
class ResolvedInputs:
    """What the earlier stages made: all a request needs beside config and point."""

    sweep_id: str
    image_uri: str
    dataset_uri: str
    source_uri: str | None = None


def build_request(
    config: BenchmarkConfig, point: PlannedPoint, inputs: ResolvedInputs, attempt: int = 1
) -> dict[str, Any]:
    """The whole CreateTrainingJob request of one attempt at one point. Raises ValueError where a limit is passed."""
    training, platform = config.training, config.platform
    request: dict[str, Any] = {
        "AlgorithmSpecification": _algorithm(config, inputs),
        "RoleArn": platform.role_arn,
        "InputDataConfig": [_channel(config, inputs.dataset_uri)],
        "OutputDataConfig": {
            "S3OutputPath": f"s3://{platform.bucket}/{names.sweep_output_prefix(platform.prefix, inputs.sweep_id)}"
        },
        "ResourceConfig": {
            "InstanceType": training.instance_type,
            "InstanceCount": point.nodes,
            "VolumeSizeInGB": training.volume_size_gb,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": training.max_runtime_seconds},
        "HyperParameters": _hyperparameters(config, point, inputs),
        # The profiler samples every node during training; a benchmark measures without it.
        "ProfilerConfig": {"DisableProfiler": True},
    }
    environment = dict(training.environment)
    if inputs.source_uri is not None:
        # In the toolkit the image's ENV SAGEMAKER_PROGRAM beats the hyperparameter; the job's own beats the image's.
        environment["SAGEMAKER_PROGRAM"] = training.entry_point
    if environment:
        request["Environment"] = environment
    digest = names.request_digest(request)
    job = names.job_name(inputs.sweep_id, point.nodes, point.repeat, attempt, digest)
    request["HyperParameters"]["sagemaker_job_name"] = json.dumps(job)
    request["Tags"] = [
        {"Key": names.TAG_SWEEP_ID, "Value": inputs.sweep_id},
        {"Key": names.TAG_REQUEST_DIGEST, "Value": digest},
        {"Key": "nodesweep:nodes", "Value": str(point.nodes)},
        {"Key": "nodesweep:repeat", "Value": str(point.repeat)},
        {"Key": "nodesweep:attempt", "Value": str(attempt)},
    ]
    _check_limits(request["HyperParameters"])
    return {"TrainingJobName": job, **request}


def fill_placeholders(value: Scalar, point: PlannedPoint) -> Scalar:
    """Put the point's numbers into a hyperparameter; a value that is one placeholder alone keeps the number's type."""
    if not isinstance(value, str):
        return value
    numbers: dict[str, int | float] = {
        "global_batch_size": point.global_batch_size,
        "per_replica_batch_size": point.per_replica_batch_size,
        "accumulate_grad_batches": point.accumulate_grad_batches,
        "learning_rate": point.learning_rate,
        "nodes": point.nodes,
        "world_size": point.world_size,
        "seed": point.seed,
        "repeat": point.repeat,
    }
    alone = re.fullmatch(r"\{(\w+)\}", value)
    if alone:
        return numbers[alone[1]]
    return re.sub(r"\{(\w+)\}", lambda match: str(numbers[match[1]]), value)


def _algorithm(config: BenchmarkConfig, inputs: ResolvedInputs) -> dict[str, Any]:
    algorithm: dict[str, Any] = {
        "TrainingImage": inputs.image_uri,
        "TrainingInputMode": "File",
        "EnableSageMakerMetricsTimeSeries": True,
    }
    if config.training.metric_definitions:
        algorithm["MetricDefinitions"] = [
            {"Name": name, "Regex": regex} for name, regex in sorted(config.training.metric_definitions.items())
        ]
    return algorithm


def _channel(config: BenchmarkConfig, dataset_uri: str) -> dict[str, Any]:
    return {
        "ChannelName": config.dataset.channel,
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": dataset_uri,
                "S3DataDistributionType": config.dataset.distribution,
            }
        },
        "InputMode": "File",
    }


def _hyperparameters(config: BenchmarkConfig, point: PlannedPoint, inputs: ResolvedInputs) -> dict[str, str]:
    """User hyperparameters and the toolkit's own, each JSON-encoded as the SDK sends them."""
    training = config.training
    values: dict[str, Scalar] = {
        key: fill_placeholders(value, point) for key, value in training.hyperparameters.items()
    }
    values["sagemaker_program"] = training.entry_point
    values["sagemaker_container_log_level"] = 20
    values["sagemaker_region"] = config.platform.region
    if inputs.source_uri is not None:
        values["sagemaker_submit_directory"] = inputs.source_uri
    if training.distribution.kind == "torch_distributed":
        values["sagemaker_torch_distributed_enabled"] = True
        values["sagemaker_instance_type"] = training.instance_type
        if training.distribution.processes_per_node is not None:
            # sagemaker-training reads this one for every runner, torchrun included; it has no own key for it.
            values["sagemaker_mpi_num_of_processes_per_host"] = training.distribution.processes_per_node
    return {key: json.dumps(value) for key, value in values.items()}


def _check_limits(hyperparameters: dict[str, str]) -> None:
    if len(hyperparameters) > MAX_HYPERPARAMETERS:
        raise ValueError(
            f"training.hyperparameters: {len(hyperparameters)} with the toolkit's own; "
            f"SageMaker takes {MAX_HYPERPARAMETERS}"
        )
    for key, value in hyperparameters.items():
        if len(value) > MAX_HYPERPARAMETER_CHARS:
            raise ValueError(
                f"training.hyperparameters: {key!r} is {len(value)} characters; "
                f"SageMaker takes {MAX_HYPERPARAMETER_CHARS}"
            )
