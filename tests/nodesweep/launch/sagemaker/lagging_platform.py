"""An eventually consistent SageMaker on a simulated clock: lists, descriptions, and tags lag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from benchmarks.watch_calls import SimulatedTime


def error(code: str, message: str, operation: str) -> ClientError:
    """Return a ClientError."""
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}, operation
    )


TERMINAL = ("Completed", "Failed", "Stopped")
NOT_FOUND = "Requested resource not found."


@dataclass
class _Job:
    request: Mapping[str, Any]
    created_at: float
    status: str = "InProgress"
    ends_at: float = float("inf")
    pool_released: bool = False

    @property
    def keep_alive(self) -> int:
        return int(self.request.get("ResourceConfig", {}).get("KeepAlivePeriodInSeconds", 0))


@dataclass
class LaggingPlatform:
    """SageMaker with lags in seconds.

    A job is Stopping for `stop_seconds`, one in `stubborn` forever.
    """

    list_lag: float = 0.0
    describe_lag: float = 0.0
    tags_lag: float = 0.0
    stop_seconds: float = 30.0
    stubborn: frozenset[str] = frozenset()
    time: SimulatedTime = field(default_factory=SimulatedTime)
    jobs: dict[str, _Job] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    class exceptions:
        """The client's exception classes."""

        ClientError = ClientError

        class ResourceLimitExceeded(ClientError):
            """A quota is exhausted."""

            pass

        class ResourceInUse(ClientError):
            """A job of this name exists."""

            pass

    def create_training_job(self, **request: Any) -> dict[str, str]:
        """Create a job; its name must be new."""
        self._count("create")
        name = request["TrainingJobName"]
        if name in self.jobs:
            raise self.exceptions.ResourceInUse(
                {"Error": {"Code": "ResourceInUse", "Message": name}}, "create"
            )
        self.jobs[name] = _Job(request, self.time.seconds)
        return {"TrainingJobArn": f"arn:{name}"}

    def add(self, *names: str, keep_alive: int = 0) -> None:
        """Create jobs without a call."""
        for name in names:
            resources = {"InstanceCount": 1, "KeepAlivePeriodInSeconds": keep_alive}
            self.jobs[name] = _Job(
                {"TrainingJobName": name, "ResourceConfig": resources}, self.time.seconds
            )

    def complete(self, name: str) -> None:
        """Complete a job."""
        self.jobs[name].status = "Completed"

    def status(self, name: str) -> str:
        """Return a job's status now."""
        job = self.jobs[name]
        if job.status == "Stopping" and self.time.seconds >= job.ends_at:
            job.status = "Stopped"
        return job.status

    def pool(self, name: str) -> str | None:
        """Return the WarmPoolStatus.Status of a job; None without a warm pool."""
        job = self.jobs[name]
        if not job.keep_alive:
            return None
        if self.status(name) not in TERMINAL:
            return "InUse"
        return "Terminated" if job.pool_released else "Available"

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        """Return a job's summary once `describe_lag` has passed."""
        self._count("describe")
        return self._summary(self._known(TrainingJobName, self.describe_lag, "DescribeTrainingJob"))

    def list_tags(self, ResourceArn: str) -> dict[str, Any]:
        """Return a job's tags, none before `tags_lag` has passed."""
        self._count("tags")
        job = self.jobs[ResourceArn.removeprefix("arn:")]
        late = self.time.seconds < job.created_at + self.tags_lag
        return {"Tags": [] if late else list(job.request.get("Tags", ()))}

    def stop_training_job(self, TrainingJobName: str) -> None:
        """Stop a job that is known and not over."""
        self._count("stop")
        job = self.jobs[self._known(TrainingJobName, self.describe_lag, "StopTrainingJob")]
        if self.status(TrainingJobName) in TERMINAL:
            raise error(
                "ValidationException", f"training job is in status {job.status}", "StopTrainingJob"
            )
        if job.status == "InProgress":
            job.status = "Stopping"
            stubborn = TrainingJobName in self.stubborn
            job.ends_at = float("inf") if stubborn else self.time.seconds + self.stop_seconds

    def update_training_job(self, TrainingJobName: str, ResourceConfig: Mapping[str, int]) -> None:
        """Release an available warm pool."""
        self._count("update")
        if self.pool(TrainingJobName) != "Available":
            raise error(
                "ValidationException", "there is no warm pool to update", "UpdateTrainingJob"
            )
        assert ResourceConfig == {"KeepAlivePeriodInSeconds": 0}
        self.jobs[TrainingJobName].pool_released = True

    def get_paginator(self, operation: str) -> LaggingPlatform:
        """Return itself, the only paginator there is."""
        assert operation == "list_training_jobs"
        return self

    def paginate(self, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the only page."""
        yield self.list_training_jobs(**query)

    def list_training_jobs(self, **query: Any) -> dict[str, Any]:
        """Return the matching jobs older than `list_lag`."""
        self._count("list")
        shown = [
            name
            for name, job in self.jobs.items()
            if self.time.seconds >= job.created_at + self.list_lag
        ]
        summaries = [self._summary(name) for name in shown if query.get("NameContains", "") in name]
        if wanted := query.get("StatusEquals"):
            summaries = [one for one in summaries if one["TrainingJobStatus"] == wanted]
        if wanted := query.get("WarmPoolStatusEquals"):
            summaries = [
                one for one in summaries if one.get("WarmPoolStatus", {}).get("Status") == wanted
            ]
        return {"TrainingJobSummaries": summaries}

    def _known(self, name: str, lag: float, operation: str) -> str:
        if name not in self.jobs or self.time.seconds < self.jobs[name].created_at + lag:
            raise error("ValidationException", NOT_FOUND, operation)
        return name

    def _summary(self, name: str) -> dict[str, Any]:
        status, pool = self.status(name), self.pool(name)
        return {
            "TrainingJobName": name,
            "TrainingJobArn": f"arn:{name}",
            "TrainingJobStatus": status,
            "SecondaryStatus": status,
            "CreationTime": self.time.now(),
            "ResourceConfig": self.jobs[name].request.get("ResourceConfig", {}),
            **({"TrainingStartTime": self.time.now()} if status != "InProgress" else {}),
            **({"WarmPoolStatus": {"Status": pool}} if pool else {}),
        }

    def _count(self, operation: str) -> None:
        self.calls.append(operation)
        self.time.seconds += 0.1
