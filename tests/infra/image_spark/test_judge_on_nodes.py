"""A Processing job on two nodes judges as this machine does: types, broken files, text, keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

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
from tests.infra.image_spark.both_engines import ask, assert_one_verdict
from tests.infra.image_spark.judged_data import BUCKET

pytestmark = [pytest.mark.slow, needs_java]
PLACE = "/opt/ml/processing"
JUDGED = ("types", "only empty", "broken files", "csv", "keys")
"""One of each way to read and to judge; test_judge_on_spark_35.py has all of them."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with spark_platform(tmp_path_factory.mktemp("platform")) as platform:
        yield platform


def test_two_nodes_give_the_verdict_of_one_machine(platform: SimpleNamespace) -> None:
    s3, arguments = platform.s3, []
    asked = ask(s3, JUDGED)
    for prefix, one in asked.items():
        s3.put_object(Bucket=BUCKET, Key=f"requests/{prefix}.json", Body=one.request.encode())
        arguments += ["--judge", f"{PLACE}/input/request/{prefix}.json"]
        arguments += [f"{PLACE}/output/verdict/{prefix}.json"]
    platform.sagemaker.create_processing_job(
        **processing_request(
            "judge",
            AppSpecification={
                "ImageUri": platform.image_uri,
                "ContainerEntrypoint": ["smspark-submit", "/opt/nodesweep/validate_dataset.py"],
                "ContainerArguments": arguments,
            },
            Environment={},
            ProcessingResources=cluster(2, "ml.local.large"),
            StoppingCondition={"MaxRuntimeInSeconds": 900},
            ProcessingInputs=[s3_input("request", f"s3://{BUCKET}/requests")],
            ProcessingOutputConfig={"Outputs": [s3_output("verdict", f"s3://{BUCKET}/verdicts")]},
        )
    )
    job = wait_for_end(platform.sagemaker, "judge", 900)
    assert job["ProcessingJobStatus"] == "Completed", log_of(platform, "judge", "algo-1")[-40:]
    verdicts = {
        name.removesuffix(".json"): text
        for name, text in texts_below(s3, BUCKET, "verdicts/").items()
    }
    assert_one_verdict(s3, asked, verdicts)
    assert json.loads(verdicts["types"])["spark"]["tasks_at_once"] == 4
