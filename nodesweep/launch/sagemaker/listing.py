"""Find nodesweep's training jobs among all that an account lists, and the sweep of each."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from nodesweep.scaling import names


def jobs_by_sweep(sagemaker: Any, **only: str) -> dict[str, dict[str, tuple[str, float]]]:
    """Return {sweep ID: {job name: (ARN, age in seconds)}} of the listed jobs."""
    found: dict[str, dict[str, tuple[str, float]]] = defaultdict(dict)
    query = {**only, "SortBy": "CreationTime", "SortOrder": "Ascending"}
    for page in sagemaker.get_paginator("list_training_jobs").paginate(**query):
        now: datetime = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
        for job in page["TrainingJobSummaries"]:
            sweep = names.sweep_of_job(job["TrainingJobName"])
            if sweep is not None:
                age_seconds = (now - job["CreationTime"]).total_seconds()
                found[sweep][job["TrainingJobName"]] = (job["TrainingJobArn"], age_seconds)
    return found


def tagged_sweep(sagemaker: Any, arn: str) -> str | None:
    """Return the sweep that a job's tags name; None without the tag."""
    tags = {tag["Key"]: tag["Value"] for tag in sagemaker.list_tags(ResourceArn=arn)["Tags"]}
    return tags.get(names.TAG_SWEEP_ID)
