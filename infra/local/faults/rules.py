"""The kinds of fault: each a class with the members a user gives it and with what it does,
to any engine.

A further kind is a further class, named in `RULES` of infra/local/faults/plan.py.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nodesweep.infra.local.api.protocol import ApiError
from nodesweep.infra.local.api.validation import service_model
from nodesweep.infra.local.jobs.endings import INTERNAL_ERROR, Ending
from nodesweep.infra.local.jobs.job import Job

NO_CAPACITY = (
    "Unable to provision requested ML compute capacity. Please retry using a different ML instance"
    " type or after some time."
)

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Rule(BaseModel):
    """One entry of a fault plan. Every kind has a member `fault`, a literal that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ApiRule(Rule, ABC):
    """Fails calls of one operation; `calls` counts those of the rule's operation
    (and jobs) since the start.
    """

    service: Literal["sagemaker", "codebuild", "ecr", "logs"] = Field(
        default="sagemaker", description="Whose operation."
    )
    operation: str = Field(description="As the API names it, for instance CreateTrainingJob.")
    calls: Annotated[list[int], Field(min_length=2, max_length=2)] = Field(
        description=(
            "First and last call that is failed, counted from 1; botocore's own retries count."
        )
    )
    jobs: str | None = Field(
        default=None,
        description="Only calls whose TrainingJobName or ProcessingJobName matches this pattern.",
    )

    @model_validator(mode="after")
    def _checked(self) -> ApiRule:
        known = service_model(self.service).operation_names
        if self.operation not in known:
            raise ValueError(
                f"operation {self.operation!r} is none of {self.service}'s"
                f" ({', '.join(known[:3])}, …)"
            )
        first, last = self.calls
        if not 1 <= first <= last:
            raise ValueError(f"calls {self.calls} is not [first, last] with 1 <= first <= last")
        return self

    @abstractmethod
    def error(self) -> ApiError:
        """What such a call is answered with."""


class ThrottleRule(ApiRule):
    """The calls are answered ThrottlingException: Rate exceeded."""

    fault: Literal["throttle"]

    def error(self) -> ApiError:
        return ApiError("ThrottlingException", "Rate exceeded")


class ErrorRule(ApiRule):
    """The calls are answered with an error code."""

    fault: Literal["error"]
    code: str = Field(
        description="AWS error code, for instance AccessDeniedException.", min_length=1
    )
    message: str = Field(default="Injected by the fault plan.", description="The error's message.")
    http_status: int = Field(
        default=400, ge=400, le=599, description="HTTP status; botocore retries 500 to 504."
    )

    def error(self) -> ApiError:
        return ApiError(self.code, self.message, self.http_status)


class JobRule(Rule):
    """Happens to a job, by default nothing."""

    jobs: str = Field(
        default="*", description="Pattern of job names; * and ? as in a shell.", min_length=1
    )
    max_jobs: int | None = Field(
        default=None, ge=1, description="Only the first that match, in order of creation."
    )

    @property
    def pending_seconds(self) -> float:
        """How long the job waits for capacity because of it."""
        return 0.0

    @property
    def capacity_error(self) -> str | None:
        """FailureReason of a job that gets no capacity after that, None where it goes on."""
        return None


class PendingRule(JobRule):
    """The job waits for capacity, then goes on."""

    fault: Literal["pending"]
    seconds: Seconds = Field(description="How long it is Pending.")

    @property
    def pending_seconds(self) -> float:
        return self.seconds


class CapacityRule(JobRule):
    """The job waits for capacity, then fails with CapacityError."""

    fault: Literal["capacity_error"]
    seconds: Seconds = Field(default=0.0, description="How long it is Pending before.")
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
        default=None, description="Seconds after (each) Training began."
    )
    at_line: str | None = Field(
        default=None, description="Regular expression; strikes at the first line it finds."
    )

    @field_validator("at_line")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"{value[:80]!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _has_one_trigger(self) -> TrainingRule:
        if (self.after_seconds is None) == (self.at_line is None):
            raise ValueError("give one of after_seconds and at_line, to say when it strikes")
        return self

    @property
    def most_strikes(self) -> int:
        """How often it strikes one job at most."""
        return 1

    @property
    def killed_host(self) -> str | None:
        """The node whose processes it kills; None where it takes all instances away."""
        return None

    def concerns(self, job: Job) -> bool:
        """Whether it can strike this job at all."""
        return True

    @abstractmethod
    def ending(self) -> Ending:
        """How it ends a segment of a job. Where a node that runs is killed, the engine sees by
        itself what follows.
        """


class InternalErrorRule(TrainingRule):
    """The instances are lost and the attempt fails with InternalServerError,
    which RetryStrategy retries.
    """

    fault: Literal["internal_error"]
    times: int = Field(
        default=1, ge=1, description="How many attempts of a job it strikes, from the first on."
    )

    @property
    def most_strikes(self) -> int:
        return self.times

    def ending(self) -> Ending:
        return Ending("Failed", INTERNAL_ERROR)


class AlgorithmErrorRule(TrainingRule):
    """One node's processes are killed; the job fails with AlgorithmError."""

    fault: Literal["algorithm_error"]
    node: str = Field(
        default="algo-1",
        pattern=r"^algo-[1-9]\d*$",
        description="A job without this node is spared.",
    )

    @property
    def killed_host(self) -> str:
        return self.node

    def concerns(self, job: Job) -> bool:
        """A node that isn't there can't fail."""
        return int(self.node.partition("-")[2]) <= job.instance_count

    def ending(self) -> Ending:
        return Ending(
            "Failed", f"AlgorithmError: {self.node} was killed by the fault plan, exit code: 137"
        )


class SpotInterruptionRule(TrainingRule):
    """The spot instances are taken away: SIGTERM, 120 s, SIGKILL.
    Jobs that are not managed spot are spared.
    """

    fault: Literal["spot_interruption"]
    times: int = Field(
        default=1, ge=1, description="How many segments of a job it ends, from the first on."
    )
    restart_after_seconds: Seconds = Field(
        default=0.0, description="How long the job then waits for capacity."
    )

    @property
    def most_strikes(self) -> int:
        return self.times

    def concerns(self, job: Job) -> bool:
        """Instances that are not spot are not taken away."""
        return job.is_spot

    def ending(self) -> Ending:
        return Ending("Interrupted", restart_after_seconds=self.restart_after_seconds)
