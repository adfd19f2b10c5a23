"""Which code has ever completed a point, by its digest: an object in the bucket for each."""

from __future__ import annotations

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from tasks.errors import best_effort
from tasks.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS, aws_client
from tasks.storage import get_bytes, put_bytes


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
