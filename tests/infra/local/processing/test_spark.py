"""Spark on the nodes of a Processing job: the image's command, a cluster of them, Parquet in, JSON
out.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.local.engine.host.containment import Containment
from infra.local.engine.process.image_store import ProcessImageStore
from infra.local.server import daemon
from infra.local.server.contract import ServerConfig
from tests.infra.local.platform_client import client
from tests.infra.local.processing.processing_requests import (
    cluster,
    log_of,
    processing_request,
    s3_input,
    s3_output,
    texts_below,
    wait_for_end,
)

REPOSITORY = Path(__file__).resolve().parents[4]
STORE = REPOSITORY / ".nodesweep" / "tests"
REGISTRY = "000000000000.dkr.ecr.us-east-1.amazonaws.com"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("java") is None,
        reason="Spark needs Java (Debian: apt-get install openjdk-17-jre-headless)",
    ),
]
APP = """
import json, pathlib, socket, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions
spark = SparkSession.builder.appName("count").getOrCreate()
rows = spark.read.parquet("file:///opt/ml/processing/input/rows")
def where(part):
    yield socket.gethostname(), sum(1 for _ in part)
shares = rows.repartition(8).rdd.mapPartitions(where).collect()
found = {
    "rows": rows.count(),
    "sum": rows.agg(functions.sum("x")).first()[0],
    "hosts": sorted({host for host, _ in shares}),
    "master": spark.sparkContext.master,
    "arguments": sys.argv[1:],
}
pathlib.Path("/opt/ml/processing/output/out/found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def image_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Spark image without Great Expectations, which is no part of what is tried here. Its tag
    says what is in it, as the store is kept between test runs.
    """
    context = tmp_path_factory.mktemp("context")
    shutil.copytree(REPOSITORY / "infra" / "image_spark", context, dirs_exist_ok=True)
    (context / "requirements.txt").write_text("")
    files = sorted(
        path for path in context.rglob("*") if path.suffix in ("", ".py", ".toml", ".txt")
    )
    content = b"".join(path.read_bytes() for path in files if path.is_file())
    tag = hashlib.sha256(content).hexdigest()[:16]
    arguments = {"REQUIREMENTS": "requirements-emulated.txt"}
    store = ProcessImageStore(STORE)
    store.build(context, "spark", tag, arguments, print, threading.Event(), 900)
    return f"{REGISTRY}/spark:{tag}"


@pytest.fixture(scope="module")
def platform(image_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A platform with the process engine, in a process of its own, with the tests' image store."""
    state_dir = tmp_path_factory.mktemp("platform")
    if problem := Containment.find(state_dir).opt_ml_problem:
        pytest.skip(f"no /opt/ml of a node's own on this machine: {problem}")
    for name in ("images", "venvs"):
        (state_dir / name).symlink_to(STORE / name)
    endpoint = daemon.start(ServerConfig(0, state_dir, owner_pid=os.getpid()))
    clients = {name: client(endpoint, name) for name in ("sagemaker", "s3", "logs")}
    s3 = clients["s3"]
    for bucket in ("rows", "results"):
        s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket="rows", Key="code/app.py", Body=APP.encode())
    for number in range(4):
        file = io.BytesIO()
        pq.write_table(pa.table({"x": range(250 * number, 250 * (number + 1))}), file)
        s3.put_object(Bucket="rows", Key=f"in/{number}.parquet", Body=file.getvalue())
    yield SimpleNamespace(image_uri=image_uri, **clients)
    daemon.stop(state_dir)


def count_rows(platform: SimpleNamespace, name: str, nodes: int, instance_type: str) -> dict:
    """What the application found. Asked for as PySparkProcessor does: its entry point, and its
    folder of event logs.
    """
    events = "/opt/ml/processing/spark-events/"
    app = {
        "ImageUri": platform.image_uri,
        "ContainerEntrypoint": [
            *("smspark-submit", "--local-spark-event-logs-dir", events),
            "/opt/ml/processing/input/code/app.py",
        ],
        "ContainerArguments": ["--of", name],
    }
    out = s3_output("out", f"s3://results/{name}")
    logs = s3_output(
        "events", f"s3://results/{name}-events", LocalPath=events, S3UploadMode="Continuous"
    )
    platform.sagemaker.create_processing_job(
        **processing_request(
            name,
            AppSpecification=app,
            Environment={},
            ProcessingResources=cluster(nodes, instance_type),
            StoppingCondition={"MaxRuntimeInSeconds": 600},
            ProcessingInputs=[
                s3_input("code", "s3://rows/code/app.py"),
                s3_input("rows", "s3://rows/in"),
            ],
            ProcessingOutputConfig={"Outputs": [out, logs]},
        )
    )
    job = wait_for_end(platform.sagemaker, name, 600)
    assert job["ProcessingJobStatus"] == "Completed", log_of(platform, name, "algo-1")[-40:]
    [found] = texts_below(platform.s3, "results", f"{name}/").values()
    return dict(json.loads(found))


def test_two_nodes_are_one_cluster(platform: SimpleNamespace) -> None:
    assert count_rows(platform, "two", 2, "ml.local.large") == {
        "rows": 1000,
        "sum": 499_500,
        "hosts": ["algo-1", "algo-2"],
        "master": "spark://algo-1:7077",
        "arguments": ["--of", "two"],
    }
    listed = platform.s3.list_objects_v2(Bucket="results", Prefix="two-events/")["Contents"]
    assert any("app-" in one["Key"] for one in listed)
