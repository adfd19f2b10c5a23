"""Submit or adopt the SageMaker Processing job that validates a dataset, and read its verdict.

The request is written to the bucket first, so that `nodesweep stop` finds the job's name there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nodesweep.aws.platform import patient
from nodesweep.aws.storage import put_once
from nodesweep.errors import SweepStopped, ValidationJobFailed
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.kind import PROCESSING
from nodesweep.launch.sagemaker.processing import submit, watch_job
from nodesweep.launch.sagemaker.validation_request import LOG_GROUP
from nodesweep.launch.store import Store
from nodesweep.launch.watch import BURST_CALLS, JobLimits
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling import names
from nodesweep.scaling.job import JobStatus
from nodesweep.tasks.sweeps.claims import read_stop_mark

_STOP_GRACE_SECONDS = 600
"""Seconds allowed beyond the maximum runtime for the upload of the results and for delays."""


def _sagemaker(backend: Backend) -> Any:
    return backend.client("sagemaker")


def failure_text(backend: Backend, job: JobStatus, last_lines: Sequence[str] = ()) -> str:
    """Explain why an incomplete job has no verdict; quote its last lines, and locate the log."""
    ending = "failed" if job.state == "failed" else "was stopped"
    if job.state == "failed" and job.started_at is None:
        ending = "failed before it got its instances"
    reasons = [job.exit_message, job.reason]
    why = (
        "; ".join(text.strip().rstrip(".") for text in reasons if text)
        or "SageMaker gives no reason"
    )
    platform = backend.platform
    endpoint = f" --endpoint-url {platform.endpoint_url}" if platform.endpoint_url else ""
    sweep = names.sweep_of_validation_job(job.name)
    lines = "".join(f"\n    {line}" for line in last_lines) + ("\n" if last_lines else " ")
    return (
        "the dataset was not validated, and nothing else was started: the Processing job"
        f" {job.name} {ending}: {why}.{lines}Its log: nodesweep logs {sweep} --validation --config"
        f" CONFIG, or aws logs tail {LOG_GROUP} --log-stream-name-prefix {job.name}/ --since 1d"
        f" --region {platform.region}{endpoint}"
    )


@patient
def validation_job_status(backend: Backend, job_name: str) -> JobStatus | None:
    """Return the status of one Processing job, or None if it does not exist."""
    return PROCESSING.status(_sagemaker(backend), job_name)


def submit_validation_job(
    backend: Backend, sweep: str, request: Mapping[str, Any], document: bytes
) -> JobStatus:
    """Start the dataset's validation job in SageMaker, or adopt the existing one.

    The request is written to S3 first to claim the name, so that a concurrent stop of the sweep
    either sees the claim or is detected here.

    Raises:
        SweepStopped: the sweep has been stopped.
        JobRefused: the job is refused; see submit().
    """
    platform, name = backend.platform, request["ProcessingJobName"]
    key = names.validation_request_key(platform.prefix, sweep, name)
    put_once(backend.client("s3"), platform.bucket, key, document)
    if read_stop_mark(backend.store, sweep) is not None:
        raise sweep_stopped(sweep)
    return submit(_sagemaker(backend), request)


@patient
def watch_validation_job(
    backend: Backend,
    sweep: str,
    job_name: str,
    poll_seconds: float,
    queue_seconds: float,
    max_runtime_seconds: float,
) -> JobStatus:
    """Wait until the validation job has ended; stop it if the sweep is stopped."""
    clock = Clock()
    return watch_job(
        _sagemaker(backend),
        job_name,
        poll_seconds,
        JobLimits(queue_seconds, max_runtime_seconds + _STOP_GRACE_SECONDS),
        clock,
        CallBudget(backend.platform.calls_per_second, BURST_CALLS, clock),
        lambda: read_stop_mark(backend.store, sweep) is not None,
    )


def read_verdict(store: Store, sweep: str, job_name: str) -> dict[str, Any]:
    """Read the validation job's verdict from S3.

    Raises:
        ValidationJobFailed: the verdict is missing or unreadable.
    """
    key = names.validation_verdict_key(store.prefix, sweep, job_name)
    uri, body = store.uri(key), store.get(key)
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
    """Return the error for a run whose sweep was stopped before its dataset was validated."""
    return SweepStopped(
        f"sweep {sweep} was stopped (`nodesweep stop`) while its dataset was being validated;"
        " start a new one: nodesweep run CONFIG"
    )
