"""The errors that launchers share with the rest of nodesweep; nodesweep/tasks/errors.py has all."""

from __future__ import annotations


class NodesweepError(Exception):
    """Base of every error whose message is written for users."""


class RunFailed(NodesweepError):
    """The run started and cannot be finished."""


class JobRefused(RunFailed):
    """The backend refused a job, or its name is taken by a job of another spec."""


class QuotaReached(JobRefused):
    """The backend has no nodes left for the job now.

    Waiting may help; an immediate retry does not.
    """


class BackendUnavailable(RunFailed):
    """The backend did not answer, or failed to; the same call may succeed later."""
