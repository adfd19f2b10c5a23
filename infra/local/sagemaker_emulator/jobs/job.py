"""The record of a job, with the members that training and Processing jobs share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeVar

from sagemaker_emulator.api.protocol import ACCOUNT_ID
from sagemaker_emulator.interfaces import JobSpec
from sagemaker_emulator.jobs.endings import IN_PROGRESS, Ending


@dataclass
class Job(ABC):
    """The record of a job, which must only be changed under the lock of its manager.

    Times are in Unix seconds, or None if they are in the future.
    """

    kind: ClassVar[str]
    """The prefix of member names in the API, such as Training in TrainingJobName."""

    region: str
    request: dict[str, Any]
    creation_time: float
    status: str = "InProgress"
    last_modified_time: float = 0.0
    failure_reason: str | None = None
    tags: list[dict[str, str]] = field(default_factory=list)
    account_id: str = ACCOUNT_ID

    @property
    def name(self) -> str:
        return str(self.request[f"{self.kind}JobName"])

    @property
    def run_name(self) -> str:
        """The name for the engine and the room, unique among all kinds of jobs in a region."""
        return self.name

    @property
    def arn(self) -> str:
        kind = self.kind.lower()
        return f"arn:aws:sagemaker:{self.region}:{self.account_id}:{kind}-job/{self.name}"

    @property
    @abstractmethod
    def image_uri(self) -> str: ...

    @property
    @abstractmethod
    def cluster(self) -> dict[str, Any]:
        """The part of the request that contains InstanceType and InstanceCount."""

    @property
    def instance_type(self) -> str:
        return str(self.cluster["InstanceType"])

    @property
    def instance_count(self) -> int:
        return int(self.cluster["InstanceCount"])

    @property
    def is_spot(self) -> bool:
        """True if the job's instances can be reclaimed."""
        return False

    def is_over(self) -> bool:
        return self.status not in IN_PROGRESS

    @abstractmethod
    def longest_wait(self, now: float) -> tuple[float, Ending]:
        """Return when (in Unix seconds) and how the job ends if it gets no capacity."""

    @abstractmethod
    def note_wait(self, now: float) -> None:
        """Record that the job begins to wait for capacity."""

    @abstractmethod
    def begin_segment(self, now: float) -> None:
        """Record that the instances have started, which begins billable time."""

    @abstractmethod
    def end_segment(self, now: float) -> None:
        """Record that the instances were released, if there were any."""

    @abstractmethod
    def begin_stop(self, now: float) -> None:
        """Record a stop request, unless the job is already stopping."""

    @abstractmethod
    def end(self, ending: Ending, now: float) -> None: ...

    def shift(self, seconds: float) -> None:
        """Shift all times of the job by this many seconds."""
        for name, value in vars(self).items():
            if name.endswith("_time") and value is not None:
                setattr(self, name, value + seconds)

    @abstractmethod
    def spec(self) -> JobSpec:
        """Return the specification of the job for the engine."""

    @abstractmethod
    def describe(self, now: float) -> dict[str, Any]: ...

    def summary(self, now: float) -> dict[str, Any]:
        return {
            f"{self.kind}JobName": self.name,
            f"{self.kind}JobArn": self.arn,
            "CreationTime": self.creation_time,
            "LastModifiedTime": self.last_modified_time,
            f"{self.kind}JobStatus": self.status,
        }

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


J = TypeVar("J", bound=Job)
J_contra = TypeVar("J_contra", bound=Job, contravariant=True)

Change = Callable[[Callable[[J], None]], None]
"""Applies a change to a job under the lock of its manager, and saves the job."""


def job_key(region: str, name: str) -> tuple[str, str]:
    """Return the key of a job. As on SageMaker, names are unique in a region, ignoring case."""
    return region, name.lower()
