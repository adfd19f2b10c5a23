"""The calls of a validation on Spark, for a platform that runs no Processing jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.aws.platform import aws_client
from nodesweep.aws.storage import put_once
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import WITH_SECRETS
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.processing import submit
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.sagemaker.validation_request import build_validation_request
from nodesweep.polling import Clock
from nodesweep.scaling import names
from nodesweep.scaling.planning.validation import spark_image
from nodesweep.tasks.image.bases import pin_base_images
from nodesweep.tasks.image.find import Images
from nodesweep.tasks.sweeps.claims import read_validation_claims
from nodesweep.tasks.sweeps.orphans import validation_orphans
from nodesweep.tasks.sweeps.stopping import end_jobs
from tests.infra.aws.api_calls import Answers

ACCOUNT = "000000000001"


def validate_on_spark(platform: SimpleNamespace, first: BenchmarkConfig) -> None:
    """Start the Processing job, find it again, detect it as orphaned, and stop it.

    A simulation runs no such jobs: pass PROCESSING to recorded() for the responses.
    """
    raw = first.model_dump(mode="json", context=WITH_SECRETS)
    source = f"{platform.stack.outputs['DataUri']}digits/"
    raw["dataset"] |= {"source": source, "format": "parquet", "validation": {"engine": "spark"}}
    config = BenchmarkConfig.model_validate(raw)
    sweep = names.sweep_id(config, datetime(2026, 11, 21, tzinfo=UTC))
    image = spark_image(config.image, config.validation)
    pin_base_images(Images(backend_of(config.platform), image), image.all_build_args)
    request = build_validation_request(config, sweep, "image", "0" * 64)
    name = request["ProcessingJobName"]
    s3, sagemaker = (aws_client(service, config.platform) for service in ("s3", "sagemaker"))
    key = names.validation_request_key(config.platform.prefix, sweep, name)
    put_once(s3, config.platform.bucket, key, b"{}")
    submit(sagemaker, request)
    PROCESSING_JOBS[name] = request
    submit(sagemaker, request)
    store = BucketStore(config.platform, client=s3)
    assert read_validation_claims(store, sweep) == [name]
    PROCESSING_JOBS[name] = {**request, "ProcessingJobStatus": "InProgress"}
    assert validation_orphans(backend_of(config.platform).validations(), store, 60.0) == [name]
    assert end_jobs(backend_of(config.platform).validations(), [name], Clock()) == [name]


PROCESSING_JOBS: dict[str, dict[str, Any]] = {}


def describe_processing(request: Any) -> dict[str, Any]:
    """Return the description of a created job."""
    name = request["ProcessingJobName"]
    if name not in PROCESSING_JOBS:
        error = {"Code": "ValidationException", "Message": "Could not find requested job"}
        raise ClientError({"Error": error}, "DescribeProcessingJob")
    arn = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:processing-job/{name}"
    return {"ProcessingJobStatus": "Completed", **PROCESSING_JOBS[name], "ProcessingJobArn": arn}


def stop_processing(request: Any) -> dict[str, Any]:
    """Set the job's status to Stopping."""
    PROCESSING_JOBS[request["ProcessingJobName"]]["ProcessingJobStatus"] = "Stopping"
    return {}


def list_processing(request: Any) -> dict[str, Any]:
    """Return every created job, as of a day later."""
    created = {"CreationTime": datetime(2026, 11, 21, tzinfo=UTC)}
    jobs = [describe_processing({"ProcessingJobName": name}) | created for name in PROCESSING_JOBS]
    date = {"date": "Sun, 22 Nov 2026 00:00:00 GMT"}
    return {"ProcessingJobSummaries": jobs, "ResponseMetadata": {"HTTPHeaders": date}}


def tags_of(request: Any) -> dict[str, Any] | None:
    """Return a Processing job's tags; None for a training job, which the platform knows."""
    name = request["ResourceArn"].partition("/")[2]
    return {"Tags": PROCESSING_JOBS[name]["Tags"]} if name in PROCESSING_JOBS else None


PROCESSING: Answers = {
    "sagemaker:CreateProcessingJob": lambda request: {},
    "sagemaker:DescribeProcessingJob": describe_processing,
    "sagemaker:StopProcessingJob": stop_processing,
    "sagemaker:ListProcessingJobs": list_processing,
    "sagemaker:ListTags": tags_of,
}
