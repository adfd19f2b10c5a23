"""Jobs of ours that run for nobody."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from tasks.owner import read_owner_sign
from tasks.platform import TASK_OPTIONS, aws_client
from tasks.storage import get_bytes

logger = logging.getLogger("nodesweep.reaper")


def orphans(sagemaker: Any, s3: Any, platform: PlatformConfig, grace_seconds: float) -> list[str]:
    """Running jobs of sweeps in this bucket whose owner has given no sign for longer than the grace, oldest first.

    Ages are differences of the platform's own times. A sweep without any sign counts from its youngest job's creation.
    """
    found: list[str] = []
    for sweep, jobs in _running_by_sweep(sagemaker).items():
        if get_bytes(s3, platform.bucket, names.sweep_config_key(platform.prefix, sweep)) is None:
            logger.info("%s has no record in s3://%s: another bucket's, left alone", sweep, platform.bucket)
            continue
        sign = read_owner_sign(s3, platform, sweep)
        if sign is not None and sign.left_running:
            continue
        age_seconds = min(age for _, age in jobs.values()) if sign is None else sign.age_seconds
        if age_seconds > grace_seconds:
            found += [name for name, (arn, _) in jobs.items() if _is_ours(sagemaker, arn, sweep)]
    return found


def _running_by_sweep(sagemaker: Any) -> dict[str, dict[str, tuple[str, float]]]:
    """Sweep id to its running jobs: name to (ARN, age in seconds)."""
    found: dict[str, dict[str, tuple[str, float]]] = defaultdict(dict)
    query = {"StatusEquals": "InProgress", "SortBy": "CreationTime", "SortOrder": "Ascending"}
    for page in sagemaker.get_paginator("list_training_jobs").paginate(**query):
        now: datetime = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
        for job in page["TrainingJobSummaries"]:
            sweep = names.sweep_of_job(job["TrainingJobName"])
            if sweep is not None:
                age_seconds = (now - job["CreationTime"]).total_seconds()
                found[sweep][job["TrainingJobName"]] = (job["TrainingJobArn"], age_seconds)
    return found


def _is_ours(sagemaker: Any, arn: str, sweep: str) -> bool:
    tags = {tag["Key"]: tag["Value"] for tag in sagemaker.list_tags(ResourceArn=arn)["Tags"]}
    return tags.get(names.TAG_SWEEP_ID) == sweep


@task(name="find-orphans", **TASK_OPTIONS)
def find_orphans(platform: PlatformConfig, grace_seconds: float) -> list[str]:
    """SageMaker and S3: the jobs that nobody waits for."""
    return orphans(aws_client("sagemaker", platform), aws_client("s3", platform), platform, grace_seconds)
