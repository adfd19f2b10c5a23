"""Small objects, in and out of the bucket."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.tasks.errors import error_code
from nodesweep.tasks.platform import PATIENT_TASK_OPTIONS, aws_client
from nodesweep.tasks.task import task

_WEEK_SECONDS = 604_800  # the longest that S3 takes


def put_bytes(s3: Any, bucket: str, key: str, body: bytes, only_if_absent: bool = False) -> str:
    """Write one object with its content type; returns its s3:// URI.

    With `only_if_absent` S3 refuses it (412) where the key is there.
    """
    content_type = mimetypes.guess_type(key)[0] or "application/octet-stream"
    condition = {"IfNoneMatch": "*"} if only_if_absent else {}
    s3.put_object(
        Bucket=bucket,
        Key=key,
        Body=body,
        ContentType=content_type,
        ChecksumAlgorithm="SHA256",
        **condition,
    )
    return f"s3://{bucket}/{key}"


def put_once(s3: Any, bucket: str, key: str, body: bytes) -> str:
    """put_bytes() for a key that is made of its content:
    nothing is sent where the object is there, whole.
    """
    try:
        found = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    except s3.exceptions.ClientError as error:
        if error_code(error) != "403" and not is_missing(s3, bucket, key, error):
            # 403: the write tells, here
            raise
    else:
        if found.get("ChecksumSHA256") == base64.b64encode(hashlib.sha256(body).digest()).decode():
            return f"s3://{bucket}/{key}"
    return put_bytes(s3, bucket, key, body)


def get_bytes(s3: Any, bucket: str, key: str) -> bytes | None:
    """The object's body, or None where there is none (or no such bucket)."""
    try:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except s3.exceptions.ClientError as error:
        if is_missing(s3, bucket, key, error):
            return None
        raise


def is_missing(s3: Any, bucket: str, key: str, error: ClientError) -> bool:
    """Whether this failure to read an object means that it, or its bucket, does not exist.

    To who may not list the whole bucket S3 answers 403 where it would answer 404 to others
    ("GetObject", S3 API reference). The pipeline role may list below its prefixes, so the key is
    then looked for in a listing.
    """
    code = error_code(error)
    if code in ("404", "NoSuchKey", "NotFound", "NoSuchBucket"):
        return True
    if code not in ("403", "AccessDenied"):
        return False
    try:
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", ())
    except ClientError:  # then the first refusal is what there is to say
        return False
    return key not in (item["Key"] for item in listed)


def list_objects(s3: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    """Every object whose key begins with the prefix, as S3 describes it;
    none where there is no such bucket.
    """
    return [
        item
        for page in _pages(s3, Bucket=bucket, Prefix=prefix)
        for item in page.get("Contents", ())
    ]


def list_folders(s3: Any, bucket: str, prefix: str) -> list[str]:
    """What follows the prefix up to the next slash, once for all keys that have it in common."""
    pages = _pages(s3, Bucket=bucket, Prefix=prefix, Delimiter="/")
    return [
        entry["Prefix"][len(prefix) : -1]
        for page in pages
        for entry in page.get("CommonPrefixes", ())
    ]


def _pages(s3: Any, **request: str) -> list[dict[str, Any]]:
    """All pages of a listing; none where the bucket does not exist."""
    try:
        return list(s3.get_paginator("list_objects_v2").paginate(**request))
    except s3.exceptions.ClientError as error:
        if error_code(error) == "NoSuchBucket":
            return []
        raise


def browser_url(platform: PlatformConfig, key: str) -> str:
    """Where a browser shows the object: AWS's console.

    A local platform has none; there the link is signed with its key, for a week.
    """
    if platform.credentials == "chain":
        return names.console_url(platform.bucket, key, platform.region)
    of_object = {"Bucket": platform.bucket, "Key": key}
    return str(
        aws_client("s3", platform).generate_presigned_url(
            "get_object", of_object, ExpiresIn=_WEEK_SECONDS
        )
    )


@task(name="put-objects", **PATIENT_TASK_OPTIONS)
def put_objects(platform: PlatformConfig, objects: Mapping[str, bytes]) -> None:
    """S3: small objects by key."""
    for key, body in objects.items():
        put_bytes(aws_client("s3", platform), platform.bucket, key, body)
