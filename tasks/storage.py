"""The bucket: make sure of it, and small objects in and out of it."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from botocore.exceptions import ClientError
from prefect import task

from configs.models import BenchmarkConfig, PlatformConfig
from scaling import names
from tasks.errors import PreflightRefused, SweepNotFound, SweepNotNamed, best_effort, error_code
from tasks.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS, aws_client
from tasks.sweeps.folder import parse_record

_WEEK_SECONDS = 604_800  # the longest that S3 takes


def make_sure_of_bucket(s3: Any, platform: PlatformConfig) -> None:
    """The bucket answers, or is created where platform.create_missing allows it. Raises PreflightRefused otherwise.

    It is asked for what lies below the prefix, since the pipeline role may list nothing else.
    """
    try:
        s3.list_objects_v2(Bucket=platform.bucket, Prefix=f"{platform.prefix}/", MaxKeys=1)
        return
    except s3.exceptions.ClientError as error:
        code = error_code(error)
        if code not in ("404", "NoSuchBucket"):
            raise PreflightRefused(f"platform.bucket: {platform.bucket} can't be used: {error}") from error
    if not platform.create_missing:
        raise PreflightRefused(
            f"platform.bucket: {platform.bucket} does not exist; create it, or set platform.create_missing: true"
        )
    # us-east-1 is the one region that refuses to be named here.
    place = (
        {} if platform.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": platform.region}}
    )
    try:
        s3.create_bucket(Bucket=platform.bucket, **place)
    except s3.exceptions.BucketAlreadyOwnedByYou:
        return  # another run was a moment faster


def put_bytes(s3: Any, bucket: str, key: str, body: bytes, only_if_absent: bool = False) -> str:
    """Write one object with its content type; returns its s3:// URI.

    With `only_if_absent` S3 refuses it (412) where the key is there.
    """
    content_type = mimetypes.guess_type(key)[0] or "application/octet-stream"
    condition = {"IfNoneMatch": "*"} if only_if_absent else {}
    s3.put_object(Bucket=bucket, Key=key, Body=body, ContentType=content_type, ChecksumAlgorithm="SHA256", **condition)
    return f"s3://{bucket}/{key}"


def put_once(s3: Any, bucket: str, key: str, body: bytes) -> str:
    """put_bytes() for a key that is made of its content: nothing is sent where the object is there, whole."""
    try:
        found = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    except s3.exceptions.ClientError as error:
        if error_code(error) != "403" and not is_missing(s3, bucket, key, error):  # 403: the write tells, here
            raise
    else:
        if found.get("ChecksumSHA256") == base64.b64encode(hashlib.sha256(body).digest()).decode():
            return f"s3://{bucket}/{key}"
    return put_bytes(s3, bucket, key, body)


def get_bytes(s3: Any, bucket: str, key: str) -> bytes | None:
    """The object's body, or None where there is none (or no such bucket)."""
    try:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except s3.exceptions.ClientError as error:
        if is_missing(s3, bucket, key, error):
            return None
        raise


def is_missing(s3: Any, bucket: str, key: str, error: ClientError) -> bool:
    """Whether this failure to read an object means that it, or its bucket, does not exist.

    To who may not list the whole bucket S3 answers 403 where it would answer 404 to others ("GetObject", S3 API
    reference). The pipeline role may list below its prefixes, so the key is then looked for in a listing.
    """
    code = error_code(error)
    if code in ("404", "NoSuchKey", "NotFound", "NoSuchBucket"):
        return True
    if code not in ("403", "AccessDenied"):
        return False
    try:
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", ())
    except ClientError:  # then the first refusal is what there is to say
        return False
    return key not in (item["Key"] for item in listed)


def latest_sweep(s3: Any, config: BenchmarkConfig) -> str:
    """The youngest sweep of exactly this config, which --resume goes on with where no other is named.

    Raises SweepNotFound where there is none, SweepNotNamed where it has nothing left to do, or was never recorded:
    then the run that is meant may be another one.
    """
    platform = config.platform
    prefix = names.sweeps_prefix(platform.prefix)
    mine = sweeps_of(s3, config)
    if not mine:
        raise SweepNotFound(
            f"no sweep of this config under s3://{platform.bucket}/{prefix}; run it without --resume, or name the sweep"
        )
    latest = mine[-1]

    def has_record(sweep: str) -> bool:
        return get_bytes(s3, platform.bucket, names.sweep_config_key(platform.prefix, sweep)) is not None

    if not has_record(latest):
        earlier = next((sweep for sweep in reversed(mine[:-1]) if has_record(sweep)), None)
        raise SweepNotNamed(
            f"--resume: which sweep? The latest run of this config, {latest}, ended before its sweep was recorded (or "
            "prepares it yet) and has no job to go on with. Start anew without --resume"
            + (f", or name the sweep that is meant: --resume {earlier}" if earlier else "")
        )
    if is_complete(
        get_bytes(s3, platform.bucket, names.report_key(platform.prefix, latest, names.REPORT_JSON)), config
    ):
        raise SweepNotNamed(
            f"--resume: which sweep? The latest one of this config, {latest}, is finished: all its points have a "
            "completed run. A run that ended before its sweep began has left nothing to go on with: start anew without "
            f"--resume, or name the sweep that is meant: --resume {latest}"
        )
    return latest


