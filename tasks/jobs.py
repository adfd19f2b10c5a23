"""SageMaker training jobs as tasks: start one or adopt it, watch several, list them, stop them all.

A job's name is computed from what it is (sweep, point, attempt, request digest), so describing comes before creating:
a job that is there already is ours and is adopted, whoever started it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from tasks.errors import JobRefused, best_effort, error_code
from tasks.follow import LogFollower
from tasks.job_calls import describe, stop
from tasks.job_request import create
from tasks.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS, aws_client
from tasks.polling import CallBudget, Clock
from tasks.watch import BURST_CALLS, CALLS_PER_SECOND, JobLimits, watch

logger = logging.getLogger("nodesweep.jobs")


class QuotaReached(JobRefused):
    """The account's quota holds no further instances now; waiting may help, repeating at once does not."""


def submit(sagemaker: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start the job or adopt the one of that name; returns its description. Raises JobRefused, QuotaReached."""
    name = request["TrainingJobName"]
    existing = describe(sagemaker, name)
    if existing is None:
        try:
            create(sagemaker, request)
        except sagemaker.exceptions.ResourceLimitExceeded as error:
            raise QuotaReached(f"{name}: {error}") from error
        except sagemaker.exceptions.ResourceInUse:
            logger.info("%s was started by somebody else just now", name)
        except sagemaker.exceptions.ClientError as error:
            if error_code(error) == "ValidationException":
                raise JobRefused(f"SageMaker refused {name}: {error}") from error
            raise
        existing = describe(sagemaker, name)
        if existing is None:
            raise JobRefused(f"{name} was accepted, but SageMaker does not know it; look at it in the console")
    _check_digest(sagemaker, existing, request)
    return existing


def _check_digest(sagemaker: Any, description: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    """A job of this name is only ours when it carries our request's digest."""
    tags = sagemaker.list_tags(ResourceArn=description["TrainingJobArn"])["Tags"]
    found = {tag["Key"]: tag["Value"] for tag in tags}.get(names.TAG_REQUEST_DIGEST)
    wanted = {tag["Key"]: tag["Value"] for tag in request["Tags"]}[names.TAG_REQUEST_DIGEST]
    if found != wanted:
        raise JobRefused(
            f"{description['TrainingJobName']} exists with another request (digest {found}, ours {wanted}); "
            "it is not adopted: delete it, or start a new sweep"
        )


def stop_now(platform: PlatformConfig, job_names: Sequence[str]) -> list[str]:
    """stop() outside of any task: for a run that is being cancelled, when Prefect starts no further tasks."""
    return stop(aws_client("sagemaker", platform), job_names)


def release_warm_pools(sagemaker: Any, sweep: str) -> list[str]:
    """End the warm pools that a sweep's jobs still keep; best effort, since each ends by itself after its time."""
    released = []
    with best_effort(f"the warm pools of {sweep} can't be listed"):
        query = {"NameContains": names.job_prefix(sweep), "WarmPoolStatusEquals": "Available"}
        pages = sagemaker.get_paginator("list_training_jobs").paginate(**query)
        for name in [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]:
            with best_effort(f"the warm pool of {name} can't be released"):
                sagemaker.update_training_job(TrainingJobName=name, ResourceConfig={"KeepAlivePeriodInSeconds": 0})
                released.append(name)
    return released


def release_warm_pools_now(platform: PlatformConfig, sweep: str) -> list[str]:
    """release_warm_pools() outside of any task: a run that is being cancelled releases them too."""
    return release_warm_pools(aws_client("sagemaker", platform), sweep)


def list_names(sagemaker: Any, sweep: str, only_running: bool = False) -> list[str]:
    """Names of all jobs of a sweep, oldest first."""
    query: dict[str, Any] = {
        "NameContains": names.job_prefix(sweep),
        "SortBy": "CreationTime",
        "SortOrder": "Ascending",
    }
    if only_running:
        query["StatusEquals"] = "InProgress"
    pages = sagemaker.get_paginator("list_training_jobs").paginate(**query)
    return [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]


@task(name="describe-training-job", **PATIENT_TASK_OPTIONS)
def describe_training_job(platform: PlatformConfig, job_name: str) -> dict[str, Any] | None:
    """SageMaker: one job, or None."""
    return describe(aws_client("sagemaker", platform), job_name)


@task(name="describe-training-jobs", **TASK_OPTIONS)
def describe_training_jobs(platform: PlatformConfig, job_names: Sequence[str]) -> list[dict[str, Any]]:
    """SageMaker: those of the jobs that it knows, at the pace of the watches."""
    sagemaker, budget, found = aws_client("sagemaker", platform), _call_budget(platform), []
    for name in job_names:
        budget.take()
        found.append(describe(sagemaker, name))
    return [description for description in found if description is not None]


@task(name="submit-training-job", task_run_name="{label}", **PATIENT_TASK_OPTIONS)
def submit_training_job(platform: PlatformConfig, request: Mapping[str, Any], label: str) -> dict[str, Any]:
    """SageMaker: start the job, or adopt it. `label` names it to people, e.g. train-4n-r2."""
    return submit(aws_client("sagemaker", platform), request)


@task(name="watch-training-jobs", **PATIENT_TASK_OPTIONS)
def watch_training_jobs(
    platform: PlatformConfig, job_names: Sequence[str], poll_seconds: float, limits: JobLimits, log_since: datetime
) -> list[dict[str, Any]]:
    """SageMaker: wait for the next of these jobs to end; CloudWatch Logs: follow them meanwhile.

    Logs are read from `log_since` on, or from where an earlier watch in this process left off.
    """
    follower = _log_follower(platform)
    follower.begin(job_names, log_since)
    sagemaker = aws_client("sagemaker", platform)
    return watch(sagemaker, job_names, poll_seconds, limits, Clock(), _call_budget(platform), follower.poll)


@lru_cache(maxsize=64)
def _call_budget(platform: PlatformConfig) -> CallBudget:
    """One for all watches of this process, since each watch ends with the first job and the next one begins at once."""
    return CallBudget(CALLS_PER_SECOND, BURST_CALLS, Clock())


@lru_cache(maxsize=64)
def _log_follower(platform: PlatformConfig) -> LogFollower:
    return LogFollower(aws_client("logs", platform))


@task(name="list-training-jobs", **TASK_OPTIONS)
def list_training_jobs(platform: PlatformConfig, sweep: str, only_running: bool = False) -> list[str]:
    """SageMaker: the names of a sweep's jobs."""
    return list_names(aws_client("sagemaker", platform), sweep, only_running)


@task(name="stop-training-jobs", **TASK_OPTIONS)
def stop_training_jobs(platform: PlatformConfig, job_names: Sequence[str]) -> list[str]:
    """SageMaker: ask each job to stop."""
    return stop(aws_client("sagemaker", platform), job_names)
