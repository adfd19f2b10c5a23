from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from configs.models import PlatformConfig
from scaling import names
from tasks.jobs.proven_code import is_code_proven, mark_code_proven
from tasks.storage import get_bytes


def test_code_is_proven_once_by_the_first_sweep(
    aws: Callable[[str], Any], platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    monkeypatch.setattr("tasks.jobs.proven_code.aws_client", lambda service, platform: s3)
    assert not is_code_proven.fn(platform, "ab12")
    for sweep in ("first", "second"):
        mark_code_proven.fn(platform, "ab12", sweep)
    assert is_code_proven.fn(platform, "ab12")
    body = get_bytes(s3, platform.bucket, names.proven_code_key(platform.prefix, "ab12"))
    assert body is not None and b"first" in body
