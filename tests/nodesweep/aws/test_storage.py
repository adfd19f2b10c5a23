from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nodesweep.aws.storage import get_bytes, put_bytes, put_once


def test_bytes_come_back_and_missing_ones_are_none(aws: Callable[[str], Any]) -> None:
    s3 = aws("s3")
    assert get_bytes(s3, "bucket", "a/report.html") is None  # no such bucket
    s3.create_bucket(Bucket="bucket")
    assert get_bytes(s3, "bucket", "a/report.html") is None
    assert put_bytes(s3, "bucket", "a/report.html", b"<p>") == "s3://bucket/a/report.html"
    assert get_bytes(s3, "bucket", "a/report.html") == b"<p>"
    assert s3.head_object(Bucket="bucket", Key="a/report.html")["ContentType"] == "text/html"


class WhoMayNotList:
    """S3 for the stack's pipeline role: 403 for a missing object, and listings of permitted
    prefixes only."""

    def __init__(self, s3: Any, prefix: str) -> None:
        self._s3, self._prefix, self.exceptions = s3, prefix, s3.exceptions

    def _read(self, operation: str, code: str, request: dict[str, Any]) -> Any:
        try:
            return getattr(self._s3, operation)(**request)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                raise ClientError(
                    {"Error": {"Code": code, "Message": "Access Denied"}}, operation
                ) from error
            raise

    def get_object(self, **request: Any) -> Any:
        return self._read("get_object", "AccessDenied", request)

    def head_object(self, **request: Any) -> Any:
        return self._read("head_object", "403", request)

    def list_objects_v2(self, **request: Any) -> Any:
        if not request.get("Prefix", "").startswith(self._prefix):
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListObjectsV2")
        return self._s3.list_objects_v2(**request)

    def put_object(self, **request: Any) -> Any:
        return self._s3.put_object(**request)


def test_what_is_missing_is_told_from_what_is_forbidden_without_listing_the_bucket(
    aws: Callable[[str], Any],
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket="bucket")
    role = WhoMayNotList(s3, "nodesweep/")
    assert get_bytes(role, "bucket", "nodesweep/a") is None
    put_once(role, "bucket", "nodesweep/ab", b"x")
    assert get_bytes(role, "bucket", "nodesweep/a") is None, "another key begins with it"
    assert get_bytes(role, "bucket", "nodesweep/ab") == b"x"
    with pytest.raises(ClientError, match="AccessDenied"):
        get_bytes(role, "bucket", "elsewhere/a")


def test_content_that_is_there_whole_is_not_sent_again(aws: Callable[[str], Any]) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket="bucket")
    s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    for body in (b"one", b"one", b"another"):
        assert put_once(s3, "bucket", "k", body) == "s3://bucket/k"
    versions = s3.list_object_versions(Bucket="bucket")["Versions"]
    assert len(versions) == 2 and get_bytes(s3, "bucket", "k") == b"another"
