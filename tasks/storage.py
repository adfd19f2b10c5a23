"""The bucket: make sure of it, and small objects in and out of it."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping
from typing import Any

from prefect import task

from configs.models import BenchmarkConfig, PlatformConfig
from scaling import names
from tasks.errors import PreflightRefused, SweepNotFound, error_code
from tasks.platform import TASK_OPTIONS, aws_client


def make_sure_of_bucket(s3: Any, platform: PlatformConfig) -> None:
    """The bucket answers, or is created where platform.create_missing allows it. Raises PreflightRefused otherwise."""
    try:
        s3.head_bucket(Bucket=platform.bucket)
        return
    except s3.exceptions.ClientError as error:
        code = error_code(error)
        if code not in ("404", "NoSuchBucket"):
            raise PreflightRefused((f"platform.bucket: {platform.bucket} can't be used: {error}",)) from error
    if not platform.create_missing:
        raise PreflightRefused(
            (f"platform.bucket: {platform.bucket} does not exist; create it, or set platform.create_missing: true",)
        )
    # us-east-1 is the one region that refuses to be named here.
    place = (
        {} if platform.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": platform.region}}
    )
    s3.create_bucket(Bucket=platform.bucket, **place)


def put_bytes(s3: Any, bucket: str, key: str, body: bytes) -> str:
    """Write one object with its content type; returns its s3:// URI."""
    content_type = mimetypes.guess_type(key)[0] or "application/octet-stream"
    s3.put_object(Bucket=bucket, Key=key, Body=body, ContentType=content_type, ChecksumAlgorithm="SHA256")
    return f"s3://{bucket}/{key}"


def get_bytes(s3: Any, bucket: str, key: str) -> bytes | None:
    """The object's body, or None where there is none (or no such bucket)."""
    try:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except s3.exceptions.ClientError as error:
        if error_code(error) in ("NoSuchKey", "NoSuchBucket"):
            return None
        raise


def latest_sweep(s3: Any, config: BenchmarkConfig) -> str:
    """The youngest sweep of exactly this config. Raises SweepNotFound."""
    platform = config.platform
    prefix = names.sweeps_prefix(platform.prefix)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=platform.bucket, Prefix=prefix, Delimiter="/")
    found = [entry["Prefix"][len(prefix) : -1] for page in pages for entry in page.get("CommonPrefixes", ())]
    mine = sorted(sweep for sweep in found if names.sweep_matches(sweep, config))
    if not mine:
        raise SweepNotFound(
            f"no sweep of this config under s3://{platform.bucket}/{prefix}; run it without --resume, or name the sweep"
        )
    return mine[-1]


@task(name="make-sure-of-bucket", **TASK_OPTIONS)
def ensure_bucket(platform: PlatformConfig) -> None:
    """S3: the bucket is there."""
    make_sure_of_bucket(aws_client("s3", platform), platform)


@task(name="put-objects", **TASK_OPTIONS)
def put_objects(platform: PlatformConfig, objects: Mapping[str, bytes]) -> None:
    """S3: small objects by key."""
    for key, body in objects.items():
        put_bytes(aws_client("s3", platform), platform.bucket, key, body)


@task(name="find-latest-sweep", **TASK_OPTIONS)
def find_latest_sweep(config: BenchmarkConfig) -> str:
    """S3: the sweep that --resume without an id continues."""
    return latest_sweep(aws_client("s3", config.platform), config)


@task(name="read-sweep-record", **TASK_OPTIONS)
def read_sweep_record(platform: PlatformConfig, sweep: str) -> dict[str, Any]:
    """S3: what was written when the sweep started (config, image, dataset). Raises SweepNotFound."""
    key = names.sweep_config_key(platform.prefix, sweep)
    body = get_bytes(aws_client("s3", platform), platform.bucket, key)
    if body is None:
        raise SweepNotFound(f"no sweep {sweep}: s3://{platform.bucket}/{key} does not exist")
    return dict(json.loads(body))
