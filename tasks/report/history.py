"""The history in the bucket: a finished sweep's Parquet file into it, a benchmark's files out of it."""

from __future__ import annotations

from typing import Any

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from scaling.report.model import ScalingReport
from scaling.trend.history import HISTORY_SCHEMA_VERSION, history_table, write_history
from tasks.errors import error_code
from tasks.platform import TASK_OPTIONS, aws_client
from tasks.storage import get_bytes, put_bytes


def put_history(s3: Any, platform: PlatformConfig, report: ScalingReport, benchmark: str) -> str:
    """Write the sweep's file, or replace it: its key is the sweep's. Returns its s3:// URI."""
    key = names.history_key(platform.prefix, benchmark, report.sweep_id, HISTORY_SCHEMA_VERSION)
    return put_bytes(s3, platform.bucket, key, write_history(history_table(report, benchmark)))


def read_history_files(s3: Any, platform: PlatformConfig, benchmark: str) -> dict[str, bytes]:
    """Every file of the benchmark by its s3:// URI, in order of the key; empty where there is none."""
    key = names.history_key(platform.prefix, benchmark, "", HISTORY_SCHEMA_VERSION)
    partition, _, ending = key.rpartition("/")
    pages = _pages(s3, platform, Prefix=f"{partition}/")
    keys = sorted(item["Key"] for page in pages for item in page.get("Contents", ()) if item["Key"].endswith(ending))
    bodies = {key: get_bytes(s3, platform.bucket, key) for key in keys}
    return {f"s3://{platform.bucket}/{key}": body for key, body in bodies.items() if body is not None}


def list_benchmarks(s3: Any, platform: PlatformConfig) -> list[str]:
    """Names of the benchmarks that have a history, sorted."""
    table = names.history_key(platform.prefix, "", "", HISTORY_SCHEMA_VERSION).rpartition("/")[0]  # …/benchmark=
    pages = _pages(s3, platform, Prefix=table, Delimiter="/")
    found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
    return sorted(prefix.removeprefix(table).rstrip("/") for prefix in found)


@task(name="append-history", **TASK_OPTIONS)
def append_history(platform: PlatformConfig, report: ScalingReport, benchmark: str) -> str:
    """S3: the sweep's rows of the history."""
    return put_history(aws_client("s3", platform), platform, report, benchmark)


def _pages(s3: Any, platform: PlatformConfig, **request: str) -> list[dict[str, Any]]:
    """All pages of a listing; none where the bucket does not exist."""
    try:
        return list(s3.get_paginator("list_objects_v2").paginate(Bucket=platform.bucket, **request))
    except s3.exceptions.ClientError as error:
        if error_code(error) == "NoSuchBucket":
            return []
        raise
