"""nodesweep's errors, and the check for transient ones.

NodesweepError
├── PreflightRefused      a rule is violated, so nothing was submitted (exit code 3)
├── SweepNotNamed         --resume without an ID, and the sweep is ambiguous (exit code 2)
├── PriceListRefused      the file read is not a current Price List; the price table is unchanged
│   └── PriceListNotFound    --from or --region does not exist (exit code 2)
├── InputsChanged         code, data or image have changed since the sweep started (exit code 2)
└── RunFailed             something was started, but the run failed (exit code 1)
    ├── DatasetRefused    an expectation failed
    │   └── DatasetMissing    no data at dataset.source (exit code 2)
    ├── ValidationJobFailed  the Spark job that validates the dataset returned no verdict
    ├── UploadFailed      an object in S3 differs from the data that was uploaded
    ├── ImageBuildFailed  the build failed, hung or was stopped
    ├── JobRefused        the backend refused a job
    │   └── QuotaReached      the backend currently has no free nodes for the job
    ├── BackendUnavailable  the backend did not respond
    │   └── BackendUnusable   retries do not help until somebody fixes the cause
    ├── ReportNotWritten  the report is in the bucket, but could not be written on this machine
    ├── PointsMissing     fewer points than sweep.min_points have a completed run
    ├── RegressionEstablished   the sweep is slower than the last good one
    ├── SweepStopped      `nodesweep stop` stopped the sweep before all its points had run
    ├── RunTimedOut       the run exceeded the time limit set in its form
    ├── SweepNotFound     no sweep with that ID
    └── RecordDamaged     the record of a sweep is unreadable

BotoCoreError             boto3's base class, since every client call can raise these (exit code 1)
├── ForeignResponse       the response is not from the platform
├── CallTimedOut          a call got no complete response by its deadline
└── PlatformUnresponsive  no call has been answered for 15 minutes
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

logger = logging.getLogger("nodesweep.errors")
_TRANSIENT_CODES = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "RequestTimeout",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
EXPIRED_CODES = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
)
"""Error codes of expired temporary credentials; only new credentials help."""
_INSUFFICIENT_STORAGE = 507
"""HTTP status of the emulator's full disk (sagemaker_emulator/api/front.py); not transient."""
_TRANSIENT_ERRORS = (
    *(ConnectionClosedError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError),
    *(IncompleteReadError, ResponseStreamingError),  # of a streamed object
)


class _EndpointError(BotoCoreError):
    """Base of an endpoint's failures.

    `where` names the setting to check: a config field, or the service and its region.
    """

    def __init__(self, where: str = "platform.endpoint_url", **kwargs: Any) -> None:
        super().__init__(where=where, **kwargs)


class ForeignResponse(_EndpointError):
    """The response is not from AWS, e.g. a proxy or login page, or a truncated response.

    The error is transient, like a lost connection.
    """

    fmt = (
        "{endpoint_url} did not return a valid AWS response to {operation}: {answer}. Look for a"
        " proxy, a"
        " login page or another program there, and check {where}"
    )


class CallTimedOut(_EndpointError):
    """A call got no complete response by its deadline, because the endpoint is silent or slow.

    The error is transient, like a lost connection.
    """

    fmt = (
        "{endpoint_url} did not complete its response to {operation} within {seconds:.0f} s. Check"
        " the network, any proxy in between, and {where}"
    )


class PlatformUnresponsive(_EndpointError):
    """No call has been answered for so long that further waiting is pointless; not transient."""

    fmt = (
        "{endpoint_url} has not responded for {seconds:.0f} s; gave up at {operation}."
        " Check the network and {where}; completed work is kept, and --resume continues the run"
        " once the endpoint responds"
    )


class NodesweepError(Exception):
    """Base of every error whose message is written for users."""


