"""Errors of the engine itself, as opposed to a job's."""

from __future__ import annotations


class EngineError(Exception):
    """The engine cannot do what was requested; the job is not at fault."""


class ImageNotFoundError(EngineError):
    """The job's image is not in the store."""


class StateInUseError(EngineError):
    """Another live engine uses the same state folder."""


class SupervisorError(EngineError):
    """The nodes did not start or could not be ended, or their output could not be delivered."""
