"""Start, adopt, describe and stop SageMaker's training and Processing jobs.

A job's name is derived from its request, so a job is described before it is created. An existing
job is adopted, whoever started it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nodesweep.errors import JobRefused, error_code, suppress_codes
from nodesweep.launch.sagemaker.calls import (
    MISSING,
    check_same_request,
    poll_until_known,
    tagged_digest,
)
from nodesweep.launch.sagemaker.status import read_processing_job, read_training_job
from nodesweep.polling import Clock
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.secrets import remember_secrets, secrets_of_job


@dataclass(frozen=True)
class JobKind:
    """The differences between SageMaker's kinds of jobs.

    Attributes:
        member: prefix of a description's member names: TrainingJob.
        method: suffix of the client's method names: training_job.
        read: reads a description.
        logger: name of the logger.
    """

    member: str
    method: str
    read: Callable[[Mapping[str, Any]], JobStatus]
    logger: str

    def describe(self, sagemaker: Any, job_name: str) -> dict[str, Any] | None:
        """Return the job's description, or None if there is no such job.

        The job's secrets are masked from then on, because a command that reads its log or failure
        reason may have nothing but its name.
        """
        try:
            description = dict(self._call(sagemaker, "describe", job_name))
        except sagemaker.exceptions.ClientError as error:
            code, text = error_code(error), str(error).lower()
            is_unknown = "not found" in text or "could not find" in text
            if code == "ResourceNotFound" or (code == "ValidationException" and is_unknown):
                return None
            raise
        remember_secrets(
            secrets_of_job(
                description.get("HyperParameters") or {}, description.get("Environment") or {}
            )
        )
        return description

    def stop(self, sagemaker: Any, job_name: str) -> bool:
        """Ask the job to stop; return True if it was still running. Client errors propagate."""
        with suppress_codes(*MISSING):
            self._call(sagemaker, "stop", job_name)
            return True
        return False  # it has ended or is unknown; its description shows which

    def _call(self, sagemaker: Any, verb: str, job_name: str) -> Any:
        return getattr(sagemaker, f"{verb}_{self.method}")(**{f"{self.member}Name": job_name})

    def status(self, sagemaker: Any, job_name: str) -> JobStatus | None:
        """Return the job's status, or None if there is no such job."""
        description = self.describe(sagemaker, job_name)
        return None if description is None else self.read(description)

    def digest(self, sagemaker: Any, description: Mapping[str, Any]) -> str | None:
        """Return the digest of the request that created the job, or None if not visible yet."""
        return tagged_digest(sagemaker, description[f"{self.member}Arn"])

    def create_or_adopt(
        self,
        sagemaker: Any,
        request: Mapping[str, Any],
        create: Callable[[], None],
        clock: Clock,
    ) -> JobStatus:
        """Create the job of this request, or adopt the existing one; return its status.

        A job created by this call is not verified, because its description and tags may not be
        visible yet. If a different process started the job, wait until they are.

        Raises:
            JobRefused: SageMaker refuses the request, or a job of that name was created
                with a different one.
        """
        name, logger = request[f"{self.member}Name"], logging.getLogger(self.logger)
        existing = self.describe(sagemaker, name)
        if existing is None:
            try:
                create()
            except sagemaker.exceptions.ResourceInUse:
                logger.info(
                    "%s already exists, started by someone else or by an attempt whose response"
                    " was lost",
                    name,
                )
                existing = poll_until_known(lambda: self.describe(sagemaker, name), clock)
            except sagemaker.exceptions.ClientError as error:
                if error_code(error) == "ValidationException":
                    raise JobRefused(f"SageMaker refused {name}: {error}") from error
                raise
            if existing is None:
                return JobStatus(name, "running")
        check_same_request(
            name, request, existing, partial(self.digest, sagemaker, existing), clock
        )
        return self.read(existing)


TRAINING = JobKind("TrainingJob", "training_job", read_training_job, "nodesweep.jobs")
PROCESSING = JobKind("ProcessingJob", "processing_job", read_processing_job, "nodesweep.dataset")
