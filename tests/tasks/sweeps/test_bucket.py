from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import PreflightRefused
from nodesweep.tasks.sweeps.bucket import check_or_create_bucket
from tests.nodesweep.aws.test_storage import WhoMayNotList


def test_missing_bucket_is_made_only_where_allowed(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    s3 = aws("s3")
    with pytest.raises(PreflightRefused, match=r"platform\.bucket: bench-bucket "):
        check_or_create_bucket(s3, platform)
    check_or_create_bucket(s3, platform.model_copy(update={"create_missing": True}))
    check_or_create_bucket(s3, platform)


def test_a_bucket_is_asked_for_only_what_lies_below_the_prefix(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    check_or_create_bucket(WhoMayNotList(s3, f"{platform.prefix}/"), platform)
    with pytest.raises(PreflightRefused, match="bucket"):
        check_or_create_bucket(WhoMayNotList(s3, "other/"), platform)
