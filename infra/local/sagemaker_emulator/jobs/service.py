"""The SageMaker operations that training jobs and Processing jobs share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import Action
from sagemaker_emulator.jobs.book import JobManager
from sagemaker_emulator.jobs.lists import Listing

Jobs = TypeVar("Jobs", bound=JobManager[Any])


class JobApi(ABC, Generic[Jobs]):
    """Handles requests about jobs of one kind. Actions take a region and a request."""

    kind: ClassVar[str]
    """The prefix of member names in the API, such as Training in TrainingJobName."""

    def __init__(self, jobs: Jobs, clients: ClientFactory) -> None:
        self._jobs = jobs
        self._clients = clients
        self._name = f"{self.kind}JobName"
        self._listing = Listing(f"{self.kind}JobSummaries", self._name, f"{self.kind}JobStatus")

    def actions(self) -> dict[str, Action]:
        return {
            f"Create{self.kind}Job": self.create,
            f"Describe{self.kind}Job": self.describe,
            f"Stop{self.kind}Job": self.stop,
            f"Delete{self.kind}Job": self.delete,
            f"List{self.kind}Jobs": self.list,
        }

    @abstractmethod
    def check(self, region: str, request: dict[str, Any]) -> None:
        """Check a request for a new job beyond the API model.

        Raises:
            ValidationException: If the request is invalid or unsupported.
        """

    def create(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self.check(region, request)
        return {f"{self.kind}JobArn": self._jobs.create(region, request).arn}

    def describe(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return self._jobs.describe(region, request[self._name])

    def stop(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.stop(region, request[self._name])
        return {}

    def delete(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.delete(region, request[self._name])
        return {}

    def list(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of job summaries."""
        return self._listing.page(self._jobs.summaries(region), request)
