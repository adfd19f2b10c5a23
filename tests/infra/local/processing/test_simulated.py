"""A simulation has no Processing jobs, and says so."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.infra.local.platform_client import serve_simulated
from tests.infra.local.processing.processing_requests import processing_request


def test_a_processing_job_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with contextmanager(serve_simulated)(tmp_path) as served:
        with pytest.raises(ClientError) as caught:
            served.sagemaker.create_processing_job(**processing_request("none"))
        assert "start the local platform with --engine process or container" in str(caught.value)
        assert served.sagemaker.list_processing_jobs()["ProcessingJobSummaries"] == []
