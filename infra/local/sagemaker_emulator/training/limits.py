"""Checks CreateTrainingJob requests beyond the API model, and refuses unsupported members.

`check_request` applies to all platforms, `check_runnable` only to platforms with real nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import re2

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.api.validation import null_violation, raise_violations, violation
from sagemaker_emulator.engine.host.capacity import VCPUS_BY_INSTANCE_TYPE
from sagemaker_emulator.sagemaker.description import DEFAULT_MAX_RUNTIME_SECONDS
from sagemaker_emulator.training.checkpoints import synced_folders
from sagemaker_emulator.training.metrics import compile_expression
from sagemaker_emulator.training.preferences import check_preferences

LOCAL_INSTANCE_TYPES = tuple(VCPUS_BY_INSTANCE_TYPE)
MAX_RUNTIME_SECONDS = 28 * 86_400
"""28 days, from StoppingCondition in SageMaker's API reference. The model has no upper bound."""
_AT_LEAST_ONE = "Member must have value greater than or equal to 1"


def check_request(request: dict[str, Any]) -> None:
    """Check a CreateTrainingJob request.

    Raises:
        ValidationException: If the request is invalid or unsupported.
    """
    raise_violations(list(_missing_members(request)))
    _check_modelled(request)
    _check_channels(request)
    _check_stopping_condition(request)
    _check_prefixes(request)
    for definition in request["AlgorithmSpecification"].get("MetricDefinitions", []):
        _check_metric(definition)


def check_runnable(request: Mapping[str, Any]) -> None:
    """Check that nodes on this machine can run the job.

    Raises:
        ValidationException: If the job uses Pipe mode, or syncs a folder outside of /opt/ml.
    """
    pipe_mode = "Pipe mode (FastFile is supported and behaves like File)"
    refuse_unmodelled((_uses_pipe_mode(request), pipe_mode))
    try:
        synced_folders(request)
    except ValueError as error:
        raise validation_error(str(error)) from error


def usage_quota(instance_type: str, is_spot: bool) -> str:
    """Return the name of the quota for the instances of a job, which spot jobs have separately."""
    return f"{instance_type} for {'spot ' if is_spot else ''}training job usage"


def warm_pool_quota(instance_type: str) -> str:
    """Return the name of the additional quota for jobs with a keep-alive period."""
    return f"{instance_type} for training warm pool usage"


