"""nodesweep's jobs that run without an owner."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from nodesweep.aws.platform import TASK_OPTIONS, aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import best_effort
from nodesweep.launch.registry import store_of
from nodesweep.launch.sagemaker.listing import jobs_by_sweep, tagged_sweep
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.claims import read_claims, read_validation_claims
from nodesweep.tasks.sweeps.owner import read_heartbeat
from nodesweep.tasks.sweeps.records import has_record
from nodesweep.tasks.task import task

logger = logging.getLogger("nodesweep.reaper")


def orphans(sagemaker: Any, store: Store, grace_seconds: float) -> list[str]:
    """Return training jobs of this bucket's sweeps that run, or keep a warm pool, without an owner.

    The oldest comes first. An owner is gone if its last heartbeat is older than the grace period,
    by the platform's own times; a sweep without any heartbeat counts from its youngest job's
    creation. Sweeps left running on purpose are spared while one of their jobs runs.
    """
    found: list[str] = []
    running = jobs_by_sweep(sagemaker, StatusEquals="InProgress")
    pools = jobs_by_sweep(sagemaker, WarmPoolStatusEquals="Available")
    for sweep in [*running, *(sweep for sweep in pools if sweep not in running)]:
        with best_effort(
            f"can't tell whether {sweep} is still running; its jobs are left alone for now"
        ):
            jobs = {**running.get(sweep, {}), **pools.get(sweep, {})}
            if not has_record(store, sweep):
                logger.info(
                    "%s has no record in %s, so it belongs to another bucket; left alone",
                    sweep, store.uri("").rstrip("/"),
                )  # fmt: skip
                continue
            heartbeat = read_heartbeat(store, sweep)
            if heartbeat is not None and heartbeat.left_running and sweep in running:
                continue
            age_seconds = (
                min(age for _, age in jobs.values()) if heartbeat is None else heartbeat.age_seconds
            )
            if age_seconds > grace_seconds:
                found += _jobs_of_sweep(sagemaker, store, sweep, jobs)
    return found


def validation_orphans(sagemaker: Any, store: Store, grace_seconds: float) -> list[str]:
    """Return this bucket's validation jobs whose owner's heartbeat is older than the grace period.

    The oldest comes first. Their sweep has no record yet; the job's request in the bucket shows
    that the job belongs to this bucket.
    """
    found: list[str] = []
    query = {"StatusEquals": "InProgress", "SortBy": "CreationTime", "SortOrder": "Ascending"}
    for page in sagemaker.get_paginator("list_processing_jobs").paginate(**query):
        now: datetime = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
        for job in page["ProcessingJobSummaries"]:
            name = job["ProcessingJobName"]
            sweep = names.sweep_of_validation_job(name)
            if sweep is None:
                continue
            with best_effort(
                f"can't tell whether {sweep} is still running; {name} is left alone for now"
            ):
                if name not in read_validation_claims(store, sweep):
                    continue
                heartbeat = read_heartbeat(store, sweep)
                own_age_seconds = (now - job["CreationTime"]).total_seconds()
                age_seconds = own_age_seconds if heartbeat is None else heartbeat.age_seconds
                # The claim in the bucket already proves that the job is this bucket's, so its tag
                # may be missing.
                if age_seconds > grace_seconds and tagged_sweep(
                    sagemaker, job["ProcessingJobArn"]
                ) in (sweep, None):
                    found.append(name)
    return found


def _jobs_of_sweep(
    sagemaker: Any, store: Store, sweep: str, jobs: Mapping[str, tuple[str, float]]
) -> list[str]:
    """Return the jobs that carry the sweep's tag, or carry none and are claimed in the bucket."""
    tagged = {name: tagged_sweep(sagemaker, arn) for name, (arn, _) in jobs.items()}
    claimed = read_claims(store, sweep) if None in tagged.values() else frozenset[str]()
    return [
        name for name, tag in tagged.items() if tag == sweep or (tag is None and name in claimed)
    ]


@task(name="find-validation-orphans", **TASK_OPTIONS)
def find_validation_orphans(platform: PlatformConfig, grace_seconds: float) -> list[str]:
    """Find validation jobs in SageMaker that have lost their owner.

    Best effort: the role may not be allowed to list Processing jobs.
    """
    found: list[str] = []
    with best_effort("can't look for orphaned Processing jobs"):
        found = validation_orphans(
            aws_client("sagemaker", platform), store_of(platform), grace_seconds
        )
    return found


@task(name="find-orphans", **TASK_OPTIONS)
def find_orphans(platform: PlatformConfig, grace_seconds: float) -> list[str]:
    """Find training jobs in SageMaker that have lost their owner."""
    return orphans(aws_client("sagemaker", platform), store_of(platform), grace_seconds)
