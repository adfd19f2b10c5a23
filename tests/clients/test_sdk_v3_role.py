"""The role check of the SageMaker Python SDK v3, unmodified (sagemaker-core, which this project
installs).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from infra.local.tests.platform_client import serve_platform
from tests.clients.client_environment import client_variables, run_client

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("check_role.py")
ROLES = "arn:aws:iam::000000000000:role"


def test_roles_that_the_sdk_takes_and_one_that_it_refuses(tmp_path: Path) -> None:
    for platform in serve_platform(tmp_path / "platform"):
        variables = client_variables(platform.endpoint, platform.state_dir, tmp_path)
        said = run_client(Path(sys.executable), PROGRAM, variables=variables, seconds=240)
    found = json.loads(said.strip().rpartition("\n")[2])
    assert found["given"] == f"{ROLES}/nodesweep-training"
    assert found["made"].startswith(f"{ROLES}/SageMaker-AutoRole-")
    assert found["idle"].startswith("refused: ")
    assert "Missing permissions" in found["idle"]
