"""An S3 object as a seekable file, read by byte ranges on any node.

Hadoop's connectors are not involved: the same code reads S3 and the local platform, with pyarrow's
types. Every call sends the request's ETag (If-Match), so no reader mixes bytes of two versions. A
ReadError travels from an executor to the driver as text (find_read_error).
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from .range_file import RangeFile
from .request import S3Object

READ_AHEAD_BYTES = 8 * 1024 * 1024
ATTEMPTS = 8
LONGEST_PAUSE_SECONDS = 5.0
_REPLACED = frozenset({"412", "PreconditionFailed"})
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchBucket"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_PASSING_STATUS = frozenset({408, 429})
_TAG = "nodesweep-read-error"
_TAGGED = re.compile(_TAG + r" (\{.*?\})(?:\n|$)")


class ReadError(Exception):
    """An object that can't be read: it is `deleted`, `replaced`, or `forbidden`."""

    def __init__(self, kind: str, key: str, message: str) -> None:
        # One line of ASCII, because Spark embeds it in its own message.
        found = {"kind": kind, "key": key, "message": message}
        super().__init__(f"{_TAG} {json.dumps(found)}\n")


def find_read_error(text: str) -> dict[str, str] | None:
    """Return kind, key, and message of the ReadError in an error's text; None if it has none."""
    found = _TAGGED.search(text)
    if found is None:
        return None
    error: dict[str, str] = json.loads(found[1])
    return error


@dataclass(frozen=True)
class Source:
    """A bucket's location, which is sent to executors that may lack the driver's environment."""

    bucket: str
    region: str | None
    endpoint_url: str | None

    @classmethod
    def of_this_process(cls, bucket: str) -> Source:
        """Return the location that boto3 uses in this process."""
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = boto3.session.Session().region_name or os.environ.get("AWS_REGION")
        return cls(bucket, region, endpoint)


@lru_cache(maxsize=4)
def _client(region: str | None, endpoint_url: str | None, pid: int) -> Any:
    config = Config(retries={"mode": "standard", "max_attempts": ATTEMPTS})
    return boto3.client("s3", region_name=region, endpoint_url=endpoint_url, config=config)


class ObjectFile(RangeFile):
    """A read-only file of one object.

    Reads raise ReadError if it is replaced, deleted or forbidden; RuntimeError for other failures.
    """

    def __init__(self, source: Source, item: S3Object) -> None:
        super().__init__(item.size_bytes)
        # One client per process: Spark forks its Python workers.
        self._s3 = _client(source.region, source.endpoint_url, os.getpid())
        self._bucket, self._item = source.bucket, item

    def get(self, begin: int, count: int) -> bytes:
        """Return bytes of the object, retrying interrupted transfers."""
        wanted = f"bytes={begin}-{begin + count - 1}"
        for attempt in range(ATTEMPTS):
            try:
                answer = self._s3.get_object(
                    Bucket=self._bucket, Key=self._item.key, Range=wanted, IfMatch=self._item.etag
                )
                return bytes(answer["Body"].read())
            except ClientError as error:
                if kind := self._kind(error):
                    raise ReadError(kind, self._item.key, str(error)) from error
                raise RuntimeError(f"s3://{self._bucket}/{self._item.key}: {error}") from error
            except BotoCoreError as error:
                # Some of these are OSErrors, which callers take for a damaged file (UNREADABLE).
                if attempt + 1 == ATTEMPTS:
                    raise RuntimeError(f"s3://{self._bucket}/{self._item.key}: {error}") from error
            time.sleep(random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_SECONDS, 0.1 * 2**attempt))
        raise AssertionError("unreachable")

    def _kind(self, error: ClientError) -> str | None:
        """Return the kind of the ReadError; None for a failure that may be temporary."""
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _REPLACED:
            return "replaced"
        if code in _ABSENT:
            return "deleted"
        if code in _EXPIRED or status in _PASSING_STATUS or not 400 <= status < 500:
            return None
        return "deleted" if status == 403 and self._is_not_listed() else "forbidden"

    def _is_not_listed(self) -> bool:
        """Return True if the object is absent.

        S3 returns 403 for an absent object to callers who may not list the bucket.
        """
        key = self._item.key
        try:
            listed = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
        except ClientError:
            return False
        return key not in (one["Key"] for one in listed.get("Contents", ()))


def open_object(source: Source, item: S3Object, in_order: bool = False) -> Any:
    """Return the object as a file; `in_order` reads ahead, for callers that read small pieces."""
    file = ObjectFile(source, item)
    return io.BufferedReader(file, READ_AHEAD_BYTES) if in_order else file
