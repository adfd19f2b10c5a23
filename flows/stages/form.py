"""Define the flows' parameters: the form of a deployment, or the config of a command.

Each flow has one parameter for both, `preset`. In the form, it is the name of a shipped config, and
further parameters are the few fields that change between runs. From the command line, it is a whole
config, of which Prefect does not store values that may be secret.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    MISSING,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

from nodesweep.configs.allowed import LOCAL_PLATFORM, check_allowlists
from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.distribution import DistributionConfig
from nodesweep.configs.load import ConfigError
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.presets import (
    config_from_preset,
    config_from_value,
    preset_names,
    presets_as_written,
)
from nodesweep.configs.section import MAY_BE_SECRET, marked_fields
from nodesweep.configs.settings import settings_schema
from nodesweep.configs.sweep import DEFAULT_REPEATS
from nodesweep.launch.registry import Backend, backend_of
from nodesweep.tasks.cancelling import has_deployment

_Function = TypeVar("_Function", bound=Callable[..., Any])
_KINDS = [
    get_args(kind.model_fields["kind"].annotation)[0]
    for kind in get_args(get_args(DistributionConfig)[0])
]
_INSTANCE_TYPES = sorted(load_catalogue().names())

# Annotated, because Prefect takes no bounds from a parameter's default; enumerations become
# choices in the form.
Preset = Annotated[
    BenchmarkConfig | str, WithJsonSchema({"type": "string", "enum": preset_names()})
]
SweepId = Annotated[  # also the name of a folder
    str, Field(min_length=10, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$")
]
InstanceType = Annotated[str, Field(json_schema_extra={"enum": _INSTANCE_TYPES})]
NodeCounts = Annotated[list[Annotated[int, Field(ge=1, le=512)]], Field(min_length=1)]
Repeats = Annotated[int, Field(ge=1, le=50)]
DistributionKind = Annotated[str, Field(json_schema_extra={"enum": _KINDS})]
Usd = Annotated[float, Field(gt=0)]
Hours = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]


EMPTY: Any = MISSING
"""Default of fields that the form leaves blank and does not send.

With a default of None the form would send null, and then reject it.
"""


@dataclass(frozen=True)
class MayBeEmpty:
    """Annotation of an optional field that the form shows as `kind`, without a choice of None.

    The flow receives None if it is left blank.
    """

    kind: Any

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def none_where_empty(value: Any) -> Any:
            return None if value is MISSING else value

        return no_info_before_validator_function(none_where_empty, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return TypeAdapter(self.kind).json_schema()


_Variable = Annotated[str, Field(min_length=1, max_length=255)]
ConfigVariable = Annotated[_Variable | None, MayBeEmpty(_Variable)]
_REFERENCE = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$"}


def _no_secrets() -> dict[str, Any]:
    """Return schema patterns that reject values which may be secret.

    Prefect stores a run's parameters, so its server must reject such values first: environments
    accept only references, and build arguments accept no values.
    """
    patterns: dict[str, Any] = {}
    for name in marked_fields(BenchmarkConfig, MAY_BE_SECRET):
        value = _REFERENCE if name == "training.environment" else {"type": "null"}
        schema = {"type": ["object", "null"], "additionalProperties": value}
        patterns[rf"^{re.escape(name)}\."] = value
        parts = name.split(".")
        for depth in range(len(parts), 0, -1):
            path = re.escape(".".join(parts[:depth]))
            patterns.setdefault(f"^({path})$", {"allOf": []})["allOf"].append(schema)
            schema = {"properties": {parts[depth - 1]: schema}}
    return patterns


def _schema_of_settings() -> dict[str, Any]:
    schema = settings_schema()
    return schema | {"patternProperties": schema["patternProperties"] | _no_secrets()}


_Settings = Annotated[dict[str, Any], WithJsonSchema(_schema_of_settings())]
Settings = Annotated[_Settings | None, MayBeEmpty(_Settings)]


def preset_values() -> dict[str, dict[str, str]]:
    """Return each preset's value by form field and preset; `none` if the preset has no value."""
    found: dict[str, dict[str, str]] = {field: {} for field in _KEYS}
    for preset, raw in presets_as_written().items():
        for field, keys in _KEYS.items():
            values = (_nested_value(raw, key.split(".")) for key in keys)
            default = DEFAULT_REPEATS if field == "repeats" else "none"
            value = next((value for value in values if value is not None), default)
            if field == "instance_type" and isinstance(value, list):
                value = ", ".join(map(str, value))
            found[field][preset] = str(value)
    return found


