"""A mocked S3 for the program that judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import botocore.session
import pytest

from nodesweep.aws.api_models import with_shared_models
from nodesweep.infra.image_spark.nodesweep_judge import reading
from tests.infra.image_spark.judged_data import BUCKET


@pytest.fixture
def s3(aws: Callable[[str], Any]) -> Any:
    """An S3 client; the program creates a new one for each test, from models that all share."""
    reading._client.cache_clear()
    boto3.setup_default_session(botocore_session=with_shared_models(botocore.session.Session()))
    client = aws("s3")
    client.create_bucket(Bucket=BUCKET)
    return client
