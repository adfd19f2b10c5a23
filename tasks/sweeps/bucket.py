"""A platform's bucket: verify it, or create it if platform.create_missing is set."""

from __future__ import annotations

from typing import Any

from nodesweep.aws.platform import TASK_OPTIONS, aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import PreflightRefused, error_code
from nodesweep.tasks.task import task


def check_or_create_bucket(s3: Any, platform: PlatformConfig) -> None:
    """Verify that the bucket is accessible, or create it if platform.create_missing is set.

    The check lists keys below the prefix, because the pipeline role may list nothing else.

    Raises:
        PreflightRefused: the bucket is inaccessible, or missing and not to be created.
    """
    try:
        s3.list_objects_v2(Bucket=platform.bucket, Prefix=f"{platform.prefix}/", MaxKeys=1)
        return
    except s3.exceptions.ClientError as error:
        code = error_code(error)
        if code not in ("404", "NoSuchBucket"):
            raise PreflightRefused(
                f"platform.bucket: {platform.bucket} can't be used: {error}"
            ) from error
    if not platform.create_missing:
        raise PreflightRefused(
            f"platform.bucket: {platform.bucket} does not exist; create it, or set"
            " platform.create_missing: true"
        )
    # us-east-1 is the only region that must not be named as a constraint.
    configuration = (
        {}
        if platform.region == "us-east-1"
        else {"CreateBucketConfiguration": {"LocationConstraint": platform.region}}
    )
    try:
        s3.create_bucket(Bucket=platform.bucket, **configuration)
    except s3.exceptions.BucketAlreadyOwnedByYou:
        return  # another run has just created it


@task(name="make-sure-of-bucket", **TASK_OPTIONS)
def ensure_bucket(platform: PlatformConfig) -> None:
    """Verify that the S3 bucket exists, or create it."""
    check_or_create_bucket(aws_client("s3", platform), platform)
