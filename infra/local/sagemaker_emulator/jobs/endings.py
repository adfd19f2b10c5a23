"""The ways in which jobs end, and exceptions that end them."""

from __future__ import annotations

from dataclasses import dataclass

FAILURE_REASON_MAX_CHARACTERS = 1024
INTERNAL_ERROR = "InternalServerError: We encountered an internal error. Please try again."
IN_PROGRESS = ("InProgress", "Stopping")


@dataclass(frozen=True)
class Ending:
    """How a job or a segment ended: with a final status, or Interrupted.

    `reason` explains a failure, or a stop that was not requested.
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
    """The request caused the job to fail. The FailureReason is "ClientError: " and the message."""


class ImageNotFoundError(ClientFault):
    """The image of a job is not in the store."""


def internal_error(error: Exception) -> str:
    """Return the FailureReason for an internal error, without paths on this machine.

    The server log contains the details.
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{INTERNAL_ERROR} ({type(error).__name__}: {text})"
