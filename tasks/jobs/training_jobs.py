"""SageMaker training jobs as tasks: start one or adopt it, watch several, list them.

A job's name is computed from what it is (sweep, point, attempt, request digest), so describing
comes before creating: a job that is there already is ours and is adopted, whoever started it.
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
from nodesweep.tasks.errors import JobRefused, error_code
from nodesweep.tasks.jobs.calls import describe, once_known, refuse_other_request
from nodesweep.tasks.jobs.follow import LogFollower
from nodesweep.tasks.jobs.request import create
from nodesweep.tasks.jobs.watch import BURST_CALLS, JobLimits, JobStanding, JobWait, watch
from nodesweep.tasks.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS, aws_client, patient
from nodesweep.tasks.polling import CallBudget, Clock
from nodesweep.tasks.sweeps.claims import read_claims, read_stop_mark
from nodesweep.tasks.sweeps.stopping import list_of
from nodesweep.tasks.task import task

logger = logging.getLogger("nodesweep.jobs")
"""Of an environment variable's value in CreateTrainingJob (API reference,
TrainingEnvironmentValue).
"""
MIN_HIDDEN_CHARACTERS = 4
"""Shorter values, such as 1 or yes, are no secrets, and stand in every message."""


class QuotaReached(JobRefused):
    """The account's quota holds no further instances now;
    waiting may help, repeating at once does not.
    """


def submit(
    sagemaker: Any, request: Mapping[str, Any], clock: Clock | None = None
) -> dict[str, Any]:
    """Start the job or adopt the one of that name; returns its description.
    Raises JobRefused, QuotaReached.

    What SageMaker has accepted from us is not doubted: nothing is asked of a job that this call
    created, since neither its description nor its tags may be known yet. Those of a job that
    somebody else started are waited for.
    """
    name = request["TrainingJobName"]
    clock = clock or Clock()
    existing = describe(sagemaker, name)
    if existing is None:
        try:
            _create(sagemaker, with_variables(request, os.environ))
        except sagemaker.exceptions.ResourceLimitExceeded as error:
            raise QuotaReached(f"{name}: {error}") from error
        except sagemaker.exceptions.ResourceInUse:
            logger.info(
                "%s is there already, started by somebody else or by a try whose answer was lost",
                name,
            )
            existing = once_known(lambda: describe(sagemaker, name), clock)
        except sagemaker.exceptions.ClientError as error:
            if error_code(error) == "ValidationException":
                raise JobRefused(f"SageMaker refused {name}: {error}") from error
            raise
        if existing is None:
            return {"TrainingJobName": name, "TrainingJobStatus": "InProgress"}
    refuse_other_request(sagemaker, name, existing["TrainingJobArn"], request, existing, clock)
    return existing


def with_variables(request: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """The request with each environment value ${NAME} replaced by that variable. Raises JobRefused
    where it can't be.

    Done as late as this, so that the job's name, its digest and every record are made of the
    reference, not the secret.
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
    """create(), with no value of the environment in what it raises: some refusals quote them."""
    try:
        create(sagemaker, request)
    except ClientError as error:
        values = sorted(set(request.get("Environment", {}).values()), key=len, reverse=True)
        error.args = tuple(_without(str(part), values) for part in error.args)
        answer = error.response.get("Error", {})
        if "Message" in answer:
            answer["Message"] = _without(answer["Message"], values)
        raise


def _without(text: str, values: Sequence[str]) -> str:
    """The text with each value of 4 characters or more replaced,
    as it is and as JSON and Python write it.
    """
    for value in values:
        for form in {value, json.dumps(value)[1:-1], repr(value)[1:-1]}:
            if len(value) >= MIN_HIDDEN_CHARACTERS:
                text = text.replace(form, HIDDEN)
    return text


@patient
def describe_training_job(platform: PlatformConfig, job_name: str) -> dict[str, Any] | None:
    """SageMaker: one job, or None."""
    return describe(aws_client("sagemaker", platform), job_name)


@task(name="describe-training-jobs", **TASK_OPTIONS)
def describe_training_jobs(
    platform: PlatformConfig, job_names: Sequence[str]
) -> list[dict[str, Any]]:
    """SageMaker: those of the jobs that it knows, at the pace of the watches."""
    sagemaker, budget, found = aws_client("sagemaker", platform), _call_budget(platform), []
    for name in job_names:
        budget.take()
        found.append(describe(sagemaker, name))
    return [description for description in found if description is not None]


@task(name="submit-training-job", task_run_name="{label}", **PATIENT_TASK_OPTIONS)
def submit_training_job(
    platform: PlatformConfig, request: Mapping[str, Any], label: str
) -> dict[str, Any]:
    """SageMaker: start the job, or adopt it. `label` names it to people, e.g. train-4n-r2."""
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
    on_look: Callable[[Mapping[str, JobStanding]], None] = lambda standings: None,
) -> list[dict[str, Any]]:
    """SageMaker: wait for the next of these jobs to end; CloudWatch Logs: follow them;
    S3: is the sweep stopped?

    With `first_step`, the metric definitions, only until one has ended or its log tells of a step:
    then none is returned.

    Logs are read from `log_since` on, or from where an earlier watch in this process left off. Once
    the sweep is stopped by another mark than `earlier_mark`, all its jobs here are. `on_look` is
    told how each job stands, at every look at which none has ended.
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
        lambda states: on_look(
            {name: JobStanding(state, follower.last_step(name)) for name, state in states.items()}
        ),
    )


@lru_cache(maxsize=64)
def _call_budget(platform: PlatformConfig) -> CallBudget:
    """One for all watches of this process, since each watch ends with the first job and the next
    one begins at once.
    """
    return CallBudget(platform.calls_per_second, BURST_CALLS, Clock())


@lru_cache(maxsize=64)
def _waits(platform: PlatformConfig) -> dict[str, JobWait]:
    """Of the jobs that watches of this process still wait for."""
    return {}


@lru_cache(maxsize=64)
def _log_follower(platform: PlatformConfig) -> LogFollower:
    return LogFollower(aws_client("logs", platform))


@task(name="list-training-jobs", **TASK_OPTIONS)
def list_training_jobs(platform: PlatformConfig, sweep: str) -> list[str]:
    """SageMaker and S3: the names of a sweep's jobs, oldest first;
    claimed ones that the list does not show, last.

    A claimed job may be one that SageMaker never accepted.
    """
    listed = [job["TrainingJobName"] for job in list_of(aws_client("sagemaker", platform), sweep)()]
    return [
        *listed,
        *sorted(read_claims(aws_client("s3", platform), platform, sweep) - set(listed)),
    ]
