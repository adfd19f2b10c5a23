"""API calls for Processing jobs: describe one, and end all jobs that a sweep may have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.scaling.outcome.outcome import TERMINAL
from nodesweep.tasks.errors import JobRefused, error_code, is_transient
from nodesweep.tasks.jobs.calls import STOPPING_SECONDS
from nodesweep.tasks.polling import Clock, intervals
from nodesweep.tasks.storage import list_folders

_MISSING = ("ValidationException", "ResourceNotFound")


def describe(sagemaker: Any, job_name: str) -> dict[str, Any] | None:
    """Return DescribeProcessingJob's response; None for an unknown job."""
    try:
        return dict(sagemaker.describe_processing_job(ProcessingJobName=job_name))
    except sagemaker.exceptions.ClientError as error:
        code = error_code(error)
        if code == "ResourceNotFound" or (
            code == "ValidationException" and "could not find" in str(error).lower()
        ):
            return None
        raise


def is_running(sagemaker: Any, job_name: str) -> bool:
    """Return True if SageMaker knows the job and it has not ended."""
    description = describe(sagemaker, job_name)
    return description is not None and description["ProcessingJobStatus"] not in TERMINAL


def stop(sagemaker: Any, job_name: str) -> bool:
    """Ask the job to stop; return True if it was still running. Client errors pass through."""
    try:
        sagemaker.stop_processing_job(ProcessingJobName=job_name)
    except ClientError as error:
        # The job has ended or is unknown; its description tells which.
        if error_code(error) in _MISSING:
            return False
        raise
    return True


def claimed_jobs(s3: Any, platform: PlatformConfig, sweep: str) -> list[str]:
    """Return every Processing job that any run may have sent for the sweep.

    A run writes the job's request to the bucket before it sends the job, and S3's lists are
    strongly consistent.
    """
    prefix = names.validation_claims_prefix(platform.prefix, sweep)
    claimed = (
        names.validation_job_prefix(sweep) + rest
        for rest in list_folders(s3, platform.bucket, prefix)
    )
    return sorted(job for job in claimed if names.sweep_of_validation_job(job) == sweep)


def end_jobs(
    sagemaker: Any, job_names: Iterable[str], clock: Clock, settle_seconds: float
) -> list[str]:
    """Stop these jobs, and return the names of those that had not ended.

    Waits until each is stopping or has ended. A name that SageMaker does not know is polled until
    `settle_seconds` have passed, because a new job may not be visible yet.

    Raises:
        JobRefused: some jobs could not be stopped; all others were.
    """
    left, asked, failures = set(job_names), set[str](), dict[str, str]()
    settled, late = clock.monotonic() + settle_seconds, clock.monotonic() + STOPPING_SECONDS
    for pause in intervals(0.5, 5.0):
        is_settled = clock.monotonic() >= settled
        for name in sorted(left):
            try:
                description = describe(sagemaker, name)
                status = description and description["ProcessingJobStatus"]
                if status == "InProgress" and stop(sagemaker, name):
                    asked.add(name)
                failures.pop(name, None)
            except (BotoCoreError, ClientError) as error:
                failures[name] = str(error)
                # The stack's role may stop jobs by their tags only, and a new job's tags appear
                # late.
                if is_settled and not is_transient(error):
                    left.discard(name)
                continue
            if status == "Stopping" or status in TERMINAL or (status is None and is_settled):
                left.discard(name)
        if not left or clock.monotonic() >= late:
            break
        clock.sleep(pause)
    failures |= {
        name: f"it is still running after {STOPPING_SECONDS:.0f} s" for name in left - set(failures)
    }
    if failures:
        listed = "\n".join(f"{name}: {why}" for name, why in sorted(failures.items()))
        raise JobRefused(
            f"these Processing jobs could not be stopped; stop them in the console:\n{listed}"
        )
    return sorted(asked)
