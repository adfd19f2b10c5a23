"""JSON schema of a form's `settings`: a mapping from dotted names to values.

The Prefect server validates the settings when a run is created, before the run starts. The schema
checks each field separately. Conflicts between fields are found only by the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from nodesweep.configs.models import BenchmarkConfig

_WORDS = frozenset({"title", "description", "default", "examples", "discriminator"})
"""Schema keys that constrain nothing."""


@cache
def settings_schema() -> dict[str, Any]:
    """Return patterns of dotted names with the schemas of their values; reject other names."""
    model = BenchmarkConfig.model_json_schema()
    patterns: dict[str, list[Any]] = {}
    for name, schema in _below(_plain(model, model["$defs"]), ""):
        found = patterns.setdefault(f"^{name}$", [])
        if schema not in found:
            found.append(schema)
    # no `properties`: the UI would render them as a form of two hundred fields
    return {
        "type": "object",
        "patternProperties": {name: _or_null(_any_of(found)) for name, found in patterns.items()},
        "unevaluatedProperties": False,
    }


def _plain(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return the schema with its definitions inlined, and without keys that constrain nothing."""
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
    """Yield each dotted name below a section, as a regular expression, and its schema."""
    for name, schema in section.get("properties", {}).items():
        path = f"{prefix}{re.escape(name)}"
        yield path, schema
        for kind in schema.get("anyOf", schema.get("oneOf", [schema])):
            if "properties" in kind:
                yield from _below(kind, rf"{path}\.")
            elif kind.get("type") == "object":  # the user chooses the names
                yield rf"{path}\..+", {}


def _any_of(found: list[Any]) -> Mapping[str, Any]:
    """Combine the schemas of a name whose section has several kinds."""
    if len(found) == 1:
        return dict(found[0])
    if all("const" in each for each in found):
        return {"enum": [each["const"] for each in found]}
    return {"anyOf": found}


def _or_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Allow null, which keeps the preset's value."""
    if not schema or {"type": "null"} in schema.get("anyOf", ()):
        return schema
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if schema.keys() & {"oneOf", "enum", "const"} or "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}
