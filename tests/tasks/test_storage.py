from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from configs.models import BenchmarkConfig, PlatformConfig
from scaling import names
from tasks.errors import PreflightRefused, SweepNotFound
from tasks.storage import get_bytes, latest_sweep, make_sure_of_bucket, put_bytes, put_once


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
