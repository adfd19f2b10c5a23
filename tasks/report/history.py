"""The history in the bucket: write a finished sweep's Parquet file, read a benchmark's files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodesweep.aws.platform import TASK_OPTIONS, aws_client
from nodesweep.aws.storage import get_bytes, list_folders, list_objects, put_bytes
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import best_effort
from nodesweep.scaling import names
from nodesweep.scaling.predict.checked import check_predictions
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.trend.history import HISTORY_SCHEMA_VERSION, history_frame, write_history
from nodesweep.tasks.task import task


def put_history(
    s3: Any, platform: PlatformConfig, reports: Sequence[ScalingReport], benchmark: str
) -> str:
    """Write or replace the sweep's file, which has one key per sweep; return its s3:// URI.

    A sweep of several arms has a report for each, all in one file.
    """
    sweep = reports[0].sweep_id
    key = names.history_key(platform.prefix, benchmark, sweep, HISTORY_SCHEMA_VERSION)
    from pandas import concat  # slow to import

    frame = concat([history_frame(report) for report in reports])
    checks = [check for report in reports for check in check_predictions(report)]
    return put_bytes(s3, platform.bucket, key, write_history(frame, benchmark, checks))


def read_history_files(s3: Any, platform: PlatformConfig, benchmark: str) -> dict[str, bytes]:
    """Return every file of the benchmark by its s3:// URI, ordered by key.

    Return nothing if there is none; an unreadable file only causes a warning.
    """
    key = names.history_key(platform.prefix, benchmark, "", HISTORY_SCHEMA_VERSION)
    partition, _, ending = key.rpartition("/")
    listed = list_objects(s3, platform.bucket, f"{partition}/")
    keys = sorted(item["Key"] for item in listed if item["Key"].endswith(ending))
    bodies: dict[str, bytes] = {}
    for key in keys:
        uri = f"s3://{platform.bucket}/{key}"
        with best_effort(f"left out: {uri} can't be read"):
            if (body := get_bytes(s3, platform.bucket, key)) is not None:
                bodies[uri] = body
    return bodies


def list_benchmarks(s3: Any, platform: PlatformConfig) -> list[str]:
    """Return the names of the benchmarks that have a history, sorted."""
    # …/benchmark=
    table = names.history_key(platform.prefix, "", "", HISTORY_SCHEMA_VERSION).rpartition("/")[0]
    return sorted(list_folders(s3, platform.bucket, table))


@task(name="read-history", **TASK_OPTIONS)
def read_history_of(platform: PlatformConfig, benchmark: str) -> dict[str, bytes]:
    """Read every file of the benchmark's history from S3."""
    return read_history_files(aws_client("s3", platform), platform, benchmark)


@task(name="append-history", **TASK_OPTIONS)
def append_history(
    platform: PlatformConfig, reports: Sequence[ScalingReport], benchmark: str
) -> str:
    """Add the sweep's rows to the history in S3."""
    return put_history(aws_client("s3", platform), platform, reports, benchmark)
