"""Checks CreateProcessingJob requests beyond the API model, and refuses unsupported members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.api.validation import null_violation, raise_violations
from sagemaker_emulator.processing.files import input_folders, output_folders
from sagemaker_emulator.training.limits import refuse_unmodelled


def check_request(request: Mapping[str, Any]) -> None:
    """Check a CreateProcessingJob request.

    Raises:
        ValidationException: If the request is invalid or unsupported.
    """
    _refuse_unmodelled_members(request)
    raise_violations(list(_missing_members(request)))
    _check_names(request)
    _check_paths(request)


def usage_quota(instance_type: str) -> str:
    """Return the name of the quota for the instances of a job."""
    return f"{instance_type} for processing job usage"


def _missing_members(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield violations for missing members that are optional in the model.

    They are only optional in requests with InstancePreferences or DatasetDefinition, which this
    platform refuses.
    """
    cluster = request["ProcessingResources"]["ClusterConfig"]
    for name in ("InstanceType", "InstanceCount"):
        if cluster.get(name) is None:
            path = f"processingResources.clusterConfig.{name[0].lower()}{name[1:]}"
            yield null_violation(path)
    for number, one in enumerate(_inputs(request), start=1):
        if one.get("S3Input") is None:
            yield null_violation(f"processingInputs.{number}.member.s3Input")
    for number, one in enumerate(_outputs(request), start=1):
        if one.get("S3Output") is None:
            path = f"processingOutputConfig.outputs.{number}.member.s3Output"
            yield null_violation(path)


def _refuse_unmodelled_members(request: Mapping[str, Any]) -> None:
    cluster = request["ProcessingResources"]["ClusterConfig"]
    s3_inputs = [one.get("S3Input") or {} for one in _inputs(request)]
    refuse_unmodelled(
        (cluster.get("InstancePreferences"), "ClusterConfig.InstancePreferences"),
        (any(one.get("DatasetDefinition") for one in _inputs(request)), "DatasetDefinition"),
        (any(one.get("FeatureStoreOutput") for one in _outputs(request)), "FeatureStoreOutput"),
        (any(one.get("S3InputMode") == "Pipe" for one in s3_inputs), "S3InputMode Pipe"),
    )
    if any(one.get("S3CompressionType") == "Gzip" for one in s3_inputs):
        raise validation_error("S3CompressionType Gzip can only be used with S3InputMode Pipe.")


def _check_names(request: Mapping[str, Any]) -> None:
    for members, name in ((_inputs(request), "InputName"), (_outputs(request), "OutputName")):
        _refuse_repeated([one[name] for one in members], f"{name}s")


def _check_paths(request: Mapping[str, Any]) -> None:
    """Check that LocalPaths are unique folders below /opt/ml/processing."""
    try:
        folders = [one.folder for one in input_folders(request)]
        folders += [one.folder for one in output_folders(request)]
    except ValueError as error:
        raise validation_error(str(error)) from error
    _refuse_repeated([f"/opt/ml/{folder}" for folder in folders], "LocalPaths")


def _refuse_repeated(values: list[str], what: str) -> None:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise validation_error(f"{what} must be unique; repeated: {', '.join(repeated)}")


def _inputs(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(request.get("ProcessingInputs", []))


def _outputs(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(request.get("ProcessingOutputConfig", {}).get("Outputs", []))
