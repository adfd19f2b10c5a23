"""Errors of the engine, as opposed to errors of a job."""

from __future__ import annotations


class EngineError(Exception):
    """The engine cannot fulfill a request, but the job is not at fault."""


class ImageNotFoundError(EngineError):
    """The job's image is not in the store."""


class StateInUseError(EngineError):
    """Another live engine uses the same state folder."""


class SupervisorError(EngineError):
    """The nodes could not be started or stopped, or their output could not be delivered."""
