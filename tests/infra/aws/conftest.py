"""A simulated platform with the stack deployed into it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from infra.local.tests.platform_client import serve_simulated
from tests.infra.aws.deployed import deploy, make_project


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A served platform; `stack` is deployed with the template's defaults."""
    model = {
        "t_compute_seconds": 60,
        "startup_seconds": 1,
        "download_seconds": 1,
        "setup_seconds": 1,
    }
    # A virtual second takes 2 ms, long enough to observe a running job.
    for served in serve_simulated(
        tmp_path_factory.mktemp("platform"), model=model, time_scale=0.002
    ):
        served.stack = deploy(served.endpoint, "nodesweep")
        make_project(served.endpoint, served.stack)
        yield served
