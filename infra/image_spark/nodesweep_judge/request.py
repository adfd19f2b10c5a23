"""A job's request: the objects, and the checks to evaluate on them.

The flow writes it (tasks/dataset/spark/contract.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .layout import partitions_of

FORMAT = 1


class JudgeError(Exception):
    """A dataset that can't be validated; `kind` is `expectations` or `other`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class S3Object:
    """One object of the dataset; `index` is its position in the request."""

    index: int
    key: str
    name: str
    size_bytes: int
    etag: str


@dataclass(frozen=True)
class Check:
    """One expectation; `index` is its position in the request.

    `columns` are those it reads: empty if the number of rows is enough, None if it may read any.
    `of_the_schema` is True if a table without rows is enough to decide it.
    """

    index: int
    type: str
    kwargs: dict[str, Any]
    severity: str
    columns: tuple[str, ...] | None
    of_the_schema: bool

    def needed(self, columns: list[str]) -> list[str]:
        """Return the columns of a table that this check reads."""
        if self.columns is None:
            return columns
        if not self.columns:
            return columns[:1]
        return [name for name in columns if name in self.columns]


@dataclass(frozen=True)
class Request:
    """The whole request: the objects, and the checks to evaluate on them."""

    bucket: str
    objects: tuple[S3Object, ...]
    is_parquet: bool
    checks: tuple[Check, ...]
    unique_columns: tuple[str, ...]
    digest: str
    partitions: tuple[dict[str, Any], ...]
    """Columns and values in the folder names of each object."""


def read_request(document: Mapping[str, Any]) -> Request:
    """Parse a request.

    Raises:
        JudgeError: The request's format is not supported by this image.
    """
    if document.get("format") != FORMAT:
        raise JudgeError(
            "other",
            f"the request has format {document.get('format')!r}, but this image reads format"
            f" {FORMAT}: use an image built by the version of nodesweep that runs the sweep",
        )
    objects = tuple(
        S3Object(index, one["key"], one["name"], one["size_bytes"], one["etag"])
        for index, one in enumerate(document["objects"])
    )
    checks = tuple(
        Check(
            index,
            one["type"],
            {name: _as_in_yaml(value) for name, value in one["kwargs"].items()},
            one["severity"],
            None if one["columns"] is None else tuple(one["columns"]),
            one["of_the_schema"],
        )
        for index, one in enumerate(document["expectations"])
    )
    return Request(
        document["bucket"],
        objects,
        document["data_format"] == "parquet",
        checks,
        tuple(document["unique_columns"]),
        document["digest"],
        tuple(partitions_of([one.name for one in objects])),
    )


def _as_in_yaml(value: Any) -> Any:
    """Restore dates and times, which JSON lacks, from {"$date": …} and {"$datetime": …}."""
    if isinstance(value, list):
        return [_as_in_yaml(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$date"}:
        return datetime.date.fromisoformat(value["$date"])
    if set(value) == {"$datetime"}:
        return datetime.datetime.fromisoformat(value["$datetime"])
    return {name: _as_in_yaml(each) for name, each in value.items()}
