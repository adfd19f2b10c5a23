"""Checks tags beyond the lengths and characters in the API model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sagemaker_emulator.api.protocol import ApiError, validation_error

MOST_TAGS = 50
"""Maximum number of tags per resource ("Tag restrictions" in the AWS General Reference)."""


def check_new_tags(tags: Sequence[Mapping[str, str]]) -> None:
    """Check the keys of new tags.

    Raises:
        ValidationException: If a key is reserved by AWS or repeated.
    """
    keys = [tag["Key"] for tag in tags]
    reserved = sorted({key for key in keys if key.lower().startswith("aws:")})
    if reserved:
        raise validation_error(
            "aws: prefixed tag key names are not allowed for external use. Reserved:"
            f" {', '.join(reserved)}"
        )
    doubled = sorted({key for key in keys if keys.count(key) > 1})
    if doubled:
        raise validation_error(
            f"Duplicate tag keys found: {', '.join(doubled)}. Each key can be specified only once."
        )


def merged_tags(
    old: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """Return the old tags, with the new tags added or replaced by key.

    Raises:
        ResourceLimitExceeded: If the result has more than 50 tags.
    """
    merged = {tag["Key"]: tag["Value"] for tag in [*old, *new]}
    if len(merged) > MOST_TAGS:
        raise ApiError(
            "ResourceLimitExceeded",
            f"A resource can have at most {MOST_TAGS} tags; it would have {len(merged)}.",
        )
    return [{"Key": key, "Value": value} for key, value in merged.items()]
