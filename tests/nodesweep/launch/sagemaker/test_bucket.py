from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import PreflightRefused
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.polling import Clock
from tests.nodesweep.aws.test_storage import WhoMayNotList


def test_missing_bucket_is_made_only_where_allowed(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    s3 = aws("s3")
    with pytest.raises(PreflightRefused, match=r"platform\.bucket: bench-bucket "):
        BucketStore(platform, client=s3).prepare()
    BucketStore(platform.model_copy(update={"create_missing": True}), client=s3).prepare()
    BucketStore(platform, client=s3).prepare()


def test_a_bucket_is_asked_for_only_what_lies_below_the_prefix(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    BucketStore(platform, client=WhoMayNotList(s3, f"{platform.prefix}/")).prepare()
    with pytest.raises(PreflightRefused, match="bucket"):
        BucketStore(platform, client=WhoMayNotList(s3, "other/")).prepare()


def test_an_object_has_the_content_type_of_its_name(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    BucketStore(platform, client=s3).put("report/data-docs.html", b"<html>")
    stored = s3.get_object(Bucket=platform.bucket, Key="report/data-docs.html")
    assert stored["ContentType"] == "text/html"


def test_a_conditional_write_that_meets_another_is_tried_again(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    """S3 may refuse both of two simultaneous writes."""
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    conflict = s3.exceptions.ClientError(
        {"Error": {"Code": "ConditionalRequestConflict"}}, "PutObject"
    )
    conflicts = [conflict] * 3

    def put_object(**request: Any) -> Any:
        if conflicts:
            raise conflicts.pop()
        return s3.put_object(**request)

    busy = SimpleNamespace(put_object=put_object, exceptions=s3.exceptions)
    contended = BucketStore(platform, client=busy, clock=Clock(wait=lambda seconds: False))
    assert contended.put("k", b"x", only_if_absent=True) and not conflicts
    assert not contended.put("k", b"y", only_if_absent=True)
    conflicts[:] = [conflict] * 100
    with pytest.raises(s3.exceptions.ClientError, match="ConditionalRequestConflict"):
        contended.put("k", b"y", only_if_absent=True)
    assert len(conflicts) == 90
