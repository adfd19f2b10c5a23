"""The final status of a job with its reason, and the exceptions that end a job."""

from __future__ import annotations

from dataclasses import dataclass

FAILURE_REASON_MAX_CHARACTERS = 1024
INTERNAL_ERROR = "InternalServerError: We encountered an internal error. Please try again."
IN_PROGRESS = ("InProgress", "Stopping")


@dataclass(frozen=True)
class Ending:
    """The end of a job, or of the part of a spot job up to an interruption.

    `status` is the final status of the job or, if the job was interrupted, Interrupted. `reason`
    explains a failure, or a stop that nobody requested. An interrupted job waits
    `restart_after_seconds` for capacity.
    """

    status: str
    reason: str | None = None
    restart_after_seconds: float = 0.0


class WaitEnded(Exception):
    """The end of a job that was still waiting for instances."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.status)
        self.ending = ending


class ClientFault(Exception):
    """A client error that fails the job; the message is the FailureReason after "ClientError: "."""


class ImageNotFoundError(ClientFault):
    """The job's image is not in the store."""


def internal_error(error: Exception) -> str:
    """Return the FailureReason of an internal error, without paths on this machine.

    The server log has the details.
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{INTERNAL_ERROR} ({type(error).__name__}: {text})"
