"""What can go wrong on the way to a report, and which of it is transient: it may pass by itself.

NodesweepError
├── PreflightRefused      nothing was sent (exit code 3)
├── SweepNotNamed         --resume without an id, and it is not certain which sweep is meant
│                         (exit code 2)
├── InputsChanged         a resume finds other code, data or image than the sweep began with
│                         (exit code 2)
└── RunFailed             something was started and did not end well (exit code 1)
    ├── DatasetRefused    an expectation failed
    │   └── DatasetMissing    nothing lies at dataset.source (exit code 2)
    ├── ValidationJobFailed  the Spark job that was to validate the dataset gave no verdict
    ├── UploadFailed      an object in S3 is not what was sent
    ├── ImageBuildFailed  the build failed, hung or was stopped
    ├── JobRefused        SageMaker did not take a training job
    ├── ReportNotWritten  the report is in the bucket, and this machine has no place for it
    ├── PointsMissing     fewer points than sweep.min_points have a completed run
    ├── RegressionEstablished   the sweep is slower than the last good one
    ├── SweepStopped      `nodesweep stop` ended the sweep before all its points had run
    ├── SweepNotFound     no sweep of that id
    └── RecordDamaged     the record of a sweep can't be read

BotoCoreError             of boto3's own, since every call of a client may raise them (exit code 1)
├── ForeignAnswer         something else than the platform has answered
├── CallTimedOut          a call has no whole answer by its deadline
└── PlatformSilent        nothing has answered for a quarter of an hour
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
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
"""How services say that temporary credentials are over; only new ones help."""
_INSUFFICIENT_STORAGE = 507
"""The local platform's disk is full (infra/local/api/front.py): that is not transient."""
_TRANSIENT_ERRORS = (
    *(ConnectionClosedError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError),
    *(IncompleteReadError, ResponseStreamingError),  # of an object that is read as a stream
)


class _EndpointError(BotoCoreError):
    """Base of what an endpoint does wrong; `where` is what to check, the config's field or, without
    one, the service and its region.
    """

    def __init__(self, where: str = "platform.endpoint_url", **kwargs: Any) -> None:
        super().__init__(where=where, **kwargs)


class ForeignAnswer(_EndpointError):
    """What came back is not AWS's: a proxy's page, a login page, half an answer.
    It is transient, as a lost connection is.
    """

    fmt = (
        "{endpoint_url} gave {operation} an answer that is not AWS's: {answer}. Look for a proxy, a"
        " login page or another program there, and check {where}"
    )


class CallTimedOut(_EndpointError):
    """A call has no whole answer by its deadline: silence, or an answer that drips or never ends.
    It is transient, as a lost connection is.
    """

    fmt = (
        "{endpoint_url} gave {operation} no whole answer within {seconds:.0f} s. Check the network,"
        " a proxy on the way, and {where}"
    )


class PlatformSilent(_EndpointError):
    """Every call has stayed unanswered for so long that waiting on makes no sense;
    it is not transient.
    """

    fmt = (
        "{endpoint_url} has not answered anything for {seconds:.0f} s; given up at {operation}."
        " Check the network and {where}; what was done is kept, and a run goes on"
        " with --resume once it answers"
    )


class NodesweepError(Exception):
    """Base of every error whose message is meant for a person."""


class PreflightRefused(NodesweepError):
    """The plan breaks a rule; `problems` lists every one."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(
            "preflight refused the run, nothing was sent:\n"
            + "\n".join(f"  - {text}" for text in problems)
        )


class SweepNotNamed(NodesweepError):
    """--resume must name its sweep: the latest one is perhaps not the one that is meant."""


class InputsChanged(NodesweepError):
    """A sweep would go on with what it began with while code, data or image here are others;
    nothing was sent.
    """


class RunFailed(NodesweepError):
    """The run started and can't be finished."""


class DatasetRefused(RunFailed):
    """The dataset breaks an expectation of the config."""


class DatasetMissing(DatasetRefused):
    """There is no file of the format at dataset.source: the config's mistake, not the data's."""


class ValidationJobFailed(RunFailed):
    """The Processing job that was to validate the dataset failed, was stopped or got no
    instances.
    """


class UploadFailed(RunFailed):
    """An object in S3 is not what was sent."""


class ImageBuildFailed(RunFailed):
    """The image could not be built."""


class JobRefused(RunFailed):
    """SageMaker refused a training job, or a job of that name belongs to somebody else."""


class SweepStopped(RunFailed):
    """The sweep was stopped by `nodesweep stop`; what it measured before is kept."""


class RunTimedOut(RunFailed):
    """The run took longer than its form allows."""


class ReportNotWritten(RunFailed):
    """The report is made and in the bucket; only this machine's copy could not be written."""


class PointsMissing(RunFailed):
    """The sweep ended, its report is made, and too few of its points have a completed run."""

    result: Any = None
    """The flow's result (nodesweep.flows.scaling_benchmark.SweepResult),
    whose report a command still shows.
    """


class RegressionEstablished(RunFailed):
    """The sweep is slower than the one it was compared with."""


class SweepNotFound(RunFailed):
    """There is no sweep of that id."""


class RecordDamaged(RunFailed):
    """What was written down about a sweep can't be read."""


def error_code(error: BaseException) -> str | None:
    """The AWS error code of a ClientError, else None."""
    return (
        str(error.response["Error"].get("Code", "Unknown"))
        if isinstance(error, ClientError)
        else None
    )


def is_bucket_gone(error: BaseException) -> bool:
    """Return True if S3 said that there is no such bucket."""
    return error_code(error) == "NoSuchBucket"


@contextmanager
def best_effort(what: str) -> Iterator[None]:
    """Inside, a failing AWS call is a warning that names `what`:
    for calls whose loss must not lose the result.
    """
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        logger.warning("%s: %s", what, error)


def was_refused(error: ClientError, operation: str) -> bool:
    """Return True if this call did nothing: a 4xx answer that is the same at the next try.

    One that was throttled, or answered with 5xx, may have been carried out by an earlier try.
    """
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    is_final = isinstance(status, int) and 400 <= status < 500 and not is_transient(error)
    return is_final and error.operation_name == operation


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed in a while: throttling, 5xx, a lost connection."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status == _INSUFFICIENT_STORAGE:
            return False
        return error_code(error) in _TRANSIENT_CODES or status >= 500
    return isinstance(error, (*_TRANSIENT_ERRORS, CallTimedOut, ForeignAnswer))


def retry_transient(task: Any, task_run: Any, state: Any) -> bool:
    """Prefect's retry_condition_fn: retry only what may pass
    (3.8 ignores anything but a plain function).
    """
    try:
        state.result()
    except Exception as error:
        transient = is_transient(error)
        if transient:
            logger.warning("%s: %s; trying again if tries are left", task.name, error)
        return transient
    return False
