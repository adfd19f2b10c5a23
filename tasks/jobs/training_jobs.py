"""SageMaker training jobs as tasks: submit or adopt, watch, list.

A job's name is derived from its sweep, point, attempt and request digest.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.configs.models import PlatformConfig
from nodesweep.configs.section import HIDDEN
from nodesweep.configs.training import variables_of
from nodesweep.scaling.planning.fail_fast import is_step
from nodesweep.scaling.rules.limits import variable_problems
from nodesweep.scaling.secrets import remember_secrets, secrets_in
from nodesweep.tasks.errors import JobRefused
from nodesweep.tasks.jobs.calls import describe
from nodesweep.tasks.jobs.follow import LogFollower
from nodesweep.tasks.jobs.kind import TRAINING
from nodesweep.tasks.jobs.request import create
from nodesweep.tasks.jobs.watch import BURST_CALLS, JobLimits, JobProgress, JobWait, watch
from nodesweep.tasks.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS, aws_client, patient
from nodesweep.tasks.polling import CallBudget, Clock
from nodesweep.tasks.sweeps.claims import read_claims, read_stop_mark
from nodesweep.tasks.sweeps.stopping import job_lister
from nodesweep.tasks.task import task

logger = logging.getLogger("nodesweep.jobs")
MIN_HIDDEN_CHARACTERS = 4
"""Shorter values, such as 1 or yes, are not secrets and occur in every message."""


class QuotaReached(JobRefused):
    """The account's quota has no instances left now.

    Waiting may help; an immediate retry does not.
    """


def submit(
    sagemaker: Any, request: Mapping[str, Any], clock: Clock | None = None
) -> dict[str, Any]:
    """Start the job, or adopt the existing one of that name; return its description.

    Raises:
        JobRefused: see create_or_adopt().
        QuotaReached: the account has no instances left for it now.
    """

    def send() -> None:
        try:
            _create(sagemaker, with_variables(request, os.environ))
        except sagemaker.exceptions.ResourceLimitExceeded as error:
            raise QuotaReached(f"{request['TrainingJobName']}: {error}") from error

    return TRAINING.create_or_adopt(sagemaker, request, send, clock or Clock())


def with_variables(request: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the request with each environment value ${NAME} replaced by that variable.

    This is done as late as possible, so that the job's name, digest and records have the reference,
    not the secret.

    Raises:
        JobRefused: a variable is missing or cannot be used.
    """
    environment = dict(request.get("Environment", {}))
    if problems := variable_problems(
        environment, {name: len(value) for name, value in variables.items()}
    ):
        raise JobRefused("; ".join(problems))
    environment |= {
        name: variables[variable] for name, variable in variables_of(environment).items()
    }
    remember_secrets(secrets_in(environment, is_closed=True))
    return {**request, "Environment": environment} if environment else dict(request)


def _create(sagemaker: Any, request: Mapping[str, Any]) -> None:
    """Call create(), and mask environment values in its errors: some refusals quote them."""
    try:
        create(sagemaker, request)
    except ClientError as error:
        values = sorted(set(request.get("Environment", {}).values()), key=len, reverse=True)
        error.args = tuple(_mask(str(part), values) for part in error.args)
        answer = error.response.get("Error", {})
        if "Message" in answer:
            answer["Message"] = _mask(answer["Message"], values)
        raise


def _mask(text: str, values: Sequence[str]) -> str:
    """Return the text with values of 4 characters or more masked.

    Their JSON and Python spellings are masked too.
    """
    for value in values:
        for form in {value, json.dumps(value)[1:-1], repr(value)[1:-1]}:
            if len(value) >= MIN_HIDDEN_CHARACTERS:
                text = text.replace(form, HIDDEN)
    return text


@patient
def describe_training_job(platform: PlatformConfig, job_name: str) -> dict[str, Any] | None:
    """Return SageMaker's description of one job; None if unknown."""
    return describe(aws_client("sagemaker", platform), job_name)


