"""The kinds of faults, as classes with their parameters and effects, for all engines.

To add a kind, add a class and list it in `RULES` in faults/plan.py.
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
    """An entry in a fault plan. Every kind has a literal member `fault` with its name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ApiRule(Rule, ABC):
    """Fails calls of an operation.

    `calls` refers to the calls of the operation (for matching jobs) since the start of the server.
    """

    service: Literal["sagemaker", "codebuild", "ecr", "logs"] = Field(
        default="sagemaker", description="Service of the operation."
    )
    operation: str = Field(description="API operation, for example CreateTrainingJob.")
    calls: Annotated[list[int], Field(min_length=2, max_length=2)] = Field(
        description="First and last call to fail, counted from 1, including botocore's retries."
    )
    jobs: str | None = Field(
        default=None,
        description="Only fail calls whose TrainingJobName or ProcessingJobName matches this"
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
        """Return the error for calls that must fail."""


class ThrottleRule(ApiRule):
    """Fails calls with ThrottlingException: Rate exceeded."""

    fault: Literal["throttle"]

    def error(self) -> ApiError:
        return ApiError("ThrottlingException", "Rate exceeded")


class ErrorRule(ApiRule):
    """Fails calls with an error code."""

    fault: Literal["error"]
    code: str = Field(
        description="AWS error code, for example AccessDeniedException.", min_length=1
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
    """A fault of a job, which does nothing by default."""

    jobs: str = Field(
        default="*", description="Pattern of job names; * and ? as in a shell.", min_length=1
    )
    max_jobs: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of jobs that the rule affects, in order of creation.",
    )

    @property
    def pending_seconds(self) -> float:
        """The time that the job waits for capacity."""
        return 0.0

    @property
    def capacity_error(self) -> str | None:
        """FailureReason if the job gets no capacity after waiting, or None if it continues."""
        return None


class PendingRule(JobRule):
    """The job waits for capacity and then continues."""

    fault: Literal["pending"]
    seconds: Seconds = Field(description="Time that the job is Pending.")

    @property
    def pending_seconds(self) -> float:
        return self.seconds


class CapacityRule(JobRule):
    """The job waits for capacity and then fails with CapacityError."""

    fault: Literal["capacity_error"]
    seconds: Seconds = Field(
        default=0.0, description="Time that the job is Pending before it fails."
    )
    message: str = Field(default=NO_CAPACITY, description='Text after "CapacityError: ".')

    @property
    def pending_seconds(self) -> float:
        return self.seconds

    @property
    def capacity_error(self) -> str:
        return f"CapacityError: {self.message}"


class TrainingRule(JobRule, ABC):
    """A fault during training: some seconds after Training began, or at a line of the log."""

    after_seconds: Seconds | None = Field(
        default=None, description="Seconds from the start of Training to the fault."
    )
    at_line: str | None = Field(
        default=None,
        description="Regular expression; the fault occurs at the first log line that it matches.",
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
                "set either after_seconds or at_line, which define when the fault occurs"
            )
        return self

    @property
    def max_strikes(self) -> int:
        """The maximum number of times that the fault occurs per job."""
        return 1

    @property
    def killed_host(self) -> str | None:
        """The node whose processes are killed, or None if all instances are lost."""
        return None

    def concerns(self, job: Job) -> bool:
        """Return True if the rule can apply to this job."""
        return True

    @abstractmethod
    def ending(self) -> Ending:
        """Return how a job's segment ends if the fault occurs in it.

        For a killed node, only simulations use this; otherwise, the exits of real nodes decide.
        """


class InternalErrorRule(TrainingRule):
    """The instances are lost, and the attempt fails with InternalServerError.

    RetryStrategy applies to this failure.
    """

    fault: Literal["internal_error"]
    times: int = Field(
        default=1,
        ge=1,
        description="Number of attempts of a job that fail, starting with the first.",
    )

    @property
    def max_strikes(self) -> int:
        return self.times

    def ending(self) -> Ending:
        return Ending("Failed", INTERNAL_ERROR)


class AlgorithmErrorRule(TrainingRule):
    """The processes of a node are killed, and the job fails with AlgorithmError."""

    fault: Literal["algorithm_error"]
    node: str = Field(
        default="algo-1",
        pattern=r"^algo-[1-9]\d*$",
        description="Node to kill; jobs without this node are not affected.",
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
    """The spot instances are reclaimed, with SIGTERM and, 120 s later, SIGKILL.

    Jobs without managed spot training are not affected.
    """

    fault: Literal["spot_interruption"]
    times: int = Field(
        default=1,
        ge=1,
        description="Number of interruptions per job, starting with its first segment.",
    )
    restart_after_seconds: Seconds = Field(
        default=0.0, description="Time that the job waits for capacity afterwards."
    )

    @property
    def max_strikes(self) -> int:
        return self.times

    def concerns(self, job: Job) -> bool:
        """Return True if the job uses spot instances."""
        return job.is_spot

    def ending(self) -> Ending:
        return Ending("Interrupted", restart_after_seconds=self.restart_after_seconds)
