"""Validates requests against botocore's model of a service, and words errors as AWS does.

botocore's clients only check types and minimums. AWS also checks lengths, patterns, enums and
ranges.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import botocore.session
from botocore.model import ListShape, MapShape, ServiceModel, Shape, StructureShape

from sagemaker_emulator.api.protocol import ApiError, validation_error

_JSON_NAMES = {bool: "TRUE_VALUE", str: "STRING_VALUE", int: "NUMBER_VALUE", float: "NUMBER_VALUE"}
_EXPECTED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "String"),
    "integer": ((int,), "Integer"),
    "long": ((int,), "Long"),
    "float": ((int, float), "Float"),
    "double": ((int, float), "Double"),
    "boolean": ((bool,), "Boolean"),
    "timestamp": ((int, float), "Timestamp"),
    "list": ((list,), "List"),
    "map": ((dict,), "Map"),
    "structure": ((dict,), "Structure"),
    "blob": ((str,), "Blob"),
}

_PROPERTY_CLASSES = {r"\p{L}": r"\w", r"\p{N}": r"\d", r"\p{Z}": r"\s", r"\p{Alnum}": "a-zA-Z0-9"}
"""Python equivalents of Java property classes inside a character class, as used in models."""


@functools.cache
def service_model(service_name: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(service_name)


@functools.cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a Java pattern from a model, replacing property classes that `re` lacks."""
    for java, python in _PROPERTY_CLASSES.items():
        pattern = pattern.replace(java, python)
    return re.compile(pattern)


class RequestValidator:
    """Validates requests to a service. `extra_enum_values` adds values to enum shapes by name."""

    def __init__(
        self, service_name: str, extra_enum_values: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.model = service_model(service_name)
        self._extra = dict(extra_enum_values or {})

    def check(self, operation: str, request: dict[str, Any]) -> None:
        """Validate a request.

        Raises:
            ValidationException: If constraints are violated. The message lists all of them.
            SerializationException: If a value has the wrong type.
        """
        shape = self.model.operation_model(operation).input_shape
        if shape is None:
            return
        raise_violations(self._structure(shape, request, ""))

    def _walk(self, shape: Shape, value: Any, path: str) -> Iterator[str]:
        _check_type(shape, value)
        if isinstance(shape, StructureShape):
            yield from self._structure(shape, value, path)
            return
        if isinstance(shape, ListShape):
            yield from _length(shape, value, path)
            for index, item in enumerate(value, start=1):
                yield from self._walk(shape.member, item, f"{path}.{index}.member")
        elif isinstance(shape, MapShape):
            yield from self._map(shape, value, path)
        else:
            yield from self._scalar(shape, value, path)

    def _structure(self, shape: StructureShape, value: dict[str, Any], path: str) -> Iterator[str]:
        for name in shape.required_members:
            if value.get(name) is None:
                yield null_violation(_join(path, name))
        for name, member in shape.members.items():
            if value.get(name) is not None:
                yield from self._walk(member, value[name], _join(path, name))

    def _map(self, shape: MapShape, value: dict[str, Any], path: str) -> Iterator[str]:
        yield from _length(shape, value, path)
        for key, item in value.items():
            _check_type(shape.value, item)
            for part, text, label in ((shape.key, key, "keys"), (shape.value, item, "value")):
                if any(True for _ in self._walk(part, text, path)):
                    rules = ", ".join(_constraints(part))
                    yield violation(value, path, f"Map {label} must satisfy constraint: [{rules}]")

    def _scalar(self, shape: Shape, value: Any, path: str) -> Iterator[str]:
        if shape.type_name == "string":
            yield from self._string(shape, value, path)
        elif shape.type_name in ("integer", "long", "float", "double"):
            if "min" in shape.metadata and value < shape.metadata["min"]:
                yield violation(value, path, _at_least("value", shape))
            if "max" in shape.metadata and value > shape.metadata["max"]:
                yield violation(value, path, _at_most("value", shape))

    def _string(self, shape: Shape, value: str, path: str) -> Iterator[str]:
        pattern = shape.metadata.get("pattern")
        if pattern and not compile_pattern(pattern).fullmatch(value):
            yield violation(value, path, _must_match(shape))
        allowed = [*shape.metadata.get("enum", []), *self._extra.get(shape.name, [])]
        if allowed and value not in allowed:
            yield violation(
                value, path, f"Member must satisfy enum value set: [{', '.join(allowed)}]"
            )
        yield from _length(shape, value, path)


def raise_violations(violations: Iterator[str] | Sequence[str]) -> None:
    """Raise a ValidationException that lists the violations if there are any, worded as on AWS."""
    found = list(violations)
    if found:
        count = f"{len(found)} validation error{'s' if len(found) > 1 else ''} detected"
        raise validation_error(f"{count}: {'; '.join(found)}")


def violation(value: Any, path: str, constraint: str) -> str:
    return f"Value '{_render(value)}' at '{path}' failed to satisfy constraint: {constraint}"


def null_violation(path: str) -> str:
    return f"Value null at '{path}' failed to satisfy constraint: Member must not be null"


def _length(shape: Shape, value: Any, path: str) -> Iterator[str]:
    if len(value) < shape.metadata.get("min", 0):
        yield violation(value, path, _at_least("length", shape))
    if "max" in shape.metadata and len(value) > shape.metadata["max"]:
        yield violation(value, path, _at_most("length", shape))


def _at_least(what: str, shape: Shape) -> str:
    return f"Member must have {what} greater than or equal to {shape.metadata['min']}"


def _at_most(what: str, shape: Shape) -> str:
    return f"Member must have {what} less than or equal to {shape.metadata['max']}"


def _must_match(shape: Shape) -> str:
    return f"Member must satisfy regular expression pattern: {shape.metadata['pattern']}"


def _constraints(shape: Shape) -> Iterator[str]:
    if "max" in shape.metadata:
        yield _at_most("length", shape)
    if "min" in shape.metadata:
        yield _at_least("length", shape)
    if "pattern" in shape.metadata:
        yield _must_match(shape)


def _check_type(shape: Shape, value: Any) -> None:
    kinds, name = _EXPECTED[shape.type_name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        got = _JSON_NAMES.get(
            type(value), "Start of list" if isinstance(value, list) else "Start of structure"
        )
        raise ApiError("SerializationException", f"{got} can not be converted to {_article(name)}")


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _join(path: str, name: str) -> str:
    lower_first = name[0].lower() + name[1:]
    return f"{path}.{lower_first}" if path else lower_first


def _render(value: Any) -> str:
    """Format a value as Java prints it: maps as {key=value}, lists as [a, b]."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_render(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_render(item) for item in value) + "]"
    return value if isinstance(value, str) else json.dumps(value)
