"""What is asked of single training jobs: describe one, stop some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tasks.errors import JobRefused, error_code


def describe(sagemaker: Any, job_name: str) -> dict[str, Any] | None:
    """DescribeTrainingJob, or None for an unknown name (the service answers it with a
    ValidationException).
    """
    try:
        return dict(sagemaker.describe_training_job(TrainingJobName=job_name))
    except sagemaker.exceptions.ClientError as error:
        missing = error_code(error) == "ValidationException" and "not found" in str(error)
        if missing or error_code(error) == "ResourceNotFound":
            return None
        raise


def stop(sagemaker: Any, job_names: Iterable[str]) -> list[str]:
    """Ask each job to stop; returns those that still ran. Idempotent;
    one failure does not spare the rest.
    """
    asked, failures = [], []
    for name in job_names:
        try:
            sagemaker.stop_training_job(TrainingJobName=name)
            asked.append(name)
        except (BotoCoreError, ClientError) as error:
            # A job that has ended, or never was, answers ValidationException: nothing to stop.
            if error_code(error) not in ("ValidationException", "ResourceNotFound"):
                failures.append(f"{name}: {error}")
    if failures:
        raise JobRefused(
            "these jobs could not be stopped, stop them in the console:\n" + "\n".join(failures)
        )
    return asked
