from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from configs.models import BenchmarkConfig, PlatformConfig
from scaling import names
from tasks.errors import PreflightRefused, SweepNotFound
from tasks.storage import (
    get_bytes,
    is_code_proven,
    latest_sweep,
    make_sure_of_bucket,
    mark_code_proven,
    put_bytes,
    put_once,
)


def test_missing_bucket_is_made_only_where_allowed(aws: Callable[[str], Any], platform: PlatformConfig) -> None:
    s3 = aws("s3")
    with pytest.raises(PreflightRefused, match=r"platform\.bucket: bench-bucket does not exist"):
        make_sure_of_bucket(s3, platform)
    make_sure_of_bucket(s3, platform.model_copy(update={"create_missing": True}))
    make_sure_of_bucket(s3, platform)


def test_bytes_come_back_and_missing_ones_are_none(aws: Callable[[str], Any]) -> None:
    s3 = aws("s3")
    assert get_bytes(s3, "bucket", "a/report.html") is None  # no such bucket
    s3.create_bucket(Bucket="bucket")
    assert get_bytes(s3, "bucket", "a/report.html") is None
    assert put_bytes(s3, "bucket", "a/report.html", b"<p>") == "s3://bucket/a/report.html"
    assert get_bytes(s3, "bucket", "a/report.html") == b"<p>"
    assert s3.head_object(Bucket="bucket", Key="a/report.html")["ContentType"] == "text/html"


class WhoMayNotList:
    """S3 for the stack's pipeline role: 403 for what is missing, no listing without a prefix that it may list."""

    def __init__(self, s3: Any, prefix: str) -> None:
        self._s3, self._prefix, self.exceptions = s3, prefix, s3.exceptions

    def _read(self, operation: str, code: str, request: dict[str, Any]) -> Any:
        try:
            return getattr(self._s3, operation)(**request)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                raise ClientError({"Error": {"Code": code, "Message": "Access Denied"}}, operation) from error
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


def test_what_is_missing_is_told_from_what_is_forbidden_without_listing_the_bucket(aws: Callable[[str], Any]) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket="bucket")
    role = WhoMayNotList(s3, "nodesweep/")
    assert get_bytes(role, "bucket", "nodesweep/a") is None
    put_once(role, "bucket", "nodesweep/ab", b"x")
    assert get_bytes(role, "bucket", "nodesweep/a") is None, "another key begins with it"
    assert get_bytes(role, "bucket", "nodesweep/ab") == b"x"
    with pytest.raises(ClientError, match="AccessDenied"):
        get_bytes(role, "bucket", "elsewhere/a")


def test_a_bucket_is_asked_for_only_what_lies_below_the_prefix(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    make_sure_of_bucket(WhoMayNotList(s3, f"{platform.prefix}/"), platform)
    with pytest.raises(PreflightRefused, match="can't be used"):
        make_sure_of_bucket(WhoMayNotList(s3, "other/"), platform)


def test_latest_sweep_is_the_youngest_of_the_same_config(
    aws: Callable[[str], Any], make_config: Callable[..., BenchmarkConfig]
) -> None:
    s3, config = aws("s3"), make_config()
    s3.create_bucket(Bucket="bench-bucket")
    with pytest.raises(SweepNotFound, match="no sweep of this config"):
        latest_sweep(s3, config)
    sweeps = [names.sweep_id(config, datetime(2026, month, 1, tzinfo=UTC)) for month in (3, 11, 7)]
    other = names.sweep_id(make_config(sweep={"repeats": 2}), datetime(2026, 12, 1, tzinfo=UTC))
    for sweep in (*sweeps, other):
        s3.put_object(Bucket="bench-bucket", Key=names.sweep_config_key("nodesweep", sweep), Body=b"{}")
    assert latest_sweep(s3, config) == sweeps[1]


def test_content_that_is_there_whole_is_not_sent_again(aws: Callable[[str], Any]) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket="bucket")
    s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    for body in (b"one", b"one", b"another"):
        assert put_once(s3, "bucket", "k", body) == "s3://bucket/k"
    versions = s3.list_object_versions(Bucket="bucket")["Versions"]
    assert len(versions) == 2 and get_bytes(s3, "bucket", "k") == b"another"


def test_code_is_proven_once_by_the_first_sweep(
    aws: Callable[[str], Any], platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    monkeypatch.setattr("tasks.storage.aws_client", lambda service, platform: s3)
    assert not is_code_proven.fn(platform, "ab12")
    for sweep in ("first", "second"):
        mark_code_proven.fn(platform, "ab12", sweep)
    assert is_code_proven.fn(platform, "ab12")
    body = get_bytes(s3, platform.bucket, names.proven_code_key(platform.prefix, "ab12"))
    assert body is not None and b"first" in body
