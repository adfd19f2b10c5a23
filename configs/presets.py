"""The shipped configs (presets) by name, and the changes that a form can make to one.

A deployment runs a preset instead of a config file. A command uses a preset if no file has that
name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nodesweep.configs.load import ConfigError, config_from_text, load_config
from nodesweep.configs.models import BenchmarkConfig

PRESETS_DIRECTORY = Path(__file__).resolve().parent
_NO_BENCHMARKS = frozenset({"instances"})


def preset_names() -> list[str]:
    """Return the sorted names of all shipped benchmarks: their path under configs/ without `.yaml`.

    For example `local` or `examples/mpi_g5`.
    """
    files = (path for path in PRESETS_DIRECTORY.rglob("*.yaml") if "data" not in path.parts)
    found = (path.relative_to(PRESETS_DIRECTORY).with_suffix("").as_posix() for path in files)
    return sorted(name for name in found if name not in _NO_BENCHMARKS)


def presets_as_written() -> dict[str, Mapping[str, Any]]:
    """Return every preset by name as written in its file, unvalidated and without defaults.

    A file that is not valid YAML becomes an empty mapping. This is a hundred times as fast as
    loading the configs, which matters because it runs whenever a flow is imported.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = {}
    for name in preset_names():
        try:
            raw = yaml.load((PRESETS_DIRECTORY / f"{name}.yaml").read_bytes(), Loader=loader)
        except (OSError, ValueError, yaml.YAMLError):
            raw = None  # `nodesweep plan` reports the error
        found[name] = raw if isinstance(raw, Mapping) else {}
    return found


def config_file(argument: Path) -> Path:
    """Return the file that a CONFIG argument names; a file has precedence over a preset."""
    if argument.as_posix() in preset_names() and not argument.is_file():
        return PRESETS_DIRECTORY / f"{argument.as_posix()}.yaml"
    return argument


def config_from_preset(preset: str, changes: Mapping[str, Any]) -> BenchmarkConfig:
    """Return the preset's config with `changes` applied.

    Args:
        preset: Name of a shipped config.
        changes: Dotted names and values, as in `nodesweep run --set`. None keeps the preset's
            value, and a later name overrides an earlier one.

    Raises:
        ConfigError: The preset is unknown, or the result is invalid.
    """
    if preset not in preset_names():
        raise ConfigError(f"preset: got {preset!r}; expected one of {', '.join(preset_names())}")
    return load_config(PRESETS_DIRECTORY / f"{preset}.yaml", _overrides(changes))


def config_from_value(value: Any, origin: str, changes: Mapping[str, Any]) -> BenchmarkConfig:
    """Return a config that is not in a file, with `changes` applied.

    Relative paths are resolved against the presets' folder.

    Args:
        value: YAML or JSON text, or the mapping itself.
        origin: Name of the config in error messages.
        changes: As in config_from_preset().

    Raises:
        ConfigError: The config is invalid.
    """
    text = value if isinstance(value, str) else _yaml(value)
    return config_from_text(text, origin, PRESETS_DIRECTORY, _overrides(changes))


def _overrides(changes: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_yaml(value)}" for name, value in changes.items() if value is not None]


def _yaml(value: Any) -> str:
    """Return a value as YAML 1.1, in which JSON's 1e-05 would be a string."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("\n...\n")
