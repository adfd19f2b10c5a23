"""How a job ends, and the exceptions that lead there."""

from __future__ import annotations

from dataclasses import dataclass

FAILURE_REASON_MAX_CHARACTERS = 1024
INTERNAL_ERROR = "InternalServerError: We encountered an internal error. Please try again."
IN_PROGRESS = ("InProgress", "Stopping")


@dataclass(frozen=True)
class Ending:
    """How a job, or a segment of one, ended: a final status (with the reason of a failure, or of a
    stop that nobody asked for), or Interrupted.
    """

    status: str
    reason: str | None = None
    restart_after_seconds: float = 0.0


class WaitEnded(Exception):
    """A wait for instances came to an end of the job."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.status)
        self.ending = ending


class ClientFault(Exception):
    """The job fails by what its request asks for; the text is FailureReason's,
    after "ClientError: ".
    """


class ImageNotFoundError(ClientFault):
    """The job's image isn't here."""


def internal_error(error: Exception) -> str:
    """FailureReason of a fault of the platform's own, without this machine's paths:
    its log has the whole of it.
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{INTERNAL_ERROR} ({type(error).__name__}: {text})"
