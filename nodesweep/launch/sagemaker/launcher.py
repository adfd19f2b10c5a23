"""The launcher of SageMaker jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.configs.section import HIDDEN
from nodesweep.configs.training import variables_of
from nodesweep.errors import JobRefused, QuotaReached
from nodesweep.launch.protocol import HeldJob, JobLog
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.calls import release_kept_nodes
from nodesweep.launch.sagemaker.cloudwatch import CloudWatchLog
from nodesweep.launch.sagemaker.create import create
from nodesweep.launch.sagemaker.kind import TRAINING, JobKind
from nodesweep.launch.sagemaker.listing import held_jobs
from nodesweep.launch.sagemaker.status import read_training_job
from nodesweep.polling import Clock
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, JobStatus
from nodesweep.scaling.rules.limits import variable_problems
from nodesweep.scaling.secrets import remember_secrets, secrets_in

MIN_HIDDEN_CHARACTERS = 4
"""Shorter values, such as 1 or yes, are not masked, because they occur in many messages."""
_PAGE_SIZE = 100


@dataclass(frozen=True)
class SageMakerJobs:
    """SageMaker's jobs of one kind; a nodesweep.launch.protocol.Launcher of training jobs.

    Attributes:
        sagemaker: the SageMaker client.
        backend: the platform's backend; None for jobs that are only watched.
        kind: the kind of the jobs; only training jobs can be submitted and listed by sweep.
        clock: the source of time.
    """

    sagemaker: Any
    backend: Backend | None = None
    kind: JobKind = TRAINING
    clock: Clock = field(default_factory=Clock)

    def render(self, spec: JobSpec) -> dict[str, Any]:
        """Return the job's CreateTrainingJob request."""
        assert self.backend is not None
        return dict(self.backend.render(spec))

    def submit(self, spec: JobSpec) -> JobStatus:
        """Start the job, or adopt the existing one of that name; return its status.

        Raises:
            JobRefused: see create_or_adopt().
            QuotaReached: the account's quota has too few instances left.
        """
        return submit(self.sagemaker, self.render(spec), self.clock)

    def status(self, job_name: str) -> JobStatus | None:
        """Return the job's status, or None if there is no such job."""
        return self.kind.status(self.sagemaker, job_name)

    def describe(
        self, job_names: Iterable[str], take: Callable[[], None] = lambda: None
    ) -> dict[str, JobStatus]:
        """Return the status of each given job that exists, by name."""
        found = {}
        for name in job_names:
            take()
            if (status := self.status(name)) is not None:
                found[name] = status
        return found

    def logs(self, job_name: str, since: datetime) -> JobLog:
        """Return a reader of the job's lines from `since` on."""
        assert self.backend is not None
        return CloudWatchLog(self.backend.client("logs"), job_name, since)

    def stop(self, job_name: str) -> bool:
        """Ask the job to stop; return True if it was still running."""
        return self.kind.stop(self.sagemaker, job_name)

    def release(self, job_name: str) -> None:
        """Release the warm pool of an ended training job."""
        release_kept_nodes(self.sagemaker, job_name)

    def jobs_of(self, sweep: str) -> Sequence[JobStatus]:
        """Return the sweep's jobs as the platform lists them, oldest first."""
        pages = self.sagemaker.get_paginator("list_training_jobs").paginate(
            NameContains=names.job_prefix(sweep),
            SortBy="CreationTime",
            SortOrder="Ascending",
            MaxResults=_PAGE_SIZE,
        )
        jobs = [read_training_job(job) for page in pages for job in page["TrainingJobSummaries"]]
        return [job for job in jobs if names.sweep_of_job(job.name) == sweep]

    def held(self) -> Iterator[HeldJob]:
        """Yield the account's jobs of this kind that run or keep a warm pool."""
        return held_jobs(self.sagemaker, self.kind)


def submit(
    sagemaker: Any,
    request: Mapping[str, Any],
    clock: Clock | None = None,
    kind: JobKind = TRAINING,
    call: Callable[[Any, Mapping[str, Any]], None] = create,
) -> JobStatus:
    """Start the training job of this request, or adopt it; see SageMakerJobs.submit()."""

    def send() -> None:
        try:
            _create(call, sagemaker, with_variables(request, os.environ))
        except sagemaker.exceptions.ResourceLimitExceeded as error:
            raise QuotaReached(f"{request['TrainingJobName']}: {error}") from error

    return kind.create_or_adopt(sagemaker, request, send, clock or Clock())


def with_variables(request: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the request with each environment value ${NAME} replaced by the variable's value.

    This is done as late as possible, so that the job's name, digest and records contain the
    reference instead of the secret.

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


def _create(
    call: Callable[[Any, Mapping[str, Any]], None], sagemaker: Any, request: Mapping[str, Any]
) -> None:
    """Send the request; mask environment values in errors, because some refusals quote them."""
    try:
        call(sagemaker, request)
    except (ClientError, JobRefused) as refusal:
        values = sorted(set(request.get("Environment", {}).values()), key=len, reverse=True)
        for error in filter(None, (refusal, refusal.__cause__)):
            error.args = tuple(_mask(str(part), values) for part in error.args)
            answer = error.response.get("Error", {}) if isinstance(error, ClientError) else {}
            if "Message" in answer:
                answer["Message"] = _mask(answer["Message"], values)
        raise


def _mask(text: str, values: Sequence[str]) -> str:
    """Return the text with values of 4 characters or more masked.

    Their JSON and Python representations are masked too.
    """
    for value in values:
        for form in {value, json.dumps(value)[1:-1], repr(value)[1:-1]}:
            if len(value) >= MIN_HIDDEN_CHARACTERS:
                text = text.replace(form, HIDDEN)
    return text
