"""Start or adopt a Processing job, and watch it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from nodesweep.errors import JobRefused, ValidationJobFailed
from nodesweep.launch.sagemaker.kind import PROCESSING
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.watch import JobLimits, Wording, watch
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling.job import JobStatus

logger = logging.getLogger("nodesweep.dataset")


WORDING = Wording(
    not_started="got no instances within {:.0f} s (sweep.queue_deadline_seconds)",
    not_ended="has not ended {:.0f} s after it got its instances",
    logger="nodesweep.dataset",
    stage="dataset",
)


def submit(sagemaker: Any, request: Mapping[str, Any], clock: Clock | None = None) -> JobStatus:
    """Start the job, or adopt the existing job of that name; return its status.

    Raises:
        JobRefused: see create_or_adopt(), or the account's quota has no instances left.
    """

    def send() -> None:
        try:
            sagemaker.create_processing_job(**request)
        except sagemaker.exceptions.ResourceLimitExceeded as error:
            raise JobRefused(
                f"{request['ProcessingJobName']}: {error}; request an increase in Service Quotas,"
                " or lower dataset.validation.instance_count"
            ) from error

    found = PROCESSING.create_or_adopt(sagemaker, request, send, clock or Clock())
    if found.created_at is not None:
        logger.info("%s already exists and is adopted", request["ProcessingJobName"])
    return found


def watch_job(
    sagemaker: Any,
    job_name: str,
    poll_seconds: float,
    limits: JobLimits,
    clock: Clock,
    budget: CallBudget,
    is_stopped: Callable[[], bool] = lambda: False,
) -> JobStatus:
    """Wait until the job has ended, and return its status.

    If the job exceeds a limit or `is_stopped` returns True, stop it and wait until it has ended.

    Raises:
        ValidationJobFailed: the job did not end within 300 s after it was stopped, or was not
            reported for 300 s.
    """
    [ended] = watch(
        SageMakerJobs(sagemaker, kind=PROCESSING), [job_name], poll_seconds, limits, clock, budget,
        is_stopped=is_stopped, wording=WORDING,
    )  # fmt: skip
    if not ended.has_ended:
        raise ValidationJobFailed(f"{job_name}: {ended.reason}")
    return ended
