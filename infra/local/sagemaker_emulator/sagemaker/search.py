"""SageMaker's Search over training jobs: filters, nested filters and sub-expressions on properties.

A property is a path into the job as Search returns it ("TrainingJobStatus",
"ResourceConfig.InstanceType"), or the value of a tag ("Tags.team"), hyperparameter
("HyperParameters.epochs") or final metric ("Metrics.accuracy").
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.api.validation import service_model

Job = Mapping[str, Any]


def found_jobs(jobs: Sequence[Job], request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the jobs that a Search request finds, in its order (default: last modified first).

    Args:
        jobs: DescribeTrainingJob's responses with Tags.
        request: The Search request.

    Raises:
        ValidationException: If no job has a named property.
    """
    expression = request.get("SearchExpression", {})
    sort_by = request.get("SortBy", "LastModifiedTime")
    _check_property(sort_by)
    members = _members()
    found = [
        {name: job[name] for name in members if name in job}
        for job in jobs
        if _satisfies(job, expression)
    ]
    with_key = [
        (_sort_key(value), job) for job in found if (value := _value(job, sort_by)) is not None
    ]
    without_key = [job for job in found if _value(job, sort_by) is None]
    is_descending = request.get("SortOrder", "Descending") == "Descending"
    ordered = sorted(
        with_key, key=lambda pair: (pair[0], pair[1]["TrainingJobName"]), reverse=is_descending
    )
    return [job for _, job in ordered] + without_key


def _satisfies(job: Job, expression: Mapping[str, Any]) -> bool:
    """Return True if a job satisfies all conditions of an expression, or any if Operator is Or."""
    results = [_passes(job, one) for one in expression.get("Filters", [])]
    results += [_passes_nested(job, one) for one in expression.get("NestedFilters", [])]
    results += [_satisfies(job, one) for one in expression.get("SubExpressions", [])]
    return (any if expression.get("Operator") == "Or" and results else all)(results)


def _passes(job: Job, condition: Mapping[str, str]) -> bool:
    _check_property(condition["Name"])
    return _compares(_value(job, condition["Name"]), condition)


def _passes_nested(job: Job, nested: Mapping[str, Any]) -> bool:
    """Return True if one element of a list, such as a channel, passes all filters."""
    name = nested["NestedPropertyName"]
    _check_property(name)
    elements = _value(job, name)
    return any(
        all(
            _compares(_value(element, one["Name"].removeprefix(f"{name}.")), one)
            for one in nested["Filters"]
        )
        for element in (elements if isinstance(elements, list) else [])
    )


def _compares(value: Any, condition: Mapping[str, str]) -> bool:
    """Evaluate one condition on a property's value, which is None if the job lacks it."""
    operator, given = condition.get("Operator", "Equals"), condition.get("Value", "")
    if operator in ("Exists", "NotExists"):
        return (value is not None) == (operator == "Exists")
    if value is None:
        return operator == "NotEquals"
    if operator == "Contains":
        return given.lower() in _text(value).lower()
    if operator == "In":
        return _text(value) in [part.strip() for part in given.split(",")]
    left, right = _comparable(value, given)
    return _ORDERS[operator](left, right)


_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equals": lambda left, right: bool(left == right),
    "NotEquals": lambda left, right: bool(left != right),
    "GreaterThan": lambda left, right: bool(left > right),
    "GreaterThanOrEqualTo": lambda left, right: bool(left >= right),
    "LessThan": lambda left, right: bool(left < right),
    "LessThanOrEqualTo": lambda left, right: bool(left <= right),
}


def _comparable(value: Any, given: str) -> tuple[Any, Any]:
    """Return both as numbers (including timestamps like 2026-11-22T10:00:00Z) or as strings."""
    try:
        return float(value), _number(given)
    except (TypeError, ValueError):
        return _text(value), given


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _sort_key(value: Any) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, _text(value))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(job: Job, path: str) -> Any:
    """Return the value of a property, or None."""
    first, _, rest = path.partition(".")
    if first == "Tags" and rest:
        return next((tag["Value"] for tag in job.get("Tags", []) if tag["Key"] == rest), None)
    if first == "Metrics" and rest:
        metrics = job.get("FinalMetricDataList", [])
        return next((metric["Value"] for metric in metrics if metric["MetricName"] == rest), None)
    if path in job or not rest:
        return job.get(path)  # a hyperparameter's name may contain dots
    inner = job.get(first)
    return _value(inner, rest) if isinstance(inner, Mapping) else None


def _check_property(path: str) -> None:
    first = path.partition(".")[0]
    if first not in _members() and first != "Metrics":
        raise validation_error(f"Unknown property name: {path}")


@functools.cache
def _members() -> frozenset[str]:
    """Return the members of a training job in Search's response."""
    return frozenset(service_model("sagemaker").shape_for("TrainingJob").members)
