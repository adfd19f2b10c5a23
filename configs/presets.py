"""The shipped configs by name, and what a form may change in one: what a deployment has in place
of a file, and what a command takes where no such file is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nodesweep.configs.load import ConfigError, config_of_text, load_config
from nodesweep.configs.models import BenchmarkConfig

PRESETS_DIRECTORY = Path(__file__).resolve().parent
_NO_BENCHMARKS = frozenset({"instances"})


def preset_names() -> list[str]:
    """Every benchmark under configs/ by its path without `.yaml`, e.g.
    `local`, `examples/mpi_g5`; sorted.
    """
    files = (path for path in PRESETS_DIRECTORY.rglob("*.yaml") if "data" not in path.parts)
    found = (path.relative_to(PRESETS_DIRECTORY).with_suffix("").as_posix() for path in files)
    return sorted(name for name in found if name not in _NO_BENCHMARKS)


def presets_as_written() -> dict[str, Mapping[str, Any]]:
    """Every preset by its name, as its file has it: without defaults, unchecked, empty where it is
    no YAML. In a hundredth of the time that the configs themselves take, since whoever imports a
    flow waits for it.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = {}
    for name in preset_names():
        try:
            raw = yaml.load((PRESETS_DIRECTORY / f"{name}.yaml").read_bytes(), Loader=loader)
        except (OSError, ValueError, yaml.YAMLError):
            raw = None  # `nodesweep plan` says what is wrong with it
        found[name] = raw if isinstance(raw, Mapping) else {}
    return found


def config_file(given: Path) -> Path:
    """The file that a command's CONFIG names: itself, or the preset of that name where there is no
    such file.
    """
    if given.as_posix() in preset_names() and not given.is_file():
        return PRESETS_DIRECTORY / f"{given.as_posix()}.yaml"
    return given


def config_of_preset(preset: str, changes: Mapping[str, Any]) -> BenchmarkConfig:
    """The preset with `changes` (dotted name to value; None: as in the preset). Raises ConfigError.

    A change is what `nodesweep run --set` takes; later ones win.
    """
    if preset not in preset_names():
        raise ConfigError(f"preset: got {preset!r}; expected one of {', '.join(preset_names())}")
    return load_config(PRESETS_DIRECTORY / f"{preset}.yaml", _overrides(changes))


def config_of_value(value: Any, origin: str, changes: Mapping[str, Any]) -> BenchmarkConfig:
    """The same over a whole config that is no file: its YAML or JSON, or what that stands for.
    Relative paths begin where a preset's do. Raises ConfigError naming `origin`.
    """
    text = value if isinstance(value, str) else json.dumps(value)
    return config_of_text(text, origin, PRESETS_DIRECTORY, _overrides(changes))


def _overrides(changes: Mapping[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value)}" for name, value in changes.items() if value is not None]
