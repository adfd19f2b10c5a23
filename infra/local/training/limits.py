"""What SageMaker checks in a CreateTrainingJob request beyond the model's shapes, and what the platform can't run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from infra.local.api import ApiError, validation_error
from infra.local.model_validation import null_violation, raise_violations, violation

LOCAL_INSTANCE_TYPES = ("ml.local.small", "ml.local.medium", "ml.local.large")
_AT_LEAST_ONE = "Member must have value greater than or equal to 1"


def check_request(request: dict[str, Any]) -> None:
    """Raise ValidationException for a request no job can be made of."""
    raise_violations(list(_missing_members(request)))
    _check_modelled(request)
    _check_channels(request.get("InputDataConfig", []))
    _check_stopping_condition(request)
    for definition in request["AlgorithmSpecification"].get("MetricDefinitions", []):
        _check_metric(definition)


def check_quota(quotas: Mapping[str, int], instance_type: str, in_use: int, asked: int) -> None:
    """Raise ResourceLimitExceeded in AWS's words; a type without a configured quota has none."""
    quota = quotas.get(instance_type)
    if quota is not None and in_use + asked > quota:
        raise ApiError(
            "ResourceLimitExceeded",
            f"The account-level service limit '{instance_type} for training job usage' is {quota} Instances, with "
            f"current utilization of {in_use} Instances and a request delta of {asked} Instances. "
            "Please use AWS Service Quotas to request an increase for this quota.",
        )


def _missing_members(request: dict[str, Any]) -> Iterator[str]:
    """Members the model calls optional (for serverless jobs and preferences) but a job on instances needs."""
    for name, path in (
        ("AlgorithmSpecification", "algorithmSpecification"),
        ("ResourceConfig", "resourceConfig"),
        ("StoppingCondition", "stoppingCondition"),
    ):
        if request.get(name) is None:
            yield null_violation(path)
    resources = request.get("ResourceConfig") or {}
    if resources.get("InstanceGroups") or resources.get("InstancePreferences"):
        return
    for name in ("InstanceType", "InstanceCount", "VolumeSizeInGB"):
        if request.get("ResourceConfig") is not None and resources.get(name) is None:
            yield null_violation(f"resourceConfig.{name[0].lower()}{name[1:]}")
    if resources.get("InstanceCount") == 0:
        yield violation(0, "resourceConfig.instanceCount", _AT_LEAST_ONE)


def _check_modelled(request: dict[str, Any]) -> None:
    """Refuse, rather than quietly ignore, what would change how the job runs."""
    algorithm, resources = request["AlgorithmSpecification"], request["ResourceConfig"]
    for present, field in (
        (algorithm.get("AlgorithmName"), "AlgorithmSpecification.AlgorithmName"),
        (resources.get("InstanceGroups"), "ResourceConfig.InstanceGroups"),
        (resources.get("InstancePreferences"), "ResourceConfig.InstancePreferences"),
        (request.get("ServerlessJobConfig"), "ServerlessJobConfig"),
        (algorithm.get("TrainingInputMode") == "Pipe", "TrainingInputMode Pipe"),
        (algorithm.get("ContainerEntrypoint"), "AlgorithmSpecification.ContainerEntrypoint"),
        (algorithm.get("ContainerArguments"), "AlgorithmSpecification.ContainerArguments"),
    ):
        if present:
            raise validation_error(f"The local platform does not model {field}: leave it out, or run the job on AWS.")
    if not algorithm.get("TrainingImage"):
        raise validation_error("You must provide either the TrainingImage or the AlgorithmName, but not both.")


def _check_channels(channels: list[dict[str, Any]]) -> None:
    names = [channel["ChannelName"] for channel in channels]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise validation_error(f"Input channels must have unique names; repeated: {', '.join(repeated)}")
    for channel in channels:
        source = channel["DataSource"].get("S3DataSource")
        if source is None:
            raise validation_error(
                f"Channel {channel['ChannelName']}: the local platform reads S3DataSource only; "
                "file systems and datasets are not modelled."
            )
        if source["S3DataType"] not in ("S3Prefix", "ManifestFile") or channel.get("InputMode") == "Pipe":
            raise validation_error(
                f"Channel {channel['ChannelName']}: the local platform models S3DataType S3Prefix and ManifestFile in "
                f"File or FastFile mode, got {source['S3DataType']} in {channel.get('InputMode', 'File')} mode."
            )


def _check_stopping_condition(request: dict[str, Any]) -> None:
    condition = request["StoppingCondition"]
    max_wait, max_runtime = condition.get("MaxWaitTimeInSeconds"), condition.get("MaxRuntimeInSeconds", 86_400)
    if request.get("EnableManagedSpotTraining"):
        if max_wait is None or max_wait < max_runtime:
            raise validation_error(
                "Invalid MaxWaitTimeInSeconds. It must be present and be greater than or equal to MaxRuntimeInSeconds"
            )
        if request["ResourceConfig"].get("KeepAlivePeriodInSeconds"):
            raise validation_error("KeepAlivePeriodInSeconds is not supported with managed spot training.")
    elif max_wait is not None:
        raise validation_error("MaxWaitTimeInSeconds is only supported for managed spot training.")


def _check_metric(definition: dict[str, str]) -> None:
    try:
        groups = re.compile(definition["Regex"]).groups
    except re.error as error:
        raise validation_error(
            f"Metric {definition['Name']}: Regex {definition['Regex']!r} is invalid: {error}"
        ) from error
    if groups < 1:
        raise validation_error(f"Metric {definition['Name']}: Regex {definition['Regex']!r} needs one capturing group")
