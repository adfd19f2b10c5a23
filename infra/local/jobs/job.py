"""What the book, the queue and an execution ask of a job's record, whatever kind of job it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from nodesweep.infra.local.interfaces import JobSpec
from nodesweep.infra.local.jobs.endings import Ending


class Job(Protocol):
    """A job's record; its book's lock guards every change. Times are Unix seconds."""

    region: str
    request: dict[str, Any]
    creation_time: float
    last_modified_time: float
    status: str
    tags: list[dict[str, str]]

    @property
    def name(self) -> str:
        """As the request has it."""

    @property
    def run_name(self) -> str:
        """What engines and room know it by, unique among the jobs of every kind."""

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
        """Whether its instances can be taken away."""

    def is_over(self) -> bool: ...

    def longest_wait(self, now: float) -> tuple[float, Ending]:
        """When the job ends, and how, if it waits for capacity from now on."""

    def note_wait(self, now: float) -> None:
        """It waits for capacity from now on."""

    def begin_segment(self, now: float) -> None:
        """Its instances are there, and with them begins the time that is paid for."""

    def end_segment(self, now: float) -> None:
        """Its instances are gone; nothing where there are none."""

    def begin_stop(self, now: float) -> None:
        """A stop is asked for; nothing where that was so before."""

    def end(self, ending: Ending, now: float) -> None: ...

    def spec(self) -> JobSpec:
        """What an engine needs to know of it."""

    def describe(self, now: float) -> dict[str, Any]: ...

    def summary(self, now: float) -> dict[str, Any]: ...

    def to_record(self) -> dict[str, Any]: ...


J = TypeVar("J", bound=Job)
J_contra = TypeVar("J_contra", bound=Job, contravariant=True)

Change = Callable[[Callable[[J], None]], None]
"""Applies a change to a job under its book's lock and writes the record down."""


def job_key(region: str, name: str) -> tuple[str, str]:
    """Names are unique per region and kind; SageMaker compares them without regard to case."""
    return region, name.lower()
