"""A sweep's report out of the bucket."""

from __future__ import annotations

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from tasks.platform import TASK_OPTIONS, aws_client
from tasks.storage import get_bytes


@task(name="read-report-file", **TASK_OPTIONS)
def read_report_file(platform: PlatformConfig, sweep: str, file_name: str) -> bytes | None:
    """S3: a file of the sweep's report, or None."""
    return get_bytes(aws_client("s3", platform), platform.bucket, names.report_key(platform.prefix, sweep, file_name))