def is_complete(report: bytes | None, config: BenchmarkConfig) -> bool:
    """Whether a sweep's report.json has a completed run of every point; False where there is none to be read."""
    try:
        points = json.loads(report or b"{}")["points"]
        done = {(point["nodes"], point["repeat"]) for point in points if point["status"] == "Completed"}
    except (ValueError, KeyError, TypeError):
        return False
    repeats = range(1, config.sweep.repeats + 1)
    return all((nodes, repeat) in done for nodes in config.sweep.node_counts for repeat in repeats)


def browser_url(platform: PlatformConfig, key: str) -> str:
    """Where a browser shows the object: AWS's console.

    A local platform has none; there the link is signed with its key, for a week.
    """
    if platform.credentials == "chain":
        return names.console_url(platform.bucket, key, platform.region)
    place = {"Bucket": platform.bucket, "Key": key}
    return str(aws_client("s3", platform).generate_presigned_url("get_object", place, ExpiresIn=_WEEK_SECONDS))


def sweeps_of(s3: Any, config: BenchmarkConfig) -> list[str]:
    """Every sweep of exactly this config, oldest first."""
    platform = config.platform
    prefix = names.sweeps_prefix(platform.prefix)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=platform.bucket, Prefix=prefix, Delimiter="/")
    found = [entry["Prefix"][len(prefix) : -1] for page in pages for entry in page.get("CommonPrefixes", ())]
    return sorted(sweep for sweep in found if names.sweep_matches(sweep, config))


@task(name="make-sure-of-bucket", **TASK_OPTIONS)
def ensure_bucket(platform: PlatformConfig) -> None:
    """S3: the bucket is there."""
    make_sure_of_bucket(aws_client("s3", platform), platform)


@task(name="put-objects", **PATIENT_TASK_OPTIONS)
def put_objects(platform: PlatformConfig, objects: Mapping[str, bytes]) -> None:
    """S3: small objects by key."""
    for key, body in objects.items():
        put_bytes(aws_client("s3", platform), platform.bucket, key, body)


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


@task(name="is-code-proven", **PATIENT_TASK_OPTIONS)
def is_code_proven(platform: PlatformConfig, code_digest: str) -> bool:
    """S3: whether code of that digest has ever completed a point; not known counts as no."""
    with best_effort("whether this code has run before is not known"):
        key = names.proven_code_key(platform.prefix, code_digest)
        return get_bytes(aws_client("s3", platform), platform.bucket, key) is not None
    return False


@task(name="mark-code-proven", **TASK_OPTIONS)
def mark_code_proven(platform: PlatformConfig, code_digest: str, sweep: str) -> None:
    """S3: code of that digest has completed a point; written once, by whoever is first.

    Best effort, since without it a later sweep only starts slower.
    """
    with best_effort("that this code has completed a point can't be written down"):
        s3, key = aws_client("s3", platform), names.proven_code_key(platform.prefix, code_digest)
        if get_bytes(s3, platform.bucket, key) is None:
            put_bytes(s3, platform.bucket, key, names.pretty_json({"sweep_id": sweep}))


@task(name="list-sweeps", **TASK_OPTIONS)
def list_sweeps_of(config: BenchmarkConfig) -> list[str]:
    """S3: every sweep of exactly this config, oldest first."""
    return sweeps_of(aws_client("s3", config.platform), config)


@task(name="read-report-file", **TASK_OPTIONS)
def read_report_file(platform: PlatformConfig, sweep: str, file_name: str) -> bytes | None:
    """S3: a file of the sweep's report, or None."""
    return get_bytes(aws_client("s3", platform), platform.bucket, names.report_key(platform.prefix, sweep, file_name))


@task(name="find-latest-sweep", **TASK_OPTIONS)
def find_latest_sweep(config: BenchmarkConfig) -> str:
    """S3: the sweep that --resume without an id continues."""
    return latest_sweep(aws_client("s3", config.platform), config)


@task(name="sweep-exists", **TASK_OPTIONS)
def sweep_exists(platform: PlatformConfig, sweep: str) -> bool:
    """S3: whether a sweep of that id has begun."""
    key = names.sweep_config_key(platform.prefix, sweep)
    return get_bytes(aws_client("s3", platform), platform.bucket, key) is not None


@task(name="read-sweep-record", **TASK_OPTIONS)
def read_sweep_record(platform: PlatformConfig, sweep: str) -> dict[str, Any]:
    """S3: what was written when the sweep started (config, image, dataset). Raises SweepNotFound."""
    key = names.sweep_config_key(platform.prefix, sweep)
    body = get_bytes(aws_client("s3", platform), platform.bucket, key)
    if body is None:
        raise SweepNotFound(f"no sweep {sweep}: s3://{platform.bucket}/{key} does not exist")
    return parse_record(body, f"s3://{platform.bucket}/{key}")
