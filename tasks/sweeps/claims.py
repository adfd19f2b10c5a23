"""Which jobs a sweep has and whether it was stopped: objects in the bucket,
a job's written before the job is sent.

SageMaker's own list is eventually consistent, S3's is not. So whoever stops, resumes or counts a
sweep knows every job that anybody may have had accepted. And of two runs of one sweep that claim at
the same time at least one sees the other's claim; the same holds for a claim and the mark of a
stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.tasks.errors import best_effort
from nodesweep.tasks.platform import aws_client, patient, persistent
from nodesweep.tasks.storage import get_bytes, list_folders, list_objects, put_bytes


@dataclass(frozen=True)
class Claim:
    """What was in the bucket once a job was claimed: it, others' jobs where asked for,
    and the last stop's mark.
    """

    jobs: frozenset[str]
    stop_mark: str | None


def read_claims(
    s3: Any, platform: PlatformConfig, sweep: str, claimant: str | None = None
) -> frozenset[str]:
    """The jobs that anybody, or this claimant, claims for the sweep; an object there that names no
    job of the sweep is somebody else's, and is ignored.
    """
    listed = list_objects(
        s3, platform.bucket, names.claims_prefix(platform.prefix, sweep, claimant)
    )
    claimed = (names.job_of_claim(item["Key"]) for item in listed)
    return frozenset(job for job in claimed if names.sweep_of_job(job) == sweep)


def _read_claims_of_others(
    s3: Any, platform: PlatformConfig, sweep: str, claimant: str
) -> frozenset[str]:
    """The claims of the sweep's other runs. Where there is none the answer is one line, however
    many claims we have.
    """
    found = list_folders(s3, platform.bucket, names.claims_prefix(platform.prefix, sweep))
    claims = (read_claims(s3, platform, sweep, other) for other in found if other != claimant)
    return frozenset[str]().union(*claims)


def withdraw_claim(platform: PlatformConfig, sweep: str, job_name: str, claimant: str) -> None:
    """The job was not sent, or was refused;
    best effort, since a claim of no job costs only a look.
    """
    with best_effort(f"the claim of {job_name} can't be withdrawn"):
        key = names.claim_key(platform.prefix, sweep, job_name, claimant)
        aws_client("s3", platform).delete_object(Bucket=platform.bucket, Key=key)


@patient
def claim_job(
    platform: PlatformConfig, sweep: str, job_name: str, claimant: str, with_others: bool = False
) -> Claim:
    """S3: say that this job is about to be sent, then read what others have said."""
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
    """S3: whoever runs this sweep, wherever, submits no further job of it. Each mark is another
    one, by its text.
    """
    body = names.pretty_json({"sweep_id": sweep, "mark": uuid4().hex})
    put_bytes(
        aws_client("s3", platform),
        platform.bucket,
        names.stop_marker_key(platform.prefix, sweep),
        body,
    )


def read_stop_mark(s3: Any, platform: PlatformConfig, sweep: str) -> str | None:
    """The text of the last mark that stopped the sweep, None where it never was.

    A mark is never deleted: a run that goes on with a stopped sweep ignores the one it met as it
    began, so that a stop that is given while it starts holds, and so does every other run that was
    told to stop.
    """
    mark = get_bytes(s3, platform.bucket, names.stop_marker_key(platform.prefix, sweep))
    return None if mark is None else mark.decode(errors="replace")


@patient
def is_sweep_stopped(platform: PlatformConfig, sweep: str, earlier_mark: str | None = None) -> bool:
    """S3: whether the sweep has been stopped since `earlier_mark`."""
    return read_stop_mark(aws_client("s3", platform), platform, sweep) not in (None, earlier_mark)