@task(name="describe-training-jobs", **TASK_OPTIONS)
def describe_training_jobs(
    platform: PlatformConfig, job_names: Sequence[str]
) -> list[dict[str, Any]]:
    """Describe training jobs in SageMaker.

    Calls share the watches' budget; unknown jobs are left out.
    """
    sagemaker, budget, found = aws_client("sagemaker", platform), _call_budget(platform), []
    for name in job_names:
        budget.take()
        found.append(describe(sagemaker, name))
    return [description for description in found if description is not None]


@task(name="submit-training-job", task_run_name="{label}", **PATIENT_TASK_OPTIONS)
def submit_training_job(
    platform: PlatformConfig, request: Mapping[str, Any], label: str
) -> dict[str, Any]:
    """Start a training job in SageMaker, or adopt the existing one.

    `label` is its readable name, such as train-4n-r2.
    """
    return submit(aws_client("sagemaker", platform), request)


@patient
def watch_training_jobs(
    platform: PlatformConfig,
    sweep: str,
    job_names: Sequence[str],
    poll_seconds: float,
    limits: JobLimits,
    log_since: datetime,
    earlier_mark: str | None = None,
    first_step: Mapping[str, str] | None = None,
    on_poll: Callable[[Mapping[str, JobProgress]], None] = lambda progress: None,
) -> list[dict[str, Any]]:
    """Wait for the next of these jobs to end, follow their logs, and notice a stop of the sweep.

    Args:
        platform: the config's platform.
        sweep: the sweep's ID.
        job_names: the jobs to wait for.
        poll_seconds: shortest pause between two polls.
        limits: time limits of a job.
        log_since: the time to read logs from; a later watch in this process continues where the
            last one ended.
        earlier_mark: a stop mark to ignore; any other stops all these jobs.
        first_step: metric definitions; if given, the wait also ends, without descriptions, once a
            log reports a step.
        on_poll: called with each job's progress after every poll at which none has ended.

    Returns:
        The descriptions of the jobs that have ended.
    """

    def is_stopped() -> bool:
        return read_stop_mark(aws_client("s3", platform), platform, sweep) not in (
            None,
            earlier_mark,
        )

    follower = _log_follower(platform)
    if first_step is None:
        follower.begin(job_names, log_since)
    else:
        follower.begin(job_names, log_since, lambda line: is_step(line, first_step))
    sagemaker = aws_client("sagemaker", platform)
    return watch(
        sagemaker,
        job_names,
        poll_seconds,
        limits,
        Clock(),
        _call_budget(platform),
        follower.poll,
        is_stopped,
        _waits(platform),
        None if first_step is None else follower.has_stepped,
        lambda states: on_poll(
            {name: JobProgress(state, follower.last_step(name)) for name, state in states.items()}
        ),
    )


@lru_cache(maxsize=64)
def _call_budget(platform: PlatformConfig) -> CallBudget:
    """Return the budget of this process's watches.

    It is shared, since each watch ends with the first job and the next one starts at once.
    """
    return CallBudget(platform.calls_per_second, BURST_CALLS, Clock())


@lru_cache(maxsize=64)
def _waits(platform: PlatformConfig) -> dict[str, JobWait]:
    """Return the JobWait of each job that this process watches, by name."""
    return {}


@lru_cache(maxsize=64)
def _log_follower(platform: PlatformConfig) -> LogFollower:
    return LogFollower(aws_client("logs", platform))


@task(name="list-training-jobs", **TASK_OPTIONS)
def list_training_jobs(platform: PlatformConfig, sweep: str) -> list[str]:
    """List a sweep's jobs in SageMaker and S3.

    SageMaker's jobs come first, oldest first, then claimed jobs that it does not list and may never
    have accepted.
    """
    listed = [
        job["TrainingJobName"] for job in job_lister(aws_client("sagemaker", platform), sweep)()
    ]
    return [
        *listed,
        *sorted(read_claims(aws_client("s3", platform), platform, sweep) - set(listed)),
    ]
