"""The interface of a job's record, for the manager, the queue and executions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from sagemaker_emulator.interfaces import JobSpec
from sagemaker_emulator.jobs.endings import Ending


class Job(Protocol):
    """A job's record; its manager's lock guards every change. Times are in Unix seconds."""

    region: str
    request: dict[str, Any]
    creation_time: float
    last_modified_time: float
    status: str
    tags: list[dict[str, str]]

    @property
    def name(self) -> str:
        """The name in the request."""

    @property
    def run_name(self) -> str:
        """The name for engine and room, unique among jobs of all kinds."""

    @property
    def arn(self) -> str: ...

    @property
    def image_uri(self) -> str: ...

    @property
    def instance_type(self) -> str: ...

    @property
    def instance_count(self) -> int: ...

    @property
    def is_spot(self) -> bool:
        """True if its instances can be reclaimed."""

    def is_over(self) -> bool: ...

    def longest_wait(self, now: float) -> tuple[float, Ending]:
        """Return when the job ends, and how, if it waits for capacity from now on."""

    def note_wait(self, now: float) -> None:
        """Record that it waits for capacity from now on."""

    def begin_segment(self, now: float) -> None:
        """Record that its instances have started; billable time begins."""

    def end_segment(self, now: float) -> None:
        """Record that its instances are gone; do nothing if there are none."""

    def begin_stop(self, now: float) -> None:
        """Record a requested stop; do nothing if it was requested before."""

    def end(self, ending: Ending, now: float) -> None: ...

    def spec(self) -> JobSpec:
        """Return the engine's view of the job."""

    def describe(self, now: float) -> dict[str, Any]: ...

    def summary(self, now: float) -> dict[str, Any]: ...

    def to_record(self) -> dict[str, Any]: ...


J = TypeVar("J", bound=Job)
J_contra = TypeVar("J_contra", bound=Job, contravariant=True)

Change = Callable[[Callable[[J], None]], None]
"""Applies a change to a job under its manager's lock and saves the record."""


def job_key(region: str, name: str) -> tuple[str, str]:
    """Return a job's key: names are unique per region and kind, ignoring case, as in SageMaker."""
    return region, name.lower()
