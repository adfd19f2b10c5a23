"""Spark on the nodes of a Processing job: the image's command, a cluster, Parquet input and JSON
output."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.local.tests.processing.processing_requests import (
    cluster,
    log_of,
    processing_request,
    s3_input,
    s3_output,
    texts_below,
    wait_for_end,
)
from infra.local.tests.processing.spark_platform import needs_java, spark_platform

pytestmark = [pytest.mark.slow, needs_java]
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
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with spark_platform(tmp_path_factory.mktemp("platform")) as platform:
        s3 = platform.s3
        for bucket in ("rows", "results"):
            s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket="rows", Key="code/app.py", Body=APP.encode())
        for number in range(4):
            file = io.BytesIO()
            pq.write_table(pa.table({"x": range(250 * number, 250 * (number + 1))}), file)
            s3.put_object(Bucket="rows", Key=f"in/{number}.parquet", Body=file.getvalue())
        yield platform


def count_rows(platform: SimpleNamespace, name: str, nodes: int, instance_type: str) -> dict:
    """Return the output of the application, requested as PySparkProcessor does, and its event logs'
    folder."""
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
            StoppingCondition={"MaxRuntimeInSeconds": 1800},
            ProcessingInputs=[
                s3_input("code", "s3://rows/code/app.py"),
                s3_input("rows", "s3://rows/in"),
            ],
            ProcessingOutputConfig={"Outputs": [out, logs]},
        )
    )
    job = wait_for_end(platform.sagemaker, name, 1800)
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
