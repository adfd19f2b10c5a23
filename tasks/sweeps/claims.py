"""A sweep's jobs and stop mark as bucket objects; a job's object is written before it is sent.

SageMaker's job list is only eventually consistent, but S3 is strongly consistent, so every reader
finds all jobs that SageMaker may have accepted from any run. Of two runs that claim at the same
time, at least one sees the other's claim; the same holds for a claim and a stop mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from nodesweep.aws.platform import aws_client, patient, persistent
from nodesweep.aws.storage import get_bytes, list_folders, list_objects, put_bytes
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import best_effort
from nodesweep.scaling import names


@dataclass(frozen=True)
class Claim:
    """The bucket's state right after a job was claimed.

    `jobs` are that job and, if requested, other runs' jobs; `stop_mark` is the last stop's.
    """

    jobs: frozenset[str]
    stop_mark: str | None


def read_claims(
    s3: Any, platform: PlatformConfig, sweep: str, claimant: str | None = None
) -> frozenset[str]:
    """Return the jobs claimed for the sweep, by any run or by one claimant.

    Objects that do not name a job of the sweep are ignored.
    """
    listed = list_objects(
        s3, platform.bucket, names.claims_prefix(platform.prefix, sweep, claimant)
    )
    claimed = (names.job_of_claim(item["Key"]) for item in listed)
    return frozenset(job for job in claimed if names.sweep_of_job(job) == sweep)


def _read_claims_of_others(
    s3: Any, platform: PlatformConfig, sweep: str, claimant: str
) -> frozenset[str]:
    """Return the claims of the sweep's other runs.

    If there are no other runs, the listing has one entry, however many claims this run has.
    """
    found = list_folders(s3, platform.bucket, names.claims_prefix(platform.prefix, sweep))
    claims = (read_claims(s3, platform, sweep, other) for other in found if other != claimant)
    return frozenset[str]().union(*claims)


def withdraw_claim(platform: PlatformConfig, sweep: str, job_name: str, claimant: str) -> None:
    """Delete the claim of a job that was not sent, or was refused.

    Best effort: a stale claim only costs a DescribeTrainingJob.
    """
    with best_effort(f"the claim of {job_name} can't be withdrawn"):
        key = names.claim_key(platform.prefix, sweep, job_name, claimant)
        aws_client("s3", platform).delete_object(Bucket=platform.bucket, Key=key)


@patient
def claim_job(
    platform: PlatformConfig, sweep: str, job_name: str, claimant: str, with_others: bool = False
) -> Claim:
    """Write to S3 that this job is about to be sent, then read what other runs have written."""
    s3 = aws_client("s3", platform)
    body = names.pretty_json({"sweep_id": sweep, "job_name": job_name})
    put_bytes(
        s3, platform.bucket, names.claim_key(platform.prefix, sweep, job_name, claimant), body
    )
    others = (
        _read_claims_of_others(s3, platform, sweep, claimant) if with_others else frozenset[str]()
    )
    return Claim(others | {job_name}, read_stop_mark(s3, platform, sweep))


@persistent
def mark_sweep_stopped(platform: PlatformConfig, sweep: str) -> None:
    """Mark the sweep as stopped in S3, so that no run of it submits further jobs.

    The text of each mark is unique.
    """
    body = names.pretty_json({"sweep_id": sweep, "mark": uuid4().hex})
    put_bytes(
        aws_client("s3", platform),
        platform.bucket,
        names.stop_marker_key(platform.prefix, sweep),
        body,
    )


def read_stop_mark(s3: Any, platform: PlatformConfig, sweep: str) -> str | None:
    """Return the text of the sweep's last stop mark; None if it was never stopped.

    Marks are never deleted. A run that continues a stopped sweep ignores the one it found when it
    began; so a stop during its start still holds, and so does the stop of every other run.
    """
    mark = get_bytes(s3, platform.bucket, names.stop_marker_key(platform.prefix, sweep))
    return None if mark is None else mark.decode(errors="replace")


@patient
def is_sweep_stopped(platform: PlatformConfig, sweep: str, earlier_mark: str | None = None) -> bool:
    """Return True if the sweep has been stopped since `earlier_mark`."""
    return read_stop_mark(aws_client("s3", platform), platform, sweep) not in (None, earlier_mark)
