"""InstancePreferences, which run a job on the first of several instance types that has capacity.

The rules are from ResourceConfig and InstancePreference in SageMaker's API reference, but the error
messages are not AWS's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagemaker_emulator.api.protocol import validation_error

_EXCLUDED = ("InstanceType", "InstancePlacementConfig")
_SELECTED = ("SelectedInstanceType", "SelectedInstanceCount")


def check_preferences(request: Mapping[str, Any]) -> None:
    """Check the InstancePreferences of a request, if any.

    Raises:
        ValidationException: If SageMaker would refuse them.
    """
    resources = request["ResourceConfig"]
    for name in _SELECTED:
        if name in resources:
            raise validation_error(f"ResourceConfig.{name} is read-only.")
    preferences = resources.get("InstancePreferences")
    if not preferences:
        return
    excluded = [f"ResourceConfig.{name}" for name in _EXCLUDED if resources.get(name)]
    excluded += ["EnableManagedSpotTraining"] * bool(request.get("EnableManagedSpotTraining"))
    if excluded:
        raise validation_error(f"InstancePreferences can't be combined with {excluded[0]}.")
    kinds = [each["InstanceType"] for each in preferences]
    if len(set(kinds)) < len(kinds):
        raise validation_error("InstancePreferences must not repeat an instance type.")
    counts = [each.get("InstanceCount") for each in preferences]
    shared = resources.get("InstanceCount")
    if any(count is None for count in counts) == (shared is None) or (
        shared is not None and any(count is not None for count in counts)
    ):
        raise validation_error(
            "InstanceCount must be specified either in ResourceConfig or in every item of"
            " InstancePreferences."
        )
    if 0 in counts:
        raise validation_error("InstanceCount must be greater than or equal to 1.")


def choices(resources: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield ResourceConfig with each preference in turn, or unchanged if it has none."""
    preferences = resources.get("InstancePreferences")
    if not preferences:
        yield resources
        return
    for each in preferences:
        count = each.get("InstanceCount", resources.get("InstanceCount"))
        yield {**resources, **dict(zip(_SELECTED, (each["InstanceType"], count), strict=True))}


def instances_of(resources: Mapping[str, Any]) -> tuple[str, int]:
    """Return the instance type and count of a job, from its selected or first preference if any."""
    chosen = resources
    if "InstancePreferences" in resources and _SELECTED[0] not in resources:
        chosen = next(iter(choices(resources)))
    kind, count = (
        chosen.get(name, chosen.get(name.removeprefix("Selected"))) for name in _SELECTED
    )
    return str(kind), int(count)
