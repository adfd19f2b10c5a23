"""The SageMaker Python SDK v2, unmodified: an estimator on two nodes, attach() to its job, its
metrics and its logs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.clients.client_environment import client_python, client_variables, run_client
from tests.infra.local.platform_client import serve_platform
from tests.infra.local.platform_fakes import IMAGE_URI

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("attach_estimator.py")
SDK_CONFIG = """
SchemaVersion: '1.0'
SageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}
"""
"""A user's settings: the SDK's telemetry goes to AWS, whatever AWS_ENDPOINT_URL says."""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """Nodes are threads: what is tried here is what the API answers."""
    for served in serve_platform(tmp_path / "platform"):
        served.s3.create_bucket(Bucket="results")
        yield served


def test_estimator_and_attach(platform: SimpleNamespace, tmp_path: Path) -> None:
    settings = tmp_path / "sdk.yaml"
    settings.write_text(SDK_CONFIG)
    more = {"SAGEMAKER_USER_CONFIG_OVERRIDE": str(settings)}
    variables = client_variables(platform.endpoint, platform.state_dir, tmp_path, **more)
    python = client_python("sagemaker==2.257.7")
    said = run_client(
        python, PROGRAM, IMAGE_URI, "s3://results/sdk", variables=variables, seconds=240
    )
    assert "train_loss=0.333;" in said  # of the job's log, which fit() follows
    found = json.loads(said.strip().rpartition("\n")[2])
    assert found == {
        "role": "arn:aws:iam::000000000000:role/nodesweep-training",
        "nodes": 2,
        "max_run": 86_400,
        "output_kms_key": "",
        "tags": [{"Key": "team", "Value": "search"}],
        "hyperparameters": {"program": "quick"},
        "metrics": ["train:loss"],
        "model_data": found["model_data"],
    }
    assert found["model_data"].startswith("s3://results/sdk/") and found["model_data"].endswith(
        "/output/model.tar.gz"
    )
