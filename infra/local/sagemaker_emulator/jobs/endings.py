"""Endings of jobs, and the exceptions that lead to them."""

from __future__ import annotations

from dataclasses import dataclass

FAILURE_REASON_MAX_CHARACTERS = 1024
INTERNAL_ERROR = "InternalServerError: We encountered an internal error. Please try again."
IN_PROGRESS = ("InProgress", "Stopping")


@dataclass(frozen=True)
class Ending:
    """The end of a job or of a segment: a final status, or Interrupted.

    `reason` explains a failure, or a stop that nobody requested.
    """

    status: str
    reason: str | None = None
    restart_after_seconds: float = 0.0


class WaitEnded(Exception):
    """A job ended while it waited for instances."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.status)
        self.ending = ending


class ClientFault(Exception):
    """The request made the job fail; the text is the FailureReason without "ClientError: "."""


class ImageNotFoundError(ClientFault):
    """The job's image is not in the store."""


def internal_error(error: Exception) -> str:
    """Return the FailureReason for an internal error, without paths on this machine.

    The server's log contains the details.
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{INTERNAL_ERROR} ({type(error).__name__}: {text})"
