"""Facts about regions, expectations and instance types, read from installed packages' files.

Importing the packages would take seconds, and configs/ must not import botocore.
tests/configs/test_installed.py compares the results with the packages.
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nodesweep.configs.section import truncate

_HOUSEKEEPING = frozenset(
    {"id", "meta", "notes", "result_format", "description", "catch_exceptions", "rendered_content",
     "severity", "windows", "batch_id", "metadata"}
)  # fmt: skip
"""Arguments that every expectation accepts and that do not concern the data."""
_OURS = frozenset({"meta", "metadata", "severity"})
"""Housekeeping arguments that users cannot set. The config has its own field for severity."""


def region_problem(region: str) -> str | None:
    """Return a message if botocore's partitions.json has no such AWS region, otherwise None."""
    known = _regions()
    if region in known:
        return None
    return (
        f"no region {region!r}; nearest: {_nearest(region, known)}. For a newer one update boto3;"
        " with platform.endpoint_url any name is accepted"
    )


def expectation_problem(kind: str) -> str | None:
    """Return a message if Great Expectations has no such expectation, otherwise None."""
    known = _expectations()
    return (
        None
        if kind in known
        else f"no expectation {truncate(kind)!r}; nearest: {_nearest(kind, known)}"
    )


def arguments_problem(kind: str, arguments: Collection[str]) -> str | None:
    """Describe the missing and unknown arguments of an expectation, or return None.

    The result is None if there are none, or if Great Expectations ships no schema for it.
    """
    schema = _schema(kind)
    if schema is None:
        return None
    required, properties = schema
    problems = [f"{name} is missing" for name in sorted(required - set(arguments))]
    if unknown := sorted(str(name) for name in set(arguments) - (set(properties) - _OURS)):
        problems.append(f"unknown {truncate(', '.join(unknown))}")
    if problems:
        allowed = ", ".join(sorted(set(properties) - _HOUSEKEEPING))
        return "; ".join([*problems, f"allowed: {allowed}"])
    return None


def values_problem(kind: str, arguments: Mapping[str, Any], is_java: bool = False) -> str | None:
    """Describe the arguments whose values the expectation cannot use, or return None.

    Values are checked by argument name and against the expectation's schema.

    Args:
        kind: Type of the expectation.
        arguments: Its arguments.
        is_java: True if regular expressions are Java's, which only Spark can check.
    """
    required, properties = _schema(kind) or (frozenset(), {})
    problems = []
    for name, value in arguments.items():
        problem = _named_problem(name, value, is_java)
        if problem is None and name in properties and (value is not None or name in required):
            problem = _schema_problem(value, properties[name])
        if problem is not None:
            problems.append(f"{name}: {problem} (got {truncate(repr(value))})")
    if kind.endswith("_to_be_between") and (problem := _bounds_problem(arguments)):
        problems.append(problem)
    return "; ".join(problems) or None


_NOT_NULL = frozenset(
    {"json_schema", "like_pattern", "mostly", "regex", "strftime_format", "sum_total", "value"}
)  # fmt: skip
_TEXTS = frozenset(
    {"column_list", "column_set", "like_pattern_list", "regex_list", "type_list"}
)  # fmt: skip
_LISTS = _TEXTS | {"value_pairs_set", "value_set"}
_PATTERNS = frozenset({"regex", "regex_list"})


def _named_problem(name: str, value: Any, is_java: bool) -> str | None:
    """Check an argument by its name, since an expectation's schema may leave the type open.

    Great Expectations treats null for a set as no check at all.
    """
    if isinstance(value, Mapping) or name in _HOUSEKEEPING:
        return None
    if value is None and (name in _NOT_NULL or name in _LISTS):
        return "null checks nothing; give a value, or remove the expectation"
    if name in _LISTS and not isinstance(value, list | tuple | set | frozenset):
        return "expected a list"
    if name in _TEXTS and not all(isinstance(each, str) and each for each in value):
        return "expected a list of non-empty strings"
    if name in _PATTERNS and not is_java:
        return next(filter(None, map(_regex_problem, value if name in _LISTS else [value])), None)
    if name == "strftime_format":
        return _format_problem(value)
    return None


def _regex_problem(pattern: Any) -> str | None:
    if not isinstance(pattern, str):
        return "expected a regular expression"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"not a regular expression: {error}"
    return None


def _format_problem(text: Any) -> str | None:
    """Check, as Great Expectations does, that the format can parse a time that it formatted."""
    if not isinstance(text, str) or not text:
        return "expected a format such as %Y-%m-%d"
    moment = datetime(2000, 2, 3, 4, 5, 6, tzinfo=UTC)
    try:
        datetime.strptime(moment.strftime(text), text)
    except (ValueError, re.error) as error:
        return f"it cannot parse a time: {error}"
    return None


