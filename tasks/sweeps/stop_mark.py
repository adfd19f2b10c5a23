"""The mark in the bucket that keeps every run of a sweep from submitting further jobs."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from tasks.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS, aws_client
from tasks.storage import get_bytes, put_bytes


@task(name="mark-sweep-stopped", **TASK_OPTIONS)
def mark_sweep_stopped(platform: PlatformConfig, sweep: str) -> None:
    """S3: whoever runs this sweep, wherever, submits no further job of it. Each mark is another one, by its text."""
    body = names.pretty_json({"sweep_id": sweep, "mark": uuid4().hex})
    put_bytes(aws_client("s3", platform), platform.bucket, names.stop_marker_key(platform.prefix, sweep), body)


def read_stop_mark(s3: Any, platform: PlatformConfig, sweep: str) -> str | None:
    """The text of the last mark that stopped the sweep, None where it never was.

    A mark is never deleted: a run that goes on with a stopped sweep ignores the one it met as it began, so that a
    stop that is given while it starts holds, and so does every other run that was told to stop.
    """
    mark = get_bytes(s3, platform.bucket, names.stop_marker_key(platform.prefix, sweep))
    return None if mark is None else mark.decode(errors="replace")


@task(name="is-sweep-stopped", **PATIENT_TASK_OPTIONS)
def is_sweep_stopped(platform: PlatformConfig, sweep: str, earlier_mark: str | None = None) -> bool:
    """S3: whether the sweep has been stopped since `earlier_mark`."""
    return read_stop_mark(aws_client("s3", platform), platform, sweep) not in (None, earlier_mark)
