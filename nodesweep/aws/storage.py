"""Read, write and list small objects in the bucket."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import error_code, suppress_codes
from nodesweep.scaling import names

_WEEK_SECONDS = 604_800  # the longest that S3 accepts


def put_bytes(s3: Any, bucket: str, key: str, body: bytes, only_if_absent: bool = False) -> str:
    """Write one object with its content type; return its s3:// URI.

    With `only_if_absent`, S3 refuses to replace an existing object (412).
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
    """Write an object whose key derives from its content, unless an intact copy exists."""
    try:
        found = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    except s3.exceptions.ClientError as error:
        if error_code(error) != "403" and not is_missing(s3, bucket, key, error):
            # A 403 does not show whether the object exists, so write it.
            raise
    else:
        if found.get("ChecksumSHA256") == base64.b64encode(hashlib.sha256(body).digest()).decode():
            return f"s3://{bucket}/{key}"
    return put_bytes(s3, bucket, key, body)


def get_bytes(s3: Any, bucket: str, key: str) -> bytes | None:
    """Return the object's body; None if the object or its bucket does not exist."""
    try:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except s3.exceptions.ClientError as error:
        if is_missing(s3, bucket, key, error):
            return None
        raise


def is_missing(s3: Any, bucket: str, key: str, error: ClientError) -> bool:
    """Return True if this failure to read an object means that it, or its bucket, does not exist.

    A caller without permission to list the whole bucket gets 403 instead of 404 ("GetObject", S3
    API reference). The pipeline role may list below its prefixes, so the key is then looked up in a
    listing.
    """
    code = error_code(error)
    if code in ("404", "NoSuchKey", "NotFound", "NoSuchBucket"):
        return True
    if code not in ("403", "AccessDenied"):
        return False
    try:
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", ())
    except ClientError:  # then the original error is more useful
        return False
    return key not in (item["Key"] for item in listed)


def list_objects(s3: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    """Return every object whose key begins with the prefix; none if the bucket does not exist."""
    return [
        item
        for page in _pages(s3, Bucket=bucket, Prefix=prefix)
        for item in page.get("Contents", ())
    ]


def list_folders(s3: Any, bucket: str, prefix: str) -> list[str]:
    """Return the distinct key parts between the prefix and the next slash."""
    pages = _pages(s3, Bucket=bucket, Prefix=prefix, Delimiter="/")
    return [
        entry["Prefix"][len(prefix) : -1]
        for page in pages
        for entry in page.get("CommonPrefixes", ())
    ]


def _pages(s3: Any, **request: str) -> list[dict[str, Any]]:
    """Return all pages of a listing; none if the bucket does not exist."""
    with suppress_codes("NoSuchBucket"):
        return list(s3.get_paginator("list_objects_v2").paginate(**request))
    return []


def browser_url(platform: PlatformConfig, key: str) -> str:
    """Return a URL that shows the object in a browser: its page in the AWS console.

    A local platform has no console, so the URL is presigned with its key and valid for a week.
    """
    if platform.credentials == "chain":
        return names.console_url(platform.bucket, key, platform.region)
    of_object = {"Bucket": platform.bucket, "Key": key}
    return str(
        aws_client("s3", platform).generate_presigned_url(
            "get_object", of_object, ExpiresIn=_WEEK_SECONDS
        )
    )