def _bounds_problem(arguments: Mapping[str, Any]) -> str | None:
    low, high = arguments.get("min_value"), arguments.get("max_value")
    if low is None and high is None:
        return "min_value, max_value: neither is given; give at least one"
    is_strict = arguments.get("strict_min") is True or arguments.get("strict_max") is True
    order = _order(low), _order(high)
    try:
        is_empty = None not in order and (
            order[0] >= order[1] if is_strict else order[0] > order[1]
        )
    except TypeError:  # e.g. a date and a number, which the schema does not distinguish
        return None
    if not is_empty:
        return None
    return (
        f"min_value is {truncate(repr(low))} and max_value is {truncate(repr(high))}: no value "
        f"lies between"
    )


def _order(value: Any) -> Any:
    """Return a bound as a comparable number or time, or None if it is neither."""
    if isinstance(value, bool | Mapping):
        return None
    if isinstance(value, int | float | Decimal | date):
        return value
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def _schema_problem(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return why an argument's value does not match its schema, or None if it does.

    Types, bounds and choices are checked. An object is accepted if the schema allows one.
    """
    alternatives = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "object"]
    wanted = [_wanted(one) for one in alternatives]
    if isinstance(value, Mapping) and len(alternatives) < len(schema.get("anyOf", ())):
        return None
    if None in wanted or any(_fits(value, one) for one in alternatives):
        return None
    return f"expected {' or '.join(dict.fromkeys(map(str, wanted)))}"


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str, date), "number": (int, float, Decimal), "integer": (int,), "boolean": (bool,),
    "array": (list, tuple, set),
}  # fmt: skip
"""Python types per JSON type. A date counts as a string, because YAML parses 2025-01-01 as one."""


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    is_of_type = isinstance(value, _TYPES[schema["type"]])
    if not is_of_type or (isinstance(value, bool) and schema["type"] != "boolean"):
        return False
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] in ("number", "integer"):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return schema["type"] != "string" or len(str(value)) >= schema.get("minLength", 0)


def _wanted(schema: Mapping[str, Any]) -> str | None:
    """Describe the values that fit; None if the schema uses a form that is not supported here."""
    kind = str(schema.get("type"))
    if kind not in _TYPES:
        return None
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if "maximum" in schema:
        return f"a number from {schema['minimum']:g} to {schema['maximum']:g}"
    if schema.get("minLength") == 1:
        return "a non-empty string"
    return {"string": ("a string"), "array": "a list", "boolean": "true or false"}.get(
        kind, "a number"
    )


def processing_type_problem(instance_type: str) -> str | None:
    """Return a message if botocore lists no such type for SageMaker Processing, otherwise None."""
    known = _processing_types()
    if instance_type in known:
        return None
    return (
        f"SageMaker Processing has no {instance_type!r}; nearest: {_nearest(instance_type, known)}."
        " For a newer one update boto3"
    )


@lru_cache(maxsize=1)
def _processing_types() -> frozenset[str]:
    [model] = (_folder("botocore") / "data" / "sagemaker").glob("*/service-2.json.gz")
    shapes = json.loads(gzip.decompress(model.read_bytes()))["shapes"]
    return frozenset(shapes["ProcessingInstanceType"]["enum"])


@lru_cache(maxsize=1)
def _regions() -> frozenset[str]:
    partitions = json.loads((_folder("botocore") / "data" / "partitions.json").read_bytes())[
        "partitions"
    ]
    return frozenset(
        name
        for partition in partitions
        for name in partition["regions"]
        if not name.endswith("-global")
    )


@lru_cache(maxsize=1)
def _expectations() -> frozenset[str]:
    text = (_core_expectations() / "__init__.py").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^from \.(\w+) import", text, re.MULTILINE))


@lru_cache(maxsize=64)
def _schema(kind: str) -> tuple[frozenset[str], Mapping[str, Any]] | None:
    """Return an expectation's required arguments and all schemas, or None if it has no schema."""
    name = kind.replace("_", "").lower() + ".json"
    for path in (_core_expectations() / "schemas").iterdir():
        if path.name.lower() == name:
            schema = json.loads(path.read_bytes())
            return frozenset(schema.get("required", ())), schema["properties"]
    return None


def _core_expectations() -> Path:
    return _folder("great_expectations") / "expectations" / "core"


def _folder(package: str) -> Path:
    found = find_spec(package)  # locates a package without importing it
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed", name=package)
    return Path(found.origin).parent


def _nearest(unknown: str, known: Collection[str]) -> str:
    return ", ".join(difflib.get_close_matches(unknown[:80], sorted(known), n=3, cutoff=0.0))