class PreflightRefused(NodesweepError):
    """The plan violates a rule; `problems` lists every violation."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(
            "preflight found problems, so nothing was submitted:\n"
            + "\n".join(f"  - {text}" for text in problems)
        )


class SweepNotNamed(NodesweepError):
    """--resume needs a sweep id, because the latest sweep may not be the intended one."""


class PriceListRefused(NodesweepError):
    """The downloaded file is not a current, complete Price List."""


class PriceListNotFound(PriceListRefused):
    """--from or --region names something that does not exist."""


class InputsChanged(NodesweepError):
    """Code, data or image have changed since the sweep started; nothing was submitted."""


class RunFailed(NodesweepError):
    """The run started, but failed."""


class DatasetRefused(RunFailed):
    """The dataset violates an expectation, or cannot be listed, read or used."""


class DatasetMissing(DatasetRefused):
    """dataset.source has no file of the configured format, which is an error in the config."""


class ValidationJobFailed(RunFailed):
    """The Processing job that validates the dataset failed, was stopped or got no instances."""


class UploadFailed(RunFailed):
    """An object in S3 differs from the data that was uploaded."""


class ImageBuildFailed(RunFailed):
    """The image could not be built."""


class JobRefused(RunFailed):
    """The backend refused a job, or a job of a different owner already has its name."""


class QuotaReached(JobRefused):
    """The backend currently has no free nodes for the job.

    Waiting may help; an immediate retry does not.
    """


class BackendUnavailable(RunFailed):
    """A backend other than AWS did not respond; the same call may succeed later."""


class BackendUnusable(BackendUnavailable):
    """The call fails until somebody fixes the cause, so retries do not help."""


class SweepStopped(RunFailed):
    """`nodesweep stop` stopped the sweep; its earlier measurements are kept."""


class RunTimedOut(RunFailed):
    """The run exceeded the time limit set in its form."""


class ReportNotWritten(RunFailed):
    """The report is in the bucket, but could not be written on this machine."""


class PointsMissing(RunFailed):
    """The sweep ended and has a report, but too few of its points have a completed run."""

    result: Any = None
    """The flow's nodesweep.flows.scaling_benchmark.SweepResult; commands still show its report."""


class RegressionEstablished(RunFailed):
    """The sweep is slower than the one it was compared with."""


class SweepNotFound(RunFailed):
    """No sweep has that ID."""


class RecordDamaged(RunFailed):
    """A sweep's record is unreadable."""


CALL_ERRORS = (BotoCoreError, ClientError, BackendUnavailable)
"""Errors that calls to a platform can raise."""


def error_code(error: BaseException) -> str | None:
    """Return the AWS error code of a ClientError; None for any other error."""
    return (
        str(error.response["Error"].get("Code", "Unknown"))
        if isinstance(error, ClientError)
        else None
    )


@contextmanager
def suppress_codes(*codes: str) -> Iterator[None]:
    """Suppress a ClientError with one of these codes inside the block."""
    try:
        yield
    except ClientError as error:
        if error_code(error) not in codes:
            raise


def is_bucket_gone(error: BaseException) -> bool:
    """Return True if S3 reported that the bucket does not exist."""
    return error_code(error) == "NoSuchBucket"


@contextmanager
def best_effort(failure: str) -> Iterator[None]:
    """Log a failing call inside the block as a warning that starts with `failure`.

    Use it for calls whose failure must not lose the result.
    """
    try:
        yield
    except CALL_ERRORS as error:
        logger.warning("%s: %s", failure, error)


def was_refused(error: ClientError, operations: Collection[str]) -> bool:
    """Return True if one of these operations failed with a permanent 4xx, so it had no effect.

    After throttling or a 5xx response, an earlier attempt may have taken effect.
    """
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    is_final = isinstance(status, int) and 400 <= status < 500 and not is_transient(error)
    return is_final and error.operation_name in operations


def is_transient(error: BaseException) -> bool:
    """Return True if the same call may succeed later, e.g. after throttling or a 5xx response."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status == _INSUFFICIENT_STORAGE:
            return False
        return error_code(error) in _TRANSIENT_CODES or status >= 500
    transient = (*_TRANSIENT_ERRORS, CallTimedOut, ForeignResponse, BackendUnavailable)
    return isinstance(error, transient) and not isinstance(error, BackendUnusable)


def retry_transient(task: Any, task_run: Any, state: Any) -> bool:
    """Return True if Prefect should retry the task, because its error is transient.

    This is the task's retry_condition_fn, for which Prefect 3.8 accepts only a plain function.
    """
    try:
        state.result()
    except Exception as error:
        transient = is_transient(error)
        if transient:
            logger.warning("%s: %s; retrying if attempts remain", task.name, error)
        return transient
    return False
