"""List the jobs of an account that hold instances, and the sweep that each job's tags name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from nodesweep.launch.protocol import HeldJob
from nodesweep.launch.sagemaker.kind import TRAINING, JobKind
from nodesweep.scaling import names

_RUNNING = {"StatusEquals": "InProgress"}
_WARM = {"WarmPoolStatusEquals": "Available"}


def held_jobs(sagemaker: Any, kind: JobKind) -> Iterator[HeldJob]:
    """Yield the account's jobs of this kind that run, then those with an available warm pool."""
    for only in (_RUNNING, _WARM) if kind is TRAINING else (_RUNNING,):
        query = {**only, "SortBy": "CreationTime", "SortOrder": "Ascending"}
        for page in sagemaker.get_paginator(f"list_{kind.method}s").paginate(**query):
            now: datetime = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            for job in page[f"{kind.member}Summaries"]:
                yield HeldJob(
                    job[f"{kind.member}Name"],
                    (now - job["CreationTime"]).total_seconds(),
                    only is _RUNNING,
                    partial(_tagged_sweep, sagemaker, job[f"{kind.member}Arn"]),
                )


def _tagged_sweep(sagemaker: Any, arn: str) -> str | None:
    """Return the sweep in a job's tags, or None without the tag."""
    tags = {tag["Key"]: tag["Value"] for tag in sagemaker.list_tags(ResourceArn=arn)["Tags"]}
    return tags.get(names.TAG_SWEEP_ID)
