"""Which jobs a sweep has: an object in the bucket for each, written before the job is sent.

SageMaker's own list is eventually consistent, S3's is not. So whoever stops, resumes or counts a sweep knows every job
that anybody may have had accepted. And of two runs of one sweep that claim at the same time at least one sees the
other's claim; the same holds for a claim and the mark of a stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from tasks.errors import best_effort, error_code
from tasks.platform import PATIENT_TASK_OPTIONS, aws_client
from tasks.storage import put_bytes, read_stop_mark


@dataclass(frozen=True)
class Claim:
    """What was in the bucket once a job was claimed: every claimed job, where asked for, and the last stop's mark."""

    jobs: frozenset[str]
    stop_mark: str | None


def read_claims(s3: Any, platform: PlatformConfig, sweep: str) -> frozenset[str]:
    """The jobs that anybody claims for the sweep."""
    query = {"Bucket": platform.bucket, "Prefix": names.claims_prefix(platform.prefix, sweep)}
    try:
        pages = s3.get_paginator("list_objects_v2").paginate(**query)
        return frozenset(names.job_of_claim(entry["Key"]) for page in pages for entry in page.get("Contents", ()))
    except s3.exceptions.ClientError as error:
        if error_code(error) == "NoSuchBucket":
            return frozenset()
        raise


def withdraw_claim(platform: PlatformConfig, sweep: str, job_name: str, claimant: str) -> None:
    """The job was not sent, or was refused; best effort, since a claim of no job costs only a look."""
    with best_effort(f"the claim of {job_name} can't be withdrawn"):
        key = names.claim_key(platform.prefix, sweep, job_name, claimant)
        aws_client("s3", platform).delete_object(Bucket=platform.bucket, Key=key)


@task(name="claim-job", **PATIENT_TASK_OPTIONS)
def claim_job(platform: PlatformConfig, sweep: str, job_name: str, claimant: str, with_others: bool = False) -> Claim:
    """S3: say that this job is about to be sent, then read what others have said."""
    s3 = aws_client("s3", platform)
    body = names.pretty_json({"sweep_id": sweep, "job_name": job_name})
    put_bytes(s3, platform.bucket, names.claim_key(platform.prefix, sweep, job_name, claimant), body)
    jobs = read_claims(s3, platform, sweep) if with_others else frozenset([job_name])
    return Claim(jobs, read_stop_mark(s3, platform, sweep))
