"""A Processing job on two nodes judges as this machine does: types, nulls, planted faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tasks.dataset.remote.objects import describe_remote
from tasks.dataset.remote.validation import remote_tables
from tasks.dataset.spark.contract import report_of, request_document
from tasks.dataset.validation import validate_tables
from tests.infra.image_spark.judged_data import BUCKET, CASES
from tests.infra.local.processing.processing_requests import (
    cluster,
    log_of,
    processing_request,
    s3_input,
    s3_output,
    texts_below,
    wait_for_end,
)
from tests.infra.local.processing.spark_platform import needs_java, spark_platform

pytestmark = [pytest.mark.slow, needs_java]
NOW = datetime(2026, 11, 29, tzinfo=UTC)
PLACE = "/opt/ml/processing"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with spark_platform(tmp_path_factory.mktemp("platform")) as platform:
        platform.s3.create_bucket(Bucket=BUCKET)
        yield platform


def test_two_nodes_give_the_verdict_of_one_machine(platform: SimpleNamespace) -> None:
    s3, asked, arguments = platform.s3, {}, []
    for name, case in CASES.items():
        prefix = name.replace(" ", "-")
        config = case.put(s3, prefix)
        asked[prefix] = (config, describe_remote(s3, config))
        document = json.dumps(request_document(*asked[prefix]))
        s3.put_object(Bucket=BUCKET, Key=f"requests/{prefix}.json", Body=document.encode())
        arguments += ["--judge", f"{PLACE}/input/request/{prefix}.json"]
        arguments += [f"{PLACE}/output/verdict/{prefix}.json"]
    s3.delete_object(Bucket=BUCKET, Key="only-empty/e.parquet")
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
        name.removesuffix(".json"): json.loads(text)
        for name, text in texts_below(s3, BUCKET, "verdicts/").items()
    }
    deleted = verdicts.pop("only-empty")["error"]
    assert (deleted["kind"], deleted["key"]) == ("deleted", "only-empty/e.parquet")
    del asked["only-empty"]
    assert set(verdicts) == set(asked)
    for prefix, (config, dataset) in asked.items():
        theirs = validate_tables(remote_tables(s3, dataset, config), config, now=NOW)
        ours = report_of(verdicts[prefix], config, dataset, NOW)
        assert ours.model_dump() == theirs.model_dump(), prefix
    # in 2 files; a verdict in which Spark proves nothing would be the same
    assert verdicts["types"]["spark"]["proven"] >= 30
    assert verdicts["types"]["spark"]["tasks_at_once"] == 4