def _missing_members(request: dict[str, Any]) -> Iterator[str]:
    """Yield missing members and violated bounds that the model does not express.

    The members are optional in the model because requests for serverless jobs, or with instance
    groups or preferences, omit some of them.
    """
    for name, path in (
        ("AlgorithmSpecification", "algorithmSpecification"),
        ("ResourceConfig", "resourceConfig"),
        ("StoppingCondition", "stoppingCondition"),
    ):
        if request.get(name) is None:
            yield null_violation(path)
    resources = request.get("ResourceConfig") or {}
    if not (resources.get("InstanceGroups") or resources.get("InstancePreferences")):
        for name in ("InstanceType", "InstanceCount", "VolumeSizeInGB"):
            if request.get("ResourceConfig") is not None and resources.get(name) is None:
                yield null_violation(f"resourceConfig.{name[0].lower()}{name[1:]}")
    for name in ("InstanceCount", "VolumeSizeInGB"):  # the model's minimum is 0
        if resources.get(name) == 0:
            yield violation(0, f"resourceConfig.{name[0].lower()}{name[1:]}", _AT_LEAST_ONE)
    max_runtime = (request.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds", 0)
    if max_runtime > MAX_RUNTIME_SECONDS:
        limit = f"Member must have value less than or equal to {MAX_RUNTIME_SECONDS}"
        yield violation(max_runtime, "stoppingCondition.maxRuntimeInSeconds", limit)


def _check_modelled(request: dict[str, Any]) -> None:
    """Refuse unsupported members instead of ignoring them if they change how a job runs."""
    algorithm, resources = request["AlgorithmSpecification"], request["ResourceConfig"]
    refuse_unmodelled(
        (algorithm.get("AlgorithmName"), "AlgorithmSpecification.AlgorithmName"),
        (resources.get("InstanceGroups"), "ResourceConfig.InstanceGroups"),
        (_has_plan_of_preferences(resources), "ResourceConfig.InstancePreferences with a plan"),
        (request.get("ServerlessJobConfig"), "ServerlessJobConfig"),
    )
    check_preferences(request)
    kind = str(resources.get("InstanceType"))
    if resources.get("InstancePlacementConfig") and not kind.startswith("ml.p6e-gb200."):
        raise validation_error(
            f"InstancePlacementConfig only applies to UltraServer capacity, not to {kind}."
        )
    if not algorithm.get("TrainingImage"):
        raise validation_error(
            "You must provide either the TrainingImage or the AlgorithmName, but not both."
        )


def _has_plan_of_preferences(resources: Mapping[str, Any]) -> bool:
    preferences = resources.get("InstancePreferences") or ()
    plans = [
        resources.get("TrainingPlanArn"),
        *(one.get("TrainingPlanArns") for one in preferences),
    ]
    return bool(preferences) and any(plans)


def refuse_unmodelled(*fields: tuple[Any, str]) -> None:
    """Refuse the first of the (value, name) fields whose value is set.

    Raises:
        ValidationException: If the value of a field is set.
    """
    for value, name in fields:
        if value:
            raise validation_error(
                f"The local platform does not model {name}: remove it, or run the job on AWS."
            )


def _uses_pipe_mode(request: Mapping[str, Any]) -> bool:
    channels = request.get("InputDataConfig", [])
    modes = [channel.get("InputMode") for channel in channels] or [None]
    default = request["AlgorithmSpecification"].get("TrainingInputMode")
    return any((mode or default) == "Pipe" for mode in modes)


def _check_prefixes(request: dict[str, Any]) -> None:
    for name, member in (
        ("CheckpointConfig", "S3Uri"),
        ("TensorBoardOutputConfig", "S3OutputPath"),
    ):
        config = request.get(name)
        if config and not config[member].startswith("s3://"):
            raise validation_error(
                f"{name}.{member} {config[member]!r} is not an S3 URI; expected s3://bucket/prefix"
            )


def _check_channels(request: dict[str, Any]) -> None:
    channels = request.get("InputDataConfig", [])
    names = [channel["ChannelName"] for channel in channels]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise validation_error(
            f"Input channels must have unique names; repeated: {', '.join(repeated)}"
        )
    for channel in channels:
        source = channel["DataSource"].get("S3DataSource")
        if "FileSystemDataSource" in channel["DataSource"] and source is None:
            if not request.get("VpcConfig"):
                raise validation_error(
                    f"Channel {channel['ChannelName']}: VpcConfig must be specified because a"
                    " FileSystemDataSource is accessed through a VPC."
                )
            continue
        if source is None:
            raise validation_error(
                f"Channel {channel['ChannelName']}: the local platform supports S3DataSource and"
                " FileSystemDataSource, not DatasetSource."
            )
        if source["S3DataType"] not in ("S3Prefix", "ManifestFile"):
            raise validation_error(
                f"Channel {channel['ChannelName']}: the local platform supports S3DataType S3Prefix"
                f" and ManifestFile, not {source['S3DataType']}."
            )


def _check_stopping_condition(request: dict[str, Any]) -> None:
    condition = request["StoppingCondition"]
    max_wait = condition.get("MaxWaitTimeInSeconds")
    max_runtime = condition.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_SECONDS)
    if request.get("EnableManagedSpotTraining"):
        if max_wait is None or max_wait < max_runtime:
            raise validation_error(
                "Invalid MaxWaitTimeInSeconds. It must be present and be greater than or equal to"
                " MaxRuntimeInSeconds"
            )
        if request["ResourceConfig"].get("KeepAlivePeriodInSeconds"):
            raise validation_error(
                "KeepAlivePeriodInSeconds is not supported with managed spot training."
            )
    elif max_wait is not None:
        raise validation_error("MaxWaitTimeInSeconds is only supported for managed spot training.")


def _check_metric(definition: dict[str, str]) -> None:
    try:
        groups = compile_expression(definition["Regex"]).groups
    except re2.error as error:
        raise validation_error(
            f"Metric {definition['Name']}: Regex {definition['Regex']!r} is invalid: {error}"
        ) from error
    if groups < 1:
        raise validation_error(
            f"Metric {definition['Name']}: Regex {definition['Regex']!r} needs a capturing group"
        )
