"""Reads a benchmark's YAML, applies --set overrides, and says in one message everything wrong that it finds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import ValidationError

from configs.catalogue import UnknownInstanceType, load_catalogue
from configs.models import BenchmarkConfig
from configs.strict_yaml import parse_yaml

_USER_INFO = re.compile(r"(?<=://)(?:[^\s/]*|[^\s/@:]*:(?!\d+(?:[/?#\s]|$))\S*)@")


_HIDDEN_FIELDS = frozenset({("training", "environment"), ("image", "build_args")})
"""Whose values may be secrets: a message names them without."""


class ConfigError(ValueError):
    """The config can't be used; the message names every field that is wrong. Exit code 2."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> BenchmarkConfig:
    """Read `path`, apply `a.b.c=value` overrides, validate; local paths become absolute. Raises ConfigError."""
    raw = _read_yaml(path)
    for override in overrides:
        _apply_override(raw, override)
    return parse_config(raw, origin=str(path)).with_absolute_paths(path.resolve().parent)


def parse_config(raw: Mapping[str, Any], origin: str) -> BenchmarkConfig:
    """Validate a plain mapping, its instance type against the catalogue too. Raises ConfigError naming `origin`."""
    problems = []
    try:
        config = BenchmarkConfig.model_validate(raw)
    except ValidationError as error:
        problems += _explain(error)
    problems += _instance_problems(raw)
    if problems:
        raise ConfigError(f"{origin} is not a valid benchmark config:\n" + "\n".join(problems))
    return config


def _instance_problems(raw: Mapping[str, Any]) -> list[str]:
    """Whether the catalogue knows the instance type, asked of the raw mapping: other mistakes must not hide it."""
    training = raw.get("training") if isinstance(raw, Mapping) else None
    instance_type = training.get("instance_type") if isinstance(training, Mapping) else None
    if not isinstance(instance_type, str):
        return []
    try:
        load_catalogue().get(instance_type)
    except UnknownInstanceType as error:
        return [f"  training.instance_type: {error}"]
    return []


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; the shipped ones are in configs/, e.g. configs/local.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        raw = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a mapping with the sections of a benchmark, got {type(raw).__name__}")
    return raw


def _apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one dotted key in place; the value is read as YAML, so 3, true, [1, 2] and null mean what they say."""
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {override!r}: expected a.b.c=value, e.g. --set sweep.node_counts=[1,2]")
    try:
        value = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {key}=…: the value is not valid YAML: {error}") from None
    node: Any = raw
    for depth, part in enumerate(parts[:-1], start=1):
        if node.get(part) is None:  # an empty section is null in YAML
            node[part] = {}
        node = node[part]
        if not isinstance(node, dict):
            raise ConfigError(f"--set {key}=…: {'.'.join(parts[:depth])} is a value, not a section")
    node[parts[-1]] = value


def _explain(error: ValidationError) -> list[str]:
    """One line per problem: field, what is wrong, what it got."""
    lines = []
    for problem in error.errors(include_url=False):
        path, section, kinds = _place(problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = f"unknown key; allowed here: {', '.join(section) or '(see nodesweep config schema)'}"
        elif problem["type"].startswith("union_tag_"):
            tag = problem["ctx"]["discriminator"].strip("'")
            message = f"{tag} is missing or unknown; one of {', '.join(kinds)}"
        is_shown = problem["type"] not in ("missing", "extra_forbidden") and tuple(path[:2]) not in _HIDDEN_FIELDS
        got = f" (got {_short(problem['input'])})" if is_shown else ""
        lines.append(f"  {'.'.join(path) or '(whole config)'}: {message}{got}")
    return lines


def _place(loc: tuple[int | str, ...]) -> tuple[list[str], list[str], list[str]]:
    """(names down to a problem as they stand in the YAML, the field names allowed beside the last, its possible kinds).

    pydantic puts the kind of a choice into the path, where the YAML has none.
    """
    path: list[str] = []
    section: Any = BenchmarkConfig
    models: dict[str, Any] = {"": BenchmarkConfig}
    entry: Any = None  # what a mapping holds, where the next part is one of its keys
    for part in loc:
        if part in models:
            models = {"": models[str(part)]}
            continue
        path.append(str(part))
        if entry is not None:
            models, entry = _models(entry), None
            continue
        section = next(iter(models.values()), None)
        field = getattr(section, "model_fields", {}).get(part)
        annotation = None if field is None else field.annotation
        entry = get_args(annotation)[1] if get_origin(annotation) is dict else None
        models = _models(annotation)
    return path, list(getattr(section, "model_fields", {})), [kind for kind in models if kind]


def _models(annotation: Any) -> dict[str, Any]:
    """The sections a field may hold, by the value that chooses among them; "" where there is no choice."""
    if get_origin(annotation) is Annotated:
        return _models(get_args(annotation)[0])
    found = [model for model in (annotation, *get_args(annotation)) if hasattr(model, "model_fields")]
    if len(found) < 2:
        return {"": found[0]} if found else {}
    tag = "kind" if "kind" in found[0].model_fields else "type"
    return {value: model for model in found for value in get_args(model.model_fields[tag].annotation)}


def _short(value: object) -> str:
    """The value as it was given, cut to a line; what stands before the @ of a URL may be a password."""
    text = _USER_INFO.sub("…@", repr(value))
    return text if len(text) <= 80 else text[:77] + "…"
