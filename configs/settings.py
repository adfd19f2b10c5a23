"""JSON schema of a mapping from dotted names to values, the `settings` of a form: what the Prefect
server refuses when a run is made, and not only when its turn has come.

A schema sees each field by itself. Two fields that do not go together are found by the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from nodesweep.configs.models import BenchmarkConfig

_WORDS = frozenset({"title", "description", "default", "examples", "discriminator"})
"""Keys of a schema that restrict nothing."""


@cache
def settings_schema() -> dict[str, Any]:
    """Patterns of dotted names with the schemas of their values; any other name is refused."""
    model = BenchmarkConfig.model_json_schema()
    patterns: dict[str, list[Any]] = {}
    for name, schema in _below(_plain(model, model["$defs"]), ""):
        found = patterns.setdefault(f"^{name}$", [])
        if schema not in found:
            found.append(schema)
    # no `properties`: the UI would make a form of two hundred fields of them
    return {
        "type": "object",
        "patternProperties": {name: _or_null(_any_of(found)) for name, found in patterns.items()},
        "unevaluatedProperties": False,
    }


def _plain(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema with its definitions in place, and without what restricts nothing."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {
        key: {name: _plain(each, definitions) for name, each in value.items()}
        if key in ("properties", "patternProperties")
        else _plain(value, definitions)
        for key, value in schema.items()
        if key not in _WORDS and key != "$defs"
    }


def _below(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Each dotted name below a section, as a regular expression, with its schema."""
    for name, schema in section.get("properties", {}).items():
        path = f"{prefix}{re.escape(name)}"
        yield path, schema
        for kind in schema.get("anyOf", schema.get("oneOf", [schema])):
            if "properties" in kind:
                yield from _below(kind, rf"{path}\.")
            elif kind.get("type") == "object":  # names are the user's own
                yield rf"{path}\..+", {}


def _any_of(found: list[Any]) -> Mapping[str, Any]:
    """Where one name has several schemas, by the kind of its section."""
    if len(found) == 1:
        return dict(found[0])
    if all("const" in each for each in found):
        return {"enum": [each["const"] for each in found]}
    return {"anyOf": found}


def _or_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field of null is as in the preset."""
    if not schema or {"type": "null"} in schema.get("anyOf", ()):
        return schema
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if schema.keys() & {"oneOf", "enum", "const"} or "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}
