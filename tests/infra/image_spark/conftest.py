"""A mocked S3 for the program that judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodesweep.infra.image_spark.nodesweep_judge import reading
from tests.infra.image_spark.judged_data import BUCKET


@pytest.fixture
def s3(aws: Callable[[str], Any]) -> Any:
    """An S3 client; the program creates a new one for each test."""
    reading._client.cache_clear()
    client = aws("s3")
    client.create_bucket(Bucket=BUCKET)
    return client
