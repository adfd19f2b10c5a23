"""A fault plan as a user writes it: a list of rules, each of one kind, read from YAML or JSON and checked.

Job rules apply to jobs by name pattern; API rules to calls of an operation by their number. Nothing here depends on
chance: the same plan, jobs and calls give the same faults.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from infra.local.api.validation import service_model
from infra.local.plain_yaml import parse_plain_yaml
from infra.local.settings import SettingsError, read_text

INTERNAL_ERROR = "InternalServerError: We encountered an internal error. Please try again."
NO_CAPACITY = (
    "Unable to provision requested ML compute capacity. Please retry using a different ML instance type "
    "or after some time."
)

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _ApiRule(_Rule):
    """Fails calls of one operation; `calls` counts those of the rule's operation (and jobs) since the start."""

    service: Literal["sagemaker", "codebuild", "ecr", "logs"] = Field(
        default="sagemaker", description="Whose operation."
    )
    operation: str = Field(description="As the API names it, for instance CreateTrainingJob.")
    calls: Annotated[list[int], Field(min_length=2, max_length=2)] = Field(
        description="First and last call that is failed, counted from 1; botocore's own retries count."
    )
    jobs: str | None = Field(default=None, description="Only calls whose TrainingJobName matches this pattern.")

    @model_validator(mode="after")
    def _checked(self) -> _ApiRule:
        known = service_model(self.service).operation_names
        if self.operation not in known:
            raise ValueError(f"operation {self.operation!r} is none of {self.service}'s ({', '.join(known[:3])}, …)")
        first, last = self.calls
        if not 1 <= first <= last:
            raise ValueError(f"calls {self.calls} is not [first, last] with 1 <= first <= last")
        return self


class ThrottleRule(_ApiRule):
    """The calls are answered ThrottlingException: Rate exceeded."""

    fault: Literal["throttle"]


class ErrorRule(_ApiRule):
    """The calls are answered with an error code."""

    fault: Literal["error"]
    code: str = Field(description="AWS error code, for instance AccessDeniedException.", min_length=1)
    message: str = Field(default="Injected by the fault plan.", description="The error's message.")
    http_status: int = Field(default=400, ge=400, le=599, description="HTTP status; botocore retries 500 to 504.")


class _JobRule(_Rule):
    jobs: str = Field(default="*", description="Pattern of job names; * and ? as in a shell.", min_length=1)
    max_jobs: int | None = Field(default=None, ge=1, description="Only the first that match, in order of creation.")


class PendingRule(_JobRule):
    """The job waits for capacity, then goes on."""

    fault: Literal["pending"]
    seconds: Seconds = Field(description="How long it is Pending.")


class CapacityRule(_JobRule):
    """The job waits for capacity, then fails with CapacityError."""

    fault: Literal["capacity_error"]
    seconds: Seconds = Field(default=0.0, description="How long it is Pending before.")
    message: str = Field(default=NO_CAPACITY, description='What follows "CapacityError: ".')


class _TrainingRule(_JobRule):
    """Strikes while a job trains: some seconds after Training began, or at a line of its log."""

    after_seconds: Seconds | None = Field(default=None, description="Seconds after (each) Training began.")
    at_line: str | None = Field(default=None, description="Regular expression; strikes at the first line it finds.")

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
    def _has_one_trigger(self) -> _TrainingRule:
        if (self.after_seconds is None) == (self.at_line is None):
            raise ValueError("give one of after_seconds and at_line, to say when it strikes")
        return self


class InternalErrorRule(_TrainingRule):
    """The instances are lost and the attempt fails with InternalServerError, which RetryStrategy retries."""

    fault: Literal["internal_error"]
    times: int = Field(default=1, ge=1, description="How many attempts of a job it strikes, from the first on.")


class AlgorithmErrorRule(_TrainingRule):
    """One node's processes are killed; the job fails with AlgorithmError."""

    fault: Literal["algorithm_error"]
    node: str = Field(default="algo-1", pattern=r"^algo-[1-9]\d*$", description="A job without this node is spared.")


class SpotInterruptionRule(_TrainingRule):
    """The spot instances are taken away: SIGTERM, 120 s, SIGKILL. Jobs that are not managed spot are spared."""

    fault: Literal["spot_interruption"]
    times: int = Field(default=1, ge=1, description="How many segments of a job it ends, from the first on.")
    restart_after_seconds: Seconds = Field(default=0.0, description="How long the job then waits for capacity.")


ApiRule = ThrottleRule | ErrorRule
TrainingRule = InternalErrorRule | AlgorithmErrorRule | SpotInterruptionRule
JobRule = PendingRule | CapacityRule | TrainingRule
Rule = Annotated[ApiRule | JobRule, Field(discriminator="fault")]


class FaultPlan(_Rule):
    """What is to go wrong. An empty plan injects nothing."""

    faults: tuple[Rule, ...] = ()

    @property
    def api_rules(self) -> Sequence[ApiRule]:
        return [rule for rule in self.faults if isinstance(rule, _ApiRule)]

    @property
    def job_rules(self) -> Sequence[JobRule]:
        return [rule for rule in self.faults if isinstance(rule, _JobRule)]


def read_fault_plan(path: Path) -> FaultPlan:
    """The plan in a YAML or JSON file, {"faults": [rule, …]}. Raises SettingsError naming every broken entry."""
    text = read_text(path)
    try:
        content: Any = parse_plain_yaml(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is neither YAML nor JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("faults"), list):
        raise SettingsError(f'{path}: expected {{"faults": [rule, …]}}')
    unknown = sorted(str(key) for key in content.keys() - {"faults"})
    if unknown:
        raise SettingsError(f"{path}: unknown key {', '.join(unknown)}; the only one is faults")
    return FaultPlan(faults=tuple(check_rules(content["faults"], f"{path}: faults")))


def check_rules(entries: Sequence[Any], where: str) -> list[ApiRule | JobRule]:
    """Rules made of what a file or a variable holds. Raises SettingsError naming every broken entry."""
    rules: list[ApiRule | JobRule] = []
    problems: list[str] = []
    for number, entry in enumerate(entries):
        try:
            rules.append(_RULE.validate_python(entry))
        except ValidationError as error:
            problems += [f"{where}[{number}]{_describe(item)}" for item in error.errors(include_url=False)]
    if problems:
        raise SettingsError("\n".join(problems))
    return rules


_RULE: TypeAdapter[ApiRule | JobRule] = TypeAdapter(Rule)
_KINDS = ("throttle", "error", "pending", "capacity_error", "internal_error", "algorithm_error", "spot_interruption")


def _describe(item: Any) -> str:
    """One error of pydantic's as ".member: message, got value"; the first part of its place is the kind of fault."""
    place = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in item["loc"][1:])
    message = item["msg"].removeprefix("Value error, ")
    if item["type"].startswith("union_tag"):
        return f".fault: must be one of {', '.join(_KINDS)}, got {item['input'].get('fault')!r}"
    if item["type"] == "extra_forbidden":
        return f"{place}: unknown key"
    if item["type"] in ("missing", "value_error"):
        return f"{place}: {message}"
    return f"{place}: {message}, got {item['input']!r}"
