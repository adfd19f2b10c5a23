"""What can go wrong in the engine itself, as opposed to in a job.

EngineError
├── ImageNotFoundError    the job names an image that is not in the store
├── StateInUseError       another live engine works in the same state folder
└── SupervisorError       the nodes' supervisor didn't start, or its processes can't be ended
"""

from __future__ import annotations


class EngineError(Exception):
    """The engine can't do what it was asked to; the job is not at fault."""


class ImageNotFoundError(EngineError):
    """The job names an image that is not in the store."""


class StateInUseError(EngineError):
    """Another live engine works in the same state folder."""


class SupervisorError(EngineError):
    """The nodes' supervisor didn't start, or its processes can't be ended."""
