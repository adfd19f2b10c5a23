"""What a finished job left behind: its metrics file in S3 and the last lines of its log."""

from __future__ import annotations

import io
import json
import logging
import tarfile
from collections.abc import Mapping
from typing import Any

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from scaling.failure import MAX_LINES
from tasks.errors import best_effort, error_code
from tasks.platform import PATIENT_TASK_OPTIONS, aws_client
from tasks.storage import get_bytes

logger = logging.getLogger("nodesweep.results")
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
LOG_TAIL_LINES = MAX_LINES
_MAX_METRICS_BYTES = 64 * 1024 * 1024


def read_metrics(s3: Any, bucket: str, key: str) -> dict[str, Any] | None:
    """metrics.json out of a job's output.tar.gz; None where the program wrote none, or none that is JSON."""
    archive = get_bytes(s3, bucket, key)
    if archive is None:
        return None
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
            members = [m for m in tar.getmembers() if m.isfile() and m.name.split("/")[-1] == names.METRICS_FILE]
            if not members or min(m.size for m in members) > _MAX_METRICS_BYTES:
                return None
            stream = tar.extractfile(min(members, key=lambda member: member.name.count("/")))
            metrics = json.loads(stream.read()) if stream else None
    except (tarfile.TarError, EOFError, ValueError) as error:
        logger.warning("s3://%s/%s holds no readable %s: %s", bucket, key, names.METRICS_FILE, error)
        return None
    return metrics if isinstance(metrics, dict) else None


def read_log_tail(logs: Any, job_name: str, lines: int = LOG_TAIL_LINES) -> list[str]:
    """The last lines of every node of a job, merged by time, each with its node's name.

    Empty without a log, and with a warning where it can't be read: the job's outcome counts without it.
    """
    merged: list[tuple[int, str]] = []
    with best_effort(f"the log of {job_name} can't be read"):
        merged = _last_events(logs, job_name, lines)
    return [text for _, text in sorted(merged, key=lambda entry: entry[0])]


def _last_events(logs: Any, job_name: str, lines: int) -> list[tuple[int, str]]:
    """(time, text) of the last lines of every node."""
    merged: list[tuple[int, str]] = []
    for stream, host in log_streams(logs, job_name):
        events = logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream, limit=lines, startFromHead=False)[
            "events"
        ]
        merged += [(event["timestamp"], f"{host}: {event['message'].rstrip()}") for event in events]
    return merged


def log_streams(logs: Any, job_name: str) -> list[tuple[str, str]]:
    """(stream, host) of every node of a job that has a log."""
    try:
        pages = logs.get_paginator("describe_log_streams").paginate(
            logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job_name}/"
        )
        streams = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
    except logs.exceptions.ClientError as error:
        if error_code(error) == "ResourceNotFoundException":
            return []
        raise
    return [(stream, stream.split("/")[-1].rsplit("-", 1)[0]) for stream in streams]


@task(name="read-job-metrics", **PATIENT_TASK_OPTIONS)
def read_job_metrics(platform: PlatformConfig, sweep: str, job_name: str) -> Mapping[str, Any] | None:
    """S3: the metrics.json that the training program wrote."""
    key = names.job_output_key(platform.prefix, sweep, job_name)
    return read_metrics(aws_client("s3", platform), platform.bucket, key)


@task(name="read-job-log", **PATIENT_TASK_OPTIONS)
def read_job_log(platform: PlatformConfig, job_name: str) -> list[str]:
    """CloudWatch Logs: the last lines of a job's nodes."""
    return read_log_tail(aws_client("logs", platform), job_name)
