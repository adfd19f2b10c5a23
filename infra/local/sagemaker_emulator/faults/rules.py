"""The kinds of fault, each a class with the fault's parameters and its effect, for any engine.

To add a kind, add a class and name it in `RULES` of faults/plan.py.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sagemaker_emulator.api.protocol import ApiError
from sagemaker_emulator.api.validation import service_model
from sagemaker_emulator.jobs.endings import INTERNAL_ERROR, Ending
from sagemaker_emulator.jobs.job import Job

NO_CAPACITY = (
    "Unable to provision requested ML compute capacity. Please retry using a different ML instance"
    " type or after some time."
)

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Rule(BaseModel):
    """One entry of a fault plan; every kind has a literal member `fault` that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ApiRule(Rule, ABC):
    """Fails calls of one operation.

    `calls` refers to calls of the rule's operation (for its jobs), counted from the server's start.
    """

    service: Literal["sagemaker", "codebuild", "ecr", "logs"] = Field(
        default="sagemaker", description="Service of the operation."
    )
    operation: str = Field(description="API operation, for instance CreateTrainingJob.")
    calls: Annotated[list[int], Field(min_length=2, max_length=2)] = Field(
        description="First and last call to fail, counted from 1; botocore's retries count, too."
    )
    jobs: str | None = Field(
        default=None,
        description="Fail only calls whose TrainingJobName or ProcessingJobName matches this"
        " pattern.",
    )

    @model_validator(mode="after")
    def _checked(self) -> ApiRule:
        known = service_model(self.service).operation_names
        if self.operation not in known:
            raise ValueError(
                f"operation: {self.service} has no {self.operation!r}; it has"
                f" {', '.join(known[:3])} and others"
            )
        first, last = self.calls
        if not 1 <= first <= last:
            raise ValueError(f"calls {self.calls} is not [first, last] with 1 <= first <= last")
        return self

    @abstractmethod
    def error(self) -> ApiError:
        """Return the error that a matching call gets."""


class ThrottleRule(ApiRule):
    """Fails the calls with ThrottlingException: Rate exceeded."""

    fault: Literal["throttle"]

    def error(self) -> ApiError:
        return ApiError("ThrottlingException", "Rate exceeded")


class ErrorRule(ApiRule):
    """Fails the calls with an error code."""

    fault: Literal["error"]
    code: str = Field(
        description="AWS error code, for instance AccessDeniedException.", min_length=1
    )
    message: str = Field(default="Injected by the fault plan.", description="The error's message.")
    http_status: int = Field(
        default=400,
        ge=400,
        le=599,
        description="HTTP status; botocore retries 500, 502, 503 and 504.",
    )

    def error(self) -> ApiError:
        return ApiError(self.code, self.message, self.http_status)


class JobRule(Rule):
    """A fault of a job; by default it does nothing."""

    jobs: str = Field(
        default="*", description="Pattern of job names; * and ? as in a shell.", min_length=1
    )
    max_jobs: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of jobs that the rule strikes, in order of creation.",
    )

    @property
    def pending_seconds(self) -> float:
        """Seconds for which the fault makes the job wait for capacity."""
        return 0.0

    @property
    def capacity_error(self) -> str | None:
        """FailureReason of a job that gets no capacity after waiting; None if it continues."""
        return None


class PendingRule(JobRule):
    """The job waits for capacity, then continues."""

    fault: Literal["pending"]
    seconds: Seconds = Field(description="Time that the job is Pending.")

    @property
    def pending_seconds(self) -> float:
        return self.seconds


class CapacityRule(JobRule):
    """The job waits for capacity, then fails with CapacityError."""

    fault: Literal["capacity_error"]
    seconds: Seconds = Field(
        default=0.0, description="Time that the job is Pending before it fails."
    )
    message: str = Field(default=NO_CAPACITY, description='What follows "CapacityError: ".')

    @property
    def pending_seconds(self) -> float:
        return self.seconds

    @property
    def capacity_error(self) -> str:
        return f"CapacityError: {self.message}"


class TrainingRule(JobRule, ABC):
    """Strikes while a job trains: some seconds after Training began, or at a line of its log."""

    after_seconds: Seconds | None = Field(
        default=None, description="Seconds from each start of Training to the strike."
    )
    at_line: str | None = Field(
        default=None,
        description="Regular expression; the rule strikes at the first log line that it matches.",
    )

    @field_validator("at_line")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"{value[:80]!r} is not a regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _has_one_trigger(self) -> TrainingRule:
        if (self.after_seconds is None) == (self.at_line is None):
            raise ValueError(
                "set either after_seconds or at_line, which define when the fault strikes"
            )
        return self

    @property
    def max_strikes(self) -> int:
        """Maximum number of strikes per job."""
        return 1

    @property
    def killed_host(self) -> str | None:
        """The node whose processes the rule kills; None if the rule takes away all instances."""
        return None

    def concerns(self, job: Job) -> bool:
        """Return True if the rule can apply to this job at all."""
        return True

    @abstractmethod
    def ending(self) -> Ending:
        """Return the ending of a job's segment in which the rule strikes.

        For a killed node, only a simulation uses the ending; real nodes' exits determine it.
        """


class InternalErrorRule(TrainingRule):
    """The instances are lost; the attempt fails with InternalServerError.

    RetryStrategy retries it.
    """

    fault: Literal["internal_error"]
    times: int = Field(
        default=1,
        ge=1,
        description="Number of a job's attempts that the rule strikes, starting with the first.",
    )

    @property
    def max_strikes(self) -> int:
        return self.times

    def ending(self) -> Ending:
        return Ending("Failed", INTERNAL_ERROR)


class AlgorithmErrorRule(TrainingRule):
    """One node's processes are killed; the job fails with AlgorithmError."""

    fault: Literal["algorithm_error"]
    node: str = Field(
        default="algo-1",
        pattern=r"^algo-[1-9]\d*$",
        description="Node to kill; jobs without it are not affected.",
    )

    @property
    def killed_host(self) -> str:
        return self.node

    def concerns(self, job: Job) -> bool:
        """Return True if the job has the node."""
        return int(self.node.partition("-")[2]) <= job.instance_count

    def ending(self) -> Ending:
        return Ending(
            "Failed", f"AlgorithmError: {self.node} was killed by the fault plan, exit code: 137"
        )


class SpotInterruptionRule(TrainingRule):
    """The spot instances are reclaimed: SIGTERM, 120 s, SIGKILL.

    Jobs without managed spot training are spared.
    """

    fault: Literal["spot_interruption"]
    times: int = Field(
        default=1,
        ge=1,
        description="Number of a job's segments that the rule ends, starting with the first.",
    )
    restart_after_seconds: Seconds = Field(
        default=0.0, description="Time that the job then waits for capacity."
    )

    @property
    def max_strikes(self) -> int:
        return self.times

    def concerns(self, job: Job) -> bool:
        """Return True if the job uses spot instances."""
        return job.is_spot

    def ending(self) -> Ending:
        return Ending("Interrupted", restart_after_seconds=self.restart_after_seconds)
