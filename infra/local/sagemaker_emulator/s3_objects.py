"""The S3 operations that the platform needs: listing keys and downloading objects."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from botocore.exceptions import BotoCoreError, ClientError

_COPY_CHUNK_BYTES = 1 << 20
S3_ERRORS = (ClientError, BotoCoreError)
"""Errors of calls to S3. botocore itself refuses names that no bucket can have."""


@dataclass(frozen=True)
class S3Location:
    """A bucket and a key (or key prefix) in S3."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, uri: str) -> S3Location:
        """Parse s3://bucket/key or https://s3.<region>.amazonaws.com/bucket/key.

        SageMaker accepts both formats. Any other text results in a bucket that does not exist.
        """
        scheme, _, path = uri.partition("://")
        if scheme != "s3":
            path = unquote(path.partition("/")[2].partition("?")[0]).lstrip("/")
        bucket, _, key = path.partition("/")
        return cls(bucket, key)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def list_keys(s3: Any, prefix: S3Location, page_size: int = 1000) -> Iterator[str]:
    """Yield the keys with a prefix in S3's order (UTF-8).

    The empty "folder/" objects that the S3 console creates are left out.
    """
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=prefix.bucket, Prefix=prefix.key, PaginationConfig={"PageSize": page_size}
    )
    for page in pages:
        for item in page.get("Contents", []):
            if not (item["Key"].endswith("/") and item["Size"] == 0):
                yield item["Key"]


def download(s3: Any, location: S3Location, target: Path) -> None:
    """Download an object to the file `target`, and create its folder."""
    body = s3.get_object(Bucket=location.bucket, Key=location.key)["Body"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(body, file, _COPY_CHUNK_BYTES)


def error_code(error: ClientError | BotoCoreError) -> str:
    """Return S3's error code, or the name of botocore's error."""
    if isinstance(error, BotoCoreError):
        return type(error).__name__
    return str(error.response.get("Error", {}).get("Code", "Unknown"))


def error_message(error: ClientError | BotoCoreError) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, BotoCoreError):
        return " ".join(str(error).split())
    return str(error.response.get("Error", {}).get("Message", error))
