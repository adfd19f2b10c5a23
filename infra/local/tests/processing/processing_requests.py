"""CreateProcessingJob requests, and functions that wait until jobs have ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from infra.local.tests.platform_client import ROLE_ARN, wait_until
from infra.local.tests.platform_fakes import IMAGE_URI

OVER = ("Completed", "Failed", "Stopped")
LOG_GROUP = "/aws/sagemaker/ProcessingJobs"


def processing_request(name: str, program: str = "quick", **changes: Any) -> dict[str, Any]:
    """Return a valid CreateProcessingJob request without data.

    `changes` replace top-level members; `program` selects the fake engine's program.
    """
    return {
        "ProcessingJobName": name,
        "ProcessingResources": cluster(1),
        "AppSpecification": {"ImageUri": IMAGE_URI, "ContainerEntrypoint": ["python3", "app.py"]},
        "Environment": {"PROGRAM": program},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "RoleArn": ROLE_ARN,
        **changes,
    }


def cluster(count: int, instance_type: str = "ml.local.small") -> dict[str, Any]:
    """Return ProcessingResources with this many nodes."""
    return {
        "ClusterConfig": {
            "InstanceType": instance_type,
            "InstanceCount": count,
            "VolumeSizeInGB": 1,
        }
    }


def s3_input(name: str, uri: str, **more: Any) -> dict[str, Any]:
    """Return an input for a request, which is copied to /opt/ml/processing/input/NAME."""
    place = {"S3Uri": uri, "LocalPath": f"/opt/ml/processing/input/{name}"}
    kind = {"S3DataType": "S3Prefix", "S3InputMode": "File"}
    return {"InputName": name, "S3Input": {**place, **kind, **more}}


def s3_output(name: str, uri: str, **more: Any) -> dict[str, Any]:
    """Return an output for a request, which is /opt/ml/processing/output/NAME at the end."""
    place = {"S3Uri": uri, "LocalPath": f"/opt/ml/processing/output/{name}"}
    return {"OutputName": name, "S3Output": {**place, "S3UploadMode": "EndOfJob", **more}}


def wait_for_end(sagemaker: Any, name: str, deadline_seconds: float = 300.0) -> dict[str, Any]:
    """Wait until a job has ended, and return its description."""

    def over() -> dict[str, Any] | None:
        job = sagemaker.describe_processing_job(ProcessingJobName=name)
        return job if job["ProcessingJobStatus"] in OVER else None

    found: dict[str, Any] = wait_until(over, deadline_seconds)
    return found


def run_job(
    platform: SimpleNamespace, name: str, program: str = "quick", **changes: Any
) -> dict[str, Any]:
    """Create a job, wait until it has ended, and return its description."""
    platform.sagemaker.create_processing_job(**processing_request(name, program, **changes))
    return wait_for_end(platform.sagemaker, name)


def texts_below(s3: Any, bucket: str, prefix: str) -> dict[str, str]:
    """Return the text of all objects with a prefix, by the rest of their keys."""
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    return {
        one["Key"].removeprefix(prefix): s3.get_object(Bucket=bucket, Key=one["Key"])["Body"]
        .read()
        .decode()
        for one in found
    }


def log_of(platform: SimpleNamespace, name: str, host: str) -> list[str]:
    """Return the lines in the log stream of a node."""
    events = platform.logs.filter_log_events(
        logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/{host}-"
    )["events"]
    return [event["message"] for event in events]
