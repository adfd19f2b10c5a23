"""The SageMaker Python SDK v3, unmodified: ModelTrainer with Torchrun on two nodes (processes)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.platform_client import client, made_plan
from nodesweep.configs.load import load_config
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import plan_sweep
from sagemaker_emulator.engine.host.containment import Containment
from sagemaker_emulator.engine.process.image_store import ProcessImageStore
from sagemaker_emulator.server import daemon
from sagemaker_emulator.server.contract import ServerConfig
from tests.clients.client_environment import client_python, client_variables, run_client
from tests.clients.model_source import facts_of, write_source
from tests.containers.container_bench import archive_names, log_of, wait_for_end
from tests.nodesweep.launch.sagemaker.rendered import build_request

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("train_model.py")
SDK = ("sagemaker-train==1.27.0", "sagemaker-core==2.27.0")
"""Parts of the package `sagemaker` 3.27 for training; the rest of it is serving and mlops."""
SDK_CONFIG = """
SchemaVersion: '1.0'
SageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true, Session: {DefaultS3Bucket: own-bucket}}}}
"""
"""A user's settings. Without a bucket the SDK names one by the account, which it asks AWS's own STS
for, whatever AWS_ENDPOINT_URL says; its telemetry goes to AWS, too."""
STORE = Path(__file__).resolve().parents[2] / ".nodesweep" / "tests"
CONFIG = load_config(Path(__file__).resolve().parents[2] / "configs" / "local.yaml")
SECONDS = 900.0  # for a machine that has much else to do


@pytest.fixture(scope="module")
def platform(
    image_store: ProcessImageStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SimpleNamespace]:
    """A platform with the process engine in a separate process, with the tests' image store."""
    state_dir = tmp_path_factory.mktemp("platform")
    if problem := Containment.find(state_dir).opt_ml_problem:
        pytest.skip(f"no /opt/ml of a node's own on this machine: {problem}")
    for name in ("images", "venvs"):
        (state_dir / name).symlink_to(STORE / name)
    endpoint = daemon.start(ServerConfig(0, state_dir, owner_pid=os.getpid()))
    clients = {service: client(endpoint, service) for service in ("sagemaker", "s3", "logs")}
    put_table(clients["s3"])
    yield SimpleNamespace(endpoint=endpoint, state_dir=state_dir, **clients)
    daemon.stop(state_dir)


def put_table(s3: Any) -> None:
    """Upload the data of the jobs' channel."""
    s3.create_bucket(Bucket="tables")
    s3.put_object(Bucket="tables", Key="own/table.csv", Body=b"1,2\n3,4\n")


def train(
    platform: SimpleNamespace,
    image: str,
    folder: Path,
    types: str = "ml.local.large",
    plan: str = "-",
    *boom: str,
) -> tuple[str, dict[str, Any]]:
    """Return the output of the client, and the description of its job after the job's end."""
    config = folder / "sdk.yaml"
    config.write_text(SDK_CONFIG)
    variables = client_variables(
        platform.endpoint,
        platform.state_dir,
        folder,
        SAGEMAKER_USER_CONFIG_OVERRIDE=str(config),
    )
    source = write_source(folder / "source")
    arguments = image, str(source), "s3://tables/own", types, plan, *boom
    python = client_python(*SDK)
    said = run_client(python, PROGRAM, *arguments, variables=variables, seconds=SECONDS)
    name = said.rpartition("job=")[2].split()[0]
    return said, wait_for_end(platform, name)


def asked_for(job: dict[str, Any]) -> dict[str, Any]:
    """Return the ResourceConfig that the SDK sent, without the platform's additions."""
    resources = job["ResourceConfig"].items()
    return {name: value for name, value in resources if not name.startswith("Selected")}


def sent(**training: Any) -> dict[str, Any]:
    """Return the ResourceConfig that nodesweep sends for the same inputs."""
    asked = {"instance_type": "ml.local.large", "volume_size_gb": 1, **training}
    section = CONFIG.training.model_copy(update=asked)
    sweep = CONFIG.sweep.model_copy(update={"node_counts": (2,)})
    config = CONFIG.model_copy(update={"training": section, "sweep": sweep})
    point = plan_sweep(config, config.node_type("ml.local.large")).points[0]
    inputs = ResolvedInputs("own-20261128000000-00000000", "own:1", None, None, ())
    found = build_request(config, point, inputs)["ResourceConfig"]
    return {name: value for name, value in found.items() if value is not None}


def test_two_nodes_under_torchrun(
    platform: SimpleNamespace,
    image_uri: str,
    image_store: ProcessImageStore,
    tmp_path: Path,
) -> None:
    plan = made_plan(platform, "ml.local.large", 2)
    said, job = train(platform, image_uri, tmp_path, "ml.local.large", plan)
    assert asked_for(job) == sent(training_plan_arn=plan)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert job["AlgorithmSpecification"]["ContainerEntrypoint"] == ["/bin/bash"]
    channels = {channel["ChannelName"] for channel in job["InputDataConfig"]}
    assert channels == {"training", "code", "sm_drivers"}
    for host in ("algo-1", "algo-2"):
        facts = facts_of(log_of(platform, job["TrainingJobName"], host))
        own = facts.pop("own")
        assert f"/{host}/python/lib/" in own  # the node's, not the image's
        assert facts == {
            "sum": "3",
            "world": "2",
            "rows": "2",
            "host": host,
            "name": host,
            "folder": "/opt/ml/input/data/code",
            "lr": "0.1",
            "title": "two words",
            "model_dir": "/opt/ml/model",
        }
    packages = (image_store.resolve(image_uri) / "venv").resolve().glob("lib/*/site-packages")
    assert not any((folder / "own_requirement.py").exists() for folder in packages)
    assert "facts: sum=3; world=2" in said  # the SDK follows the job's log
    bucket, _, key = job["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").partition("/")
    assert archive_names(platform, key, bucket) == ["rank-0.txt", "rank-1.txt"]


def test_a_program_that_fails_is_the_jobs_failure(
    platform: SimpleNamespace,
    image_uri: str,
    tmp_path: Path,
) -> None:
    types = "ml.local.large,ml.local.small"
    _, job = train(platform, image_uri, tmp_path, types, "-", "1")
    assert asked_for(job) == sent(instance_fallbacks=("ml.local.small",))
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("AlgorithmError: algo-2")
    lines = log_of(platform, job["TrainingJobName"], "algo-2")
    assert any("ValueError: boom on rank 1" in line for line in lines)
