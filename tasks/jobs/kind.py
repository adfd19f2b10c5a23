"""SageMaker's kinds of jobs, training and Processing: what differs between them, and their start.

A job's name is derived from its request, so describing comes before creating: an existing job is
adopted, whoever started it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nodesweep.tasks.errors import JobRefused, error_code
from nodesweep.tasks.events import Stage
from nodesweep.tasks.jobs.calls import check_same_request, describe, poll_until_known, stop
from nodesweep.tasks.polling import Clock

Description = Mapping[str, Any]


@dataclass(frozen=True)
class JobKind:
    """The differences between SageMaker's kinds of jobs.

    Attributes:
        member: beginning of the names of a description's members: TrainingJob.
        describe: returns a job's description; None if it is unknown.
        stop: asks a job to stop; returns True if it was still running.
        state: the state to show.
        started_at: when the job had its instances and began its work; None before.
        message: the platform's message about the state; None if it gives none.
        not_started: what a job does that exceeds its time in the queue.
        not_ended: what a job does that exceeds its runtime.
        logger: name of the logger.
        stage: stage of the events; None for that of the logger.
    """

    member: str
    describe: Callable[[Any, str], dict[str, Any] | None]
    stop: Callable[[Any, str], bool]
    state: Callable[[Description], str]
    started_at: Callable[[Description], datetime | None]
    message: Callable[[Description], str] | None
    not_started: str
    not_ended: str
    logger: str
    stage: Stage | None = None

    def status(self, description: Description) -> str:
        """Return InProgress, Completed, Failed, Stopping or Stopped."""
        return str(description[f"{self.member}Status"])

    def name(self, description: Description) -> str:
        """Return the job's name."""
        return str(description[f"{self.member}Name"])

    def create_or_adopt(
        self,
        sagemaker: Any,
        request: Mapping[str, Any],
        create: Callable[[], None],
        clock: Clock,
    ) -> dict[str, Any]:
        """Create the job of this request, or adopt the existing one; return its description.

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
                return {f"{self.member}Name": name, f"{self.member}Status": "InProgress"}
        arn = existing[f"{self.member}Arn"]
        check_same_request(sagemaker, name, arn, request, existing, clock)
        return existing


def _trained_at(description: Description) -> datetime | None:
    transitions = description.get("SecondaryStatusTransitions") or ()
    return next((step["StartTime"] for step in transitions if step["Status"] == "Training"), None)


TRAINING = JobKind(
    member="TrainingJob",
    describe=describe,
    stop=lambda sagemaker, name: bool(stop(sagemaker, [name])),
    state=lambda job: str(job.get("SecondaryStatus") or job["TrainingJobStatus"]),
    started_at=_trained_at,
    message=lambda job: str(
        (job.get("SecondaryStatusTransitions") or [{}])[-1].get("StatusMessage") or ""
    ),
    not_started="has not started training after {:.0f} s",
    not_ended="has not ended {:.0f} s after training started",
    logger="nodesweep.jobs",
)
