"""The record of a job, with the members common to training and Processing jobs."""

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
    """A job's record, changed only under its manager's lock.

    Times are in Unix seconds, None until they occur.
    """

    kind: ClassVar[str]
    """Prefix of member names in the API, such as Training in TrainingJobName."""

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
        """The job's name for engine and room, unique among a region's jobs of all kinds."""
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
        """The part of the request with InstanceType and InstanceCount."""

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
        """Return the time (Unix seconds) and the ending of the job if it gets no capacity."""

    @abstractmethod
    def note_wait(self, now: float) -> None:
        """Record that the job waits for capacity from now on."""

    @abstractmethod
    def begin_segment(self, now: float) -> None:
        """Record that the job's instances have started, so billable time begins."""

    @abstractmethod
    def end_segment(self, now: float) -> None:
        """Record that the job's instances are gone; do nothing if there are none."""

    @abstractmethod
    def begin_stop(self, now: float) -> None:
        """Record a requested stop; do nothing if the stop was requested before."""

    @abstractmethod
    def end(self, ending: Ending, now: float) -> None: ...

    def shift(self, seconds: float) -> None:
        """Shift all of the job's times by this many seconds."""
        for name, value in vars(self).items():
            if name.endswith("_time") and value is not None:
                setattr(self, name, value + seconds)

    @abstractmethod
    def spec(self) -> JobSpec:
        """Return the engine's view of the job."""

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
"""Applies a change to a job under its manager's lock and saves the record."""


def job_key(region: str, name: str) -> tuple[str, str]:
    """Return a job's key; names are unique per region and kind, ignoring case, as on SageMaker."""
    return region, name.lower()
