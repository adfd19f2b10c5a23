"""Requests as DescribeTrainingJob and DescribeProcessingJob return them: with default values."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sagemaker_emulator.api.validation import service_model

DEFAULT_MAX_RUNTIME_SECONDS = 86_400
"""The default of MaxRuntimeInSeconds (one day), from the documentation of StoppingCondition."""
_FLAGS = (
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
    "EnableManagedSpotTraining",
)
_OUTPUT = {"KmsKeyId": ""}
_ALGORITHM = {"EnableSageMakerMetricsTimeSeries": False}
_CHANNEL = {"CompressionType": "None", "RecordWrapperType": "None"}
_S3_SOURCE = {"S3DataDistributionType": "FullyReplicated"}
_S3_INPUT = {**_S3_SOURCE, "S3InputMode": "File", "S3CompressionType": "None"}
_NOT_APP_MANAGED = {"AppManaged": False}


def described_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a CreateTrainingJob request that DescribeTrainingJob returns.

    Members that SageMaker always returns are added, since clients rely on them. For example,
    `attach` in the SDK reads OutputDataConfig.KmsKeyId.
    """
    answer = echoed(request, "TrainingJob")
    answer["OutputDataConfig"] = {**_OUTPUT, **request["OutputDataConfig"]}
    answer["AlgorithmSpecification"] = {**_ALGORITHM, **request["AlgorithmSpecification"]}
    answer["StoppingCondition"] = {
        "MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME_SECONDS,
        **request["StoppingCondition"],
    }
    if "InputDataConfig" in answer:
        answer["InputDataConfig"] = [
            _described_channel(channel) for channel in request["InputDataConfig"]
        ]
    return answer | {flag: bool(request.get(flag)) for flag in _FLAGS}


def _described_channel(channel: Mapping[str, Any]) -> dict[str, Any]:
    source = channel["DataSource"]
    if "S3DataSource" in source:
        source = {**source, "S3DataSource": {**_S3_SOURCE, **source["S3DataSource"]}}
    return {**_CHANNEL, **channel, "DataSource": source}


def described_processing_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a CreateProcessingJob request that DescribeProcessingJob returns."""
    answer = echoed(request, "ProcessingJob")
    answer["StoppingCondition"] = {
        "MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME_SECONDS,
        **request.get("StoppingCondition", {}),
    }
    if "ProcessingInputs" in answer:
        answer["ProcessingInputs"] = [_described_input(one) for one in request["ProcessingInputs"]]
    if "ProcessingOutputConfig" in answer:
        config = request["ProcessingOutputConfig"]
        outputs = [{**_NOT_APP_MANAGED, **one} for one in config["Outputs"]]
        answer["ProcessingOutputConfig"] = {**config, "Outputs": outputs}
    return answer


def _described_input(one: Mapping[str, Any]) -> dict[str, Any]:
    answer = {**_NOT_APP_MANAGED, **one}
    if "S3Input" in one:
        answer["S3Input"] = {**_S3_INPUT, **one["S3Input"]}
    return answer


def echoed(request: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the members of a Create request that the response of Describe also contains."""
    return {name: request[name] for name in _echoed_members(kind) if name in request}


@functools.cache
def _echoed_members(kind: str) -> Sequence[str]:
    """Return the names of members that are both in the request and in the response."""
    asked = service_model("sagemaker").operation_model(f"Create{kind}").input_shape
    answered = service_model("sagemaker").operation_model(f"Describe{kind}").output_shape
    assert asked is not None and answered is not None
    return [name for name in asked.members if name in answered.members]
