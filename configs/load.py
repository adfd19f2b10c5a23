"""Reads a benchmark's YAML, applies --set overrides, and says in one message everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from configs.catalogue import UnknownInstanceType, load_catalogue
from configs.models import BenchmarkConfig


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
    try:
        config = BenchmarkConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{origin} is not a valid benchmark config:\n" + "\n".join(_explain(error))) from None
    try:
        load_catalogue().get(config.training.instance_type)
    except UnknownInstanceType as error:
        raise ConfigError(f"{origin}: training.instance_type: {error}") from None
    return config


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; the shipped ones are in configs/, e.g. configs/local.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        raw = yaml.safe_load(text)
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
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not valid YAML: {error}") from None
    node: Any = raw
    for depth, part in enumerate(parts[:-1], start=1):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {override!r}: {'.'.join(parts[:depth])} is a value, not a section")
    node[parts[-1]] = value


def _explain(error: ValidationError) -> list[str]:
    """One line per problem: field, what is wrong, what it got."""
    lines = []
    for problem in error.errors(include_url=False):
        field = ".".join(str(part) for part in problem["loc"]) or "(whole config)"
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = f"unknown key; allowed here: {', '.join(_siblings(problem['loc']))}"
        got = "" if problem["type"] in ("missing", "extra_forbidden") else f" (got {_short(problem['input'])})"
        lines.append(f"  {field}: {message}{got}")
    return lines


def _siblings(loc: tuple[int | str, ...]) -> list[str]:
    """The field names allowed where the unknown key stands."""
    model: Any = BenchmarkConfig
    for part in loc[:-1]:
        field = model.model_fields.get(part) if isinstance(part, str) and hasattr(model, "model_fields") else None
        if field is not None:
            model = field.annotation
            args = getattr(model, "__args__", ())
            model = next((arg for arg in args if hasattr(arg, "model_fields")), model)
    return list(getattr(model, "model_fields", {})) or ["(see nodesweep config schema)"]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
