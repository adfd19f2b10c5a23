"""SageMaker's kinds of jobs, training and Processing: what differs between them, and their start.

A job's name is derived from its request, so describing comes before creating: an existing job is
adopted, whoever started it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nodesweep.errors import JobRefused, error_code
from nodesweep.launch.sagemaker.calls import check_same_request, describe, poll_until_known, stop
from nodesweep.launch.sagemaker.status import read_training_job
from nodesweep.polling import Clock
from nodesweep.scaling.job import JobStatus


@dataclass(frozen=True)
class JobKind:
    """The differences between SageMaker's kinds of jobs.

    Attributes:
        member: beginning of the names of a description's members: TrainingJob.
        describe: returns a job's description; None if it is unknown.
        read: reads a description.
        stop: asks a job to stop; returns True if it was still running.
        logger: name of the logger.
    """

    member: str
    describe: Callable[[Any, str], dict[str, Any] | None]
    read: Callable[[Mapping[str, Any]], JobStatus]
    stop: Callable[[Any, str], bool]
    logger: str

    def status(self, sagemaker: Any, job_name: str) -> JobStatus | None:
        """Return the job's status; None if it is unknown."""
        description = self.describe(sagemaker, job_name)
        return None if description is None else self.read(description)

    def create_or_adopt(
        self,
        sagemaker: Any,
        request: Mapping[str, Any],
        create: Callable[[], None],
        clock: Clock,
    ) -> JobStatus:
        """Create the job of this request, or adopt the existing one; return its status.

        A job that this call created is not verified: neither its description nor its tags may be
        visible yet. Those of a job that another process started are awaited.

        Raises:
            JobRefused: SageMaker refuses the request, or a job of that name was made with a
                different one.
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
        arn = existing[f"{self.member}Arn"]
        check_same_request(sagemaker, name, arn, request, existing, clock)
        return self.read(existing)


TRAINING = JobKind(
    member="TrainingJob",
    describe=describe,
    read=read_training_job,
    stop=stop,
    logger="nodesweep.jobs",
)
