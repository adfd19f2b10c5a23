"""SageMaker training jobs: start one or adopt it, watch several, stop them all.

A job's name is computed from what it is (sweep, point, attempt, request digest), so describing comes before creating:
a job that is there already is ours and is adopted, whoever started it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prefect import task

from configs.models import PlatformConfig
from scaling import names
from scaling.outcome import TERMINAL
from tasks.errors import JobRefused, error_code
from tasks.platform import TASK_OPTIONS, aws_client
from tasks.polling import Clock, Progress, intervals

logger = logging.getLogger("nodesweep.jobs")


class QuotaReached(JobRefused):
    """The account's quota holds no further instances now; waiting may help, repeating at once does not."""


def describe(sagemaker: Any, job_name: str) -> dict[str, Any] | None:
    """DescribeTrainingJob, or None for an unknown name (the service answers it with a ValidationException)."""
    try:
        return dict(sagemaker.describe_training_job(TrainingJobName=job_name))
    except sagemaker.exceptions.ClientError as error:
        missing = error_code(error) == "ValidationException" and "not found" in str(error)
        if missing or error_code(error) == "ResourceNotFound":
            return None
        raise


def submit(sagemaker: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start the job or adopt the one of that name; returns its description. Raises JobRefused, QuotaReached."""
    name = request["TrainingJobName"]
    existing = describe(sagemaker, name)
    if existing is None:
        try:
            sagemaker.create_training_job(**request)
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


def watch(
    sagemaker: Any, job_names: Sequence[str], poll_seconds: float, deadlines: Mapping[str, float], clock: Clock
) -> list[dict[str, Any]]:
    """Wait until at least one of the jobs is terminal; returns the descriptions of those that are.

    `deadlines` are on `clock.monotonic`; a job past its own is stopped and waited for, two minutes more.
    Says how each stands. Polls every `poll_seconds`, up to 4x that while nothing changes.
    """
    progress = {name: Progress(name, logger, clock) for name in job_names}
    stopped: set[str] = set()
    pauses = intervals(poll_seconds, 4 * poll_seconds)
    while True:
        ended = []
        for name in job_names:
            description = sagemaker.describe_training_job(TrainingJobName=name)
            if progress[name].note(description["SecondaryStatus"], _message(description)):
                pauses = intervals(poll_seconds, 4 * poll_seconds)
            if description["TrainingJobStatus"] in TERMINAL:
                ended.append(dict(description))
            elif clock.monotonic() > deadlines[name] and name not in stopped:
                logger.warning("%s is past its deadline and is being stopped", name)
                stop(sagemaker, [name])
                stopped.add(name)
            elif clock.monotonic() > deadlines[name] + 300:
                raise JobRefused(f"{name} did not stop within 300 s of its deadline; look at it in the console")
        if ended:
            return ended
        clock.sleep(next(pauses))


def _message(description: Mapping[str, Any]) -> str:
    transitions = description.get("SecondaryStatusTransitions") or [{}]
    return str(transitions[-1].get("StatusMessage") or "")


def stop(sagemaker: Any, job_names: Iterable[str]) -> list[str]:
    """Ask each job to stop; returns those that still ran. Idempotent; one failure does not spare the rest."""
    asked, failures = [], []
    for name in job_names:
        try:
            sagemaker.stop_training_job(TrainingJobName=name)
            asked.append(name)
        except sagemaker.exceptions.ClientError as error:
            # A job that has ended, or never was, answers ValidationException: nothing to stop.
            if error_code(error) not in ("ValidationException", "ResourceNotFound"):
                failures.append(f"{name}: {error}")
    if failures:
        raise JobRefused("these jobs could not be stopped, stop them in the console:\n" + "\n".join(failures))
    return asked


def stop_now(platform: PlatformConfig, job_names: Sequence[str]) -> list[str]:
    """stop() outside of any task: for a run that is being cancelled, when Prefect starts no further tasks."""
    return stop(aws_client("sagemaker", platform), job_names)


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


@task(name="describe-training-job", **TASK_OPTIONS)
def describe_training_job(platform: PlatformConfig, job_name: str) -> dict[str, Any] | None:
    """SageMaker: one job, or None."""
    return describe(aws_client("sagemaker", platform), job_name)


@task(name="submit-training-job", task_run_name="submit-{request[TrainingJobName]}", **TASK_OPTIONS)
def submit_training_job(platform: PlatformConfig, request: Mapping[str, Any]) -> dict[str, Any]:
    """SageMaker: start the job, or adopt it."""
    return submit(aws_client("sagemaker", platform), request)


@task(name="watch-training-jobs", **TASK_OPTIONS)
def watch_training_jobs(
    platform: PlatformConfig, job_names: Sequence[str], poll_seconds: float, deadlines: Mapping[str, float]
) -> list[dict[str, Any]]:
    """SageMaker: wait for the next of these jobs to end."""
    return watch(aws_client("sagemaker", platform), job_names, poll_seconds, deadlines, Clock())


@task(name="list-training-jobs", **TASK_OPTIONS)
def list_training_jobs(platform: PlatformConfig, sweep: str, only_running: bool = False) -> list[str]:
    """SageMaker: the names of a sweep's jobs."""
    return list_names(aws_client("sagemaker", platform), sweep, only_running)


@task(name="stop-training-jobs", **TASK_OPTIONS)
def stop_training_jobs(platform: PlatformConfig, job_names: Sequence[str]) -> list[str]:
    """SageMaker: ask each job to stop."""
    return stop(aws_client("sagemaker", platform), job_names)
