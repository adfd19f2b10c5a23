"""The SageMaker Python SDK v2, unmodified: an estimator on two nodes, attach() to its job, the
job's metrics and logs, a ScriptProcessor and a PySparkProcessor."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.local.tests.platform_client import serve_platform
from infra.local.tests.platform_fakes import IMAGE_URI
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.clients.client_environment import client_python, client_variables, run_client

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("attach_estimator.py")
PROCESSORS = Path(__file__).with_name("process_data.py")
SDK_CONFIG = """
SchemaVersion: '1.0'
SageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}
"""
"""A user's settings: the SDK's telemetry goes to AWS, whatever AWS_ENDPOINT_URL says."""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A platform whose nodes are threads, since only the API's responses are tested."""
    for served in serve_platform(tmp_path / "platform"):
        served.s3.create_bucket(Bucket="results")
        yield served


def run_sdk(platform: SimpleNamespace, folder: Path, program: Path, *arguments: str) -> str:
    """Run a program that uses the SDK, and return its output."""
    settings = folder / "sdk.yaml"
    settings.write_text(SDK_CONFIG)
    more = {"SAGEMAKER_USER_CONFIG_OVERRIDE": str(settings)}
    variables = client_variables(platform.endpoint, platform.state_dir, folder, **more)
    python = client_python("sagemaker==2.257.7")
    return run_client(python, program, *arguments, variables=variables, seconds=240)


def test_estimator_and_attach(platform: SimpleNamespace, tmp_path: Path) -> None:
    said = run_sdk(platform, tmp_path, PROGRAM, IMAGE_URI, "s3://results/sdk")
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


def test_processors(platform: SimpleNamespace, tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}

    def look(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        """Record the environment of the job, and the files that it finds."""
        work = node.opt_ml / "processing"
        files = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())
        command = [*job.container_entrypoint, *job.container_arguments]
        seen.setdefault(job.job_name.partition("-")[0], [*command, *files])
        (node.opt_ml / "output" / "message").write_text(f"{node.host}. ")
        say("looked")

    platform.engine.programs["look"] = look
    platform.s3.create_bucket(Bucket="rows")
    platform.s3.put_object(Bucket="rows", Key="in/a.csv", Body=b"1")
    app = tmp_path / "app.py"
    app.write_text("print(1)")
    said = run_sdk(platform, tmp_path, PROCESSORS, IMAGE_URI, str(app))
    assert said.count("looked") == 4  # of the jobs' logs, which run() follows
    assert json.loads(said.strip().rpartition("\n")[2]) == {
        "ProcessingJobStatus": "Completed",
        "ExitMessage": "algo-1. algo-2. ",
    }
    code = "/opt/ml/processing/input/code/app.py"
    assert seen["script"] == ["python3", code, "--limit", "3", "in/a.csv", "input/code/app.py"]
    events = ["--local-spark-event-logs-dir", "/opt/ml/processing/spark-events/"]
    assert seen["spark"] == [
        *("smspark-submit", *events, code, "--limit", "4"),
        *("input/code/app.py", "input/conf/configuration.json"),
    ]
