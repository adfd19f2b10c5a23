"""A Processing job whose nodes are containers: the files below /opt/ml, its data in and out, its
log, and its end.

Its image is the small one of the tests, without Spark, since Java and PySpark would add about a
gigabyte to the base image that every machine with these tests builds.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.platform_client import wait_until
from infra.local.tests.processing.processing_requests import (
    cluster,
    log_of,
    processing_request,
    s3_input,
    s3_output,
    texts_below,
    wait_for_end,
)
from tests.containers.container_bench import is_clean

pytestmark = [pytest.mark.slow, pytest.mark.containers]


def run(platform: SimpleNamespace, image: str, name: str, *arguments: str) -> dict[str, Any]:
    """Run a job of two nodes that share three files, requested as by ScriptProcessor; return its
    description after its end."""
    s3, program = platform.s3, Path(__file__).with_name("sum_rows.py")
    s3.put_object(Bucket="source", Key=f"{name}/code/app.py", Body=program.read_bytes())
    for letter, rows in {"a": "1\n2\n", "b": "30\n", "c": "400\n"}.items():
        s3.put_object(Bucket="source", Key=f"{name}/rows/{letter}.csv", Body=rows.encode())
    app = {
        "ImageUri": image,
        "ContainerEntrypoint": ["python3", "/opt/ml/processing/input/code/app.py"],
    }
    rows = s3_input("rows", f"s3://source/{name}/rows", S3DataDistributionType="ShardedByS3Key")
    platform.sagemaker.create_processing_job(
        **processing_request(
            name,
            AppSpecification={**app, **({"ContainerArguments": [*arguments]} if arguments else {})},
            ProcessingResources=cluster(2),
            ProcessingInputs=[s3_input("code", f"s3://source/{name}/code"), rows],
            ProcessingOutputConfig={
                "Outputs": [s3_output("sum", f"s3://results/processing/{name}")]
            },
            StoppingCondition={"MaxRuntimeInSeconds": 300},
        )
    )
    return wait_for_end(platform.sagemaker, name, 300)


def test_two_nodes_share_the_data_and_find_each_other(
    platform: SimpleNamespace, tiny_image: str
) -> None:
    job = run(platform, tiny_image, "add-up")
    said = {host: log_of(platform, "add-up", host) for host in ("algo-1", "algo-2")}
    assert job["ProcessingJobStatus"] == "Completed", (job.get("FailureReason"), said)
    assert said == {
        "algo-1": ["algo-1 has a.csv, c.csv: 403"],
        "algo-2": ["algo-2 has b.csv: 30"],
    }
    assert job["ExitMessage"] == "2 nodes: 433"
    assert texts_below(platform.s3, "results", "processing/add-up/") == {"sum.txt": "433"}
    assert job["ProcessingStartTime"] < job["ProcessingEndTime"]
    wait_until(lambda: is_clean(platform.state_dir), 180)


def test_a_program_that_fails_is_told_and_leaves_nothing(
    platform: SimpleNamespace, tiny_image: str
) -> None:
    job = run(platform, tiny_image, "fall-over", "--fail")
    assert job["ProcessingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("AlgorithmError: algo-1: ") and job[
        "FailureReason"
    ].endswith("exit code: 3")
    assert log_of(platform, "fall-over", "algo-1") == ["algo-1 has a.csv, c.csv: 403"]
    assert texts_below(platform.s3, "results", "processing/fall-over/") == {}
    wait_until(lambda: is_clean(platform.state_dir), 180)
