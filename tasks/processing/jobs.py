"""The SageMaker Processing job that validates a dataset: submit or adopt, watch, read its verdict.

Its request is written to the bucket first, so that a stop of the sweep knows the job by name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.scaling.outcome.outcome import TERMINAL
from nodesweep.scaling.planning.validation import LOG_GROUP
from nodesweep.tasks.errors import JobRefused, SweepStopped, ValidationJobFailed
from nodesweep.tasks.jobs.kind import JobKind
from nodesweep.tasks.jobs.watch import BURST_CALLS, JobLimits
from nodesweep.tasks.jobs.watch import watch as watch_jobs
from nodesweep.tasks.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS, aws_client, patient
from nodesweep.tasks.polling import CallBudget, Clock
from nodesweep.tasks.processing.calls import describe, stop
from nodesweep.tasks.storage import get_bytes, put_once
from nodesweep.tasks.sweeps.claims import read_stop_mark
from nodesweep.tasks.task import task

logger = logging.getLogger("nodesweep.dataset")
_STOP_GRACE_SECONDS = 600
"""Seconds beyond the maximum runtime, for the upload of the results and the platform's delays."""
WAITING, RUNNING = "Waiting for instances", "Running"


def _state(description: Mapping[str, Any]) -> str:
    """Return the status, with InProgress split into waiting for instances and running."""
    status = description["ProcessingJobStatus"]
    if status != "InProgress":
        return str(status)
    return WAITING if description.get("ProcessingStartTime") is None else RUNNING


PROCESSING = JobKind(
    member="ProcessingJob",
    describe=describe,
    stop=stop,
    state=_state,
    started_at=lambda job: job.get("ProcessingStartTime"),
    message=None,
    not_started="got no instances within {:.0f} s (sweep.queue_deadline_seconds)",
    not_ended="has not ended {:.0f} s after it got its instances",
    logger="nodesweep.dataset",
    stage="dataset",
)


def submit(
    sagemaker: Any, request: Mapping[str, Any], clock: Clock | None = None
) -> dict[str, Any]:
    """Start the job, or adopt the existing one of that name; return its description.

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
    if "ProcessingJobArn" in found:
        logger.info("%s already exists and is adopted", request["ProcessingJobName"])
    return found


def watch(
    sagemaker: Any,
    job_name: str,
    poll_seconds: float,
    limits: JobLimits,
    clock: Clock,
    budget: CallBudget,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Wait until the job has ended, and return its description.

    It is stopped, and waited for, past a limit or once `is_stopped` returns True.

    Raises:
        ValidationJobFailed: it has not ended 300 s after it was stopped, or was unknown that long.
    """
    [ended] = watch_jobs(
        sagemaker, [job_name], poll_seconds, limits, clock, budget,
        is_stopped=is_stopped, kind=PROCESSING,
    )  # fmt: skip
    if ended["ProcessingJobStatus"] not in TERMINAL:
        raise ValidationJobFailed(f"{job_name}: {ended['FailureReason']}")
    return ended


def failure_text(
    platform: PlatformConfig, description: Mapping[str, Any], last_lines: Sequence[str] = ()
) -> str:
    """Return why an incomplete job gave no verdict, with its last lines and its log's location."""
    name, status = description["ProcessingJobName"], description["ProcessingJobStatus"]
    what = "failed" if status == "Failed" else "was stopped"
    if status == "Failed" and description.get("ProcessingStartTime") is None:
        what = "failed before it got its instances"
    said = [description.get("ExitMessage"), description.get("FailureReason")]
    why = (
        "; ".join(text.strip().rstrip(".") for text in said if text) or "SageMaker gives no reason"
    )
    endpoint = f" --endpoint-url {platform.endpoint_url}" if platform.endpoint_url else ""
    sweep = names.sweep_of_validation_job(name)
    lines = "".join(f"\n    {line}" for line in last_lines) + ("\n" if last_lines else " ")
    return (
        f"the dataset was not validated, and nothing else was started: the Processing job {name}"
        f" {what}: {why}.{lines}Its log: nodesweep logs {sweep} --validation --config CONFIG, or"
        f" aws logs tail {LOG_GROUP} --log-stream-name-prefix {name}/ --since 1d --region"
        f" {platform.region}{endpoint}"
    )


@patient
def describe_processing_job(platform: PlatformConfig, job_name: str) -> dict[str, Any] | None:
    """Return SageMaker's description of one Processing job; None if unknown."""
    return describe(aws_client("sagemaker", platform), job_name)


@task(name="submit-validation-job", **PATIENT_TASK_OPTIONS)
def submit_validation_job(
    platform: PlatformConfig, sweep: str, request: Mapping[str, Any], document: bytes
) -> dict[str, Any]:
    """Start the dataset's validation job in SageMaker, or adopt the existing one.

    Its request is written to S3 first, to claim the name: a concurrent stop of the sweep either
    sees the claim, or is seen here.

    Raises:
        SweepStopped: the sweep has been stopped.
        JobRefused: the job is refused; see submit().
    """
    s3, name = aws_client("s3", platform), request["ProcessingJobName"]
    key = names.validation_request_key(platform.prefix, sweep, name)
    put_once(s3, platform.bucket, key, document)
    if read_stop_mark(s3, platform, sweep) is not None:
        raise sweep_stopped(sweep)
    return submit(aws_client("sagemaker", platform), request)


@patient
def watch_validation_job(
    platform: PlatformConfig,
    sweep: str,
    job_name: str,
    poll_seconds: float,
    queue_seconds: float,
    max_runtime_seconds: float,
) -> dict[str, Any]:
    """Wait until the validation job has ended; stop it if the sweep is stopped."""
    s3, clock = aws_client("s3", platform), Clock()
    return watch(
        aws_client("sagemaker", platform),
        job_name,
        poll_seconds,
        JobLimits(queue_seconds, max_runtime_seconds + _STOP_GRACE_SECONDS),
        clock,
        CallBudget(platform.calls_per_second, BURST_CALLS, clock),
        lambda: read_stop_mark(s3, platform, sweep) is not None,
    )


@task(name="read-verdict", **TASK_OPTIONS)
def read_verdict(platform: PlatformConfig, sweep: str, job_name: str) -> dict[str, Any]:
    """Read the validation job's verdict from S3.

    Raises:
        ValidationJobFailed: the verdict is missing or unreadable.
    """
    key = names.validation_verdict_key(platform.prefix, sweep, job_name)
    uri = f"s3://{platform.bucket}/{key}"
    body = get_bytes(aws_client("s3", platform), platform.bucket, key)
    if body is None:
        raise ValidationJobFailed(
            f"the Processing job {job_name} completed without a verdict: {uri} does not exist;"
            " run again"
        )
    try:
        verdict = json.loads(body)
    except ValueError as error:
        raise ValidationJobFailed(f"the verdict {uri} is not JSON ({error}); run again") from error
    if not isinstance(verdict, dict):
        raise ValidationJobFailed(f"the verdict {uri} is not a JSON object; run again")
    return verdict


def sweep_stopped(sweep: str) -> SweepStopped:
    """Return the error of a run whose sweep was stopped before its dataset was validated."""
    return SweepStopped(
        f"sweep {sweep} was stopped (`nodesweep stop`) while its dataset was being validated;"
        " start a new one: nodesweep run CONFIG"
    )
