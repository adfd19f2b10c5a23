"""The inputs and outputs of a Processing job, as folders of nodes and S3 locations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sagemaker_emulator.jobs.downloads import Download

_ROOT = ("/", "opt", "ml", "processing")


@dataclass(frozen=True)
class Output:
    """A folder below /opt/ml, and the S3 prefix that its files are uploaded to."""

    folder: str
    uri: str
    is_continuous: bool


def input_folders(request: Mapping[str, Any]) -> list[Download]:
    """Return the inputs that the platform downloads.

    Raises:
        ValueError: If a LocalPath is not below /opt/ml/processing.
    """
    inputs = [
        one["S3Input"] for one in request.get("ProcessingInputs", []) if _is_platform_managed(one)
    ]
    return [Download(one, _folder(one)) for one in inputs]


def output_folders(request: Mapping[str, Any]) -> list[Output]:
    """Return the outputs that the platform uploads.

    Raises:
        ValueError: If a LocalPath is not below /opt/ml/processing.
    """
    outputs = request.get("ProcessingOutputConfig", {}).get("Outputs", [])
    return [
        Output(_folder(one), one["S3Uri"], one["S3UploadMode"] == "Continuous")
        for one in (output["S3Output"] for output in outputs if _is_platform_managed(output))
    ]


def _is_platform_managed(one: Mapping[str, Any]) -> bool:
    return not one.get("AppManaged")


def _folder(place: Mapping[str, Any]) -> str:
    path = place.get("LocalPath")
    if path is None:
        raise ValueError("LocalPath must be specified unless AppManaged is true")
    parts = PurePosixPath(path).parts
    if parts[:4] != _ROOT or len(parts) < 5 or ".." in parts:
        raise ValueError(f"LocalPath {path} must begin with /opt/ml/processing/")
    return "/".join(parts[3:])
