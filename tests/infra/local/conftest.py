"""A platform served from this process, with a fake engine."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.infra.local.platform_client import serve_platform


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """One served platform per test module, with a bucket for results."""
    for served in serve_platform(tmp_path_factory.mktemp("platform"), **{"ml.m5.large": 2}):
        served.s3.create_bucket(Bucket="results")
        yield served
