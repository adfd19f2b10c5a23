"""A fault plan, which is a list of rules that is read from YAML or JSON and validated.

Job rules apply to jobs by name pattern, and API rules to calls of an operation by call number.
Nothing is random: the same plan, jobs and calls result in the same faults.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter, ValidationError

from sagemaker_emulator.faults.rules import (
    AlgorithmErrorRule,
    ApiRule,
    CapacityRule,
    ErrorRule,
    InternalErrorRule,
    JobRule,
    PendingRule,
    Rule,
    SpotInterruptionRule,
    ThrottleRule,
)
from sagemaker_emulator.plain_yaml import read_yaml
from sagemaker_emulator.settings import SettingsError

RULES: tuple[type[Rule], ...] = (
    ThrottleRule,
    ErrorRule,
    PendingRule,
    CapacityRule,
    InternalErrorRule,
    AlgorithmErrorRule,
    SpotInterruptionRule,
)
"""All kinds of faults. To add a kind, add a class to faults/rules.py and list it here."""


@dataclass(frozen=True)
class FaultPlan:
    """The rules for all faults to inject."""

    faults: tuple[Rule, ...] = ()

    @property
    def api_rules(self) -> Sequence[ApiRule]:
        return [rule for rule in self.faults if isinstance(rule, ApiRule)]

    @property
    def job_rules(self) -> Sequence[JobRule]:
        return [rule for rule in self.faults if isinstance(rule, JobRule)]


def read_fault_plan(path: Path) -> FaultPlan:
    """Read a plan from a YAML or JSON file, {"faults": [rule, …]}.

    Raises:
        SettingsError: If the plan is invalid. The message names all invalid entries.
    """
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("faults"), list):
        raise SettingsError(f'{path}: expected {{"faults": [rule, …]}}')
    unknown = sorted(str(key) for key in content.keys() - {"faults"})
    if unknown:
        raise SettingsError(f"{path}: unknown key {', '.join(unknown)}; the only key is faults")
    return FaultPlan(faults=tuple(check_rules(content["faults"], f"{path}: faults")))


def check_rules(entries: Sequence[Any], where: str) -> list[Rule]:
    """Parse rules from a file or a variable.

    Raises:
        SettingsError: If any rules are invalid. The message names all of them.
    """
    rules: list[Rule] = []
    any_rule = _any_of(RULES)
    problems: list[str] = []
    for number, entry in enumerate(entries):
        try:
            rules.append(any_rule.validate_python(entry))
        except ValidationError as error:
            problems += [
                f"{where}[{number}]{_describe(item)}" for item in error.errors(include_url=False)
            ]
    if problems:
        raise SettingsError("\n".join(problems))
    return rules


@functools.cache
def _any_of(rules: tuple[type[Rule], ...]) -> TypeAdapter[Rule]:
    union: Any = Annotated[functools.reduce(operator.or_, rules), Field(discriminator="fault")]
    return TypeAdapter(union)


def kinds() -> list[str]:
    """Return the possible values of `fault` in a rule."""
    return [get_args(rule.model_fields["fault"].annotation)[0] for rule in RULES]


def _describe(item: Any) -> str:
    """Format a pydantic error as ".member: message, got value".

    The kind of fault, which is the first part of its location, is omitted.
    """
    member = "".join(
        f".{part}" if isinstance(part, str) else f"[{part}]" for part in item["loc"][1:]
    )
    message = item["msg"].removeprefix("Value error, ")
    if item["type"].startswith("union_tag"):
        return f".fault: must be one of {', '.join(kinds())}, got {item['input'].get('fault')!r}"
    if item["type"] == "extra_forbidden":
        return f"{member}: unknown key"
    if item["type"] in ("missing", "value_error"):
        return f"{member}: {message}"
    return f"{member}: {message}, got {item['input']!r}"