_KEYS = {
    "instance_type": ("sweep.instance_types", "training.instance_type"),
    "node_counts": ("sweep.node_counts",),
    "repeats": ("sweep.repeats",),
    "distribution": ("training.distribution.kind",),
    "dataset": ("dataset.source",),
    "budget_usd": ("sweep.budget_usd",),
}
"""Config fields of each form field; the first one present holds its value."""


def _nested_value(raw: Any, names: list[str]) -> Any:
    for name in names:
        raw = raw.get(name) if isinstance(raw, Mapping) else None
    return raw


def document_presets(function: _Function) -> _Function:
    """Replace `{presets:FIELD}` in the docstring with the values that a blank field stands for.

    Prefect shows the docstring as the form's help. Values look like this: `3` (local), else `1`.
    """
    for field, values in preset_values().items():
        words = _by_value(values)
        function.__doc__ = (function.__doc__ or "").replace(f"{{presets:{field}}}", words)
    return function


def _by_value(values: Mapping[str, str]) -> str:
    """Return each value with its presets; the most common value comes last, without presets."""
    *others, (commonest, _) = reversed(Counter(values.values()).most_common())
    shown = [
        f"`{other}` ({', '.join(_short(name) for name, value in values.items() if value == other)})"
        for other, _ in others
    ]
    return ", ".join([*shown, f"{'else ' if shown else ''}`{commonest}`"])


def _short(preset: str) -> str:
    return preset.removeprefix("examples/")


def config_from_parameters(parameters: Mapping[str, Any]) -> BenchmarkConfig:
    """Return the config for a run's parameters; `config_variable` takes precedence over the preset.

    Raises:
        ConfigError: The config is invalid, or names something that the worker does not allow.
    """
    preset = parameters.get("preset", "local")
    if isinstance(preset, str):
        config = _config_from_form(preset, parameters)
    else:  # a command's config, or Prefect's stored copy of one
        config = BenchmarkConfig.model_validate(preset)
    if (
        isinstance(preset, str) or has_deployment()
    ):  # an API caller can bypass the form's validation
        check_allowlists(config, os.environ)
    return config


def backend_from_parameters(parameters: Mapping[str, Any]) -> Backend:
    """Return the backend of the config for a run's parameters."""
    return backend_of(config_from_parameters(parameters).platform)


def _config_from_form(preset: str, parameters: Mapping[str, Any]) -> BenchmarkConfig:
    kind = parameters.get("distribution")
    fields = {
        "training.instance_type": parameters.get("instance_type"),
        "sweep.node_counts": parameters.get("node_counts"),
        "sweep.repeats": parameters.get("repeats"),
        "training.distribution": None if kind is None else {"kind": kind},
        "dataset.source": parameters.get("dataset"),
        "sweep.budget_usd": parameters.get("budget_usd"),
    }
    settings = parameters.get("settings") or {}
    with_changes = _changed_by(preset, parameters.get("config_variable"))
    return with_changes(fields | _platform_of_this_machine(with_changes) | settings)


_Changed = Callable[[Mapping[str, Any]], BenchmarkConfig]


def _changed_by(preset: str, variable: str | None) -> _Changed:
    """Return a function that applies changes to the Prefect variable's config, or to the preset."""
    if not variable:
        return partial(config_from_preset, preset)
    return partial(config_from_value, _read_variable(variable), f"the Prefect variable {variable}")


def _read_variable(name: str) -> Any:
    """Return the value of a Prefect variable.

    Raises:
        ConfigError: Prefect has no such variable.
    """
    from prefect.variables import Variable

    value: Any = Variable.get(name)
    if value is None:
        raise ConfigError(
            f"config_variable: Prefect has no variable {name!r}; create it in the UI under"
            " Variables, with a whole config as JSON or YAML as its value, or leave the field empty"
        )
    return value


def _platform_of_this_machine(with_changes: _Changed) -> dict[str, str]:
    """Return the location of the worker's local platform, for configs that use one.

    The result is empty if the worker's environment does not set it.
    """
    found = {name: os.environ.get(variable) for name, variable in LOCAL_PLATFORM.items()}
    if not any(found.values()) or with_changes({}).platform.credentials != "platform":
        return {}
    return {name: value for name, value in found.items() if value}


def log_to_run() -> None:
    """Set the level of the loggers that PREFECT_LOGGING_EXTRA_LOGGERS forwards to the run."""
    logging.getLogger("nodesweep").setLevel(logging.INFO)
