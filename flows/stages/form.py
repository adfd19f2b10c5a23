"""What a flow is given: the form of a deployment, over the configs of configs/,
or the config of a command.

Each flow has one parameter for both, `preset`: in the form the name of a config, with the few
fields that change from run to run beside it; from the command line a whole config, which Prefect
keeps without the values that may be secrets.
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

from nodesweep.configs.allowed import LOCAL_PLATFORM, refuse_what_is_not_allowed
from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.distribution import DistributionConfig
from nodesweep.configs.load import ConfigError
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.presets import (
    config_of_preset,
    config_of_value,
    preset_names,
    presets_as_written,
)
from nodesweep.configs.section import MAY_BE_SECRET, marked_fields
from nodesweep.configs.settings import settings_schema
from nodesweep.configs.sweep import DEFAULT_REPEATS
from nodesweep.tasks.cancelling import has_deployment

_Function = TypeVar("_Function", bound=Callable[..., Any])
_KINDS = [
    get_args(kind.model_fields["kind"].annotation)[0]
    for kind in get_args(get_args(DistributionConfig)[0])
]
_INSTANCE_TYPES = sorted(load_catalogue().names())

# Annotated, since Prefect takes no bounds from a parameter's default;
# enumerations are choices in the form.
Preset = Annotated[
    BenchmarkConfig | str, WithJsonSchema({"type": "string", "enum": preset_names()})
]
SweepId = Annotated[  # it names a folder
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
"""Default of a field that the form shows empty and does not send;
a default of None it would send, and refuse.
"""


@dataclass(frozen=True)
class MayBeEmpty:
    """The form shows a field of `kind`, not a choice between it and None;
    left empty, the flow gets None.
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
    """Prefect keeps a run's parameters, so its server refuses values that may be secrets before it
    writes them down: of environments it takes references, of build arguments nothing.
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


def values_of_presets() -> dict[str, dict[str, str]]:
    """Field of the form -> preset -> what the preset has for it, `none` where it has nothing."""
    found: dict[str, dict[str, str]] = {field: {} for field in _KEYS}
    for preset, raw in presets_as_written().items():
        for field, keys in _KEYS.items():
            values = (_at(raw, key.split(".")) for key in keys)
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
"""Field of the form -> where a config has it, the first that is there."""


def _at(raw: Any, names: list[str]) -> Any:
    for name in names:
        raw = raw.get(name) if isinstance(raw, Mapping) else None
    return raw


def shows_presets(function: _Function) -> _Function:
    """In the function's docstring, of which Prefect makes the form's help, `{presets:FIELD}`
    becomes what a field that is left blank stands for: `3` (local), else `1`.
    """
    for field, values in values_of_presets().items():
        words = _by_value(values)
        function.__doc__ = (function.__doc__ or "").replace(f"{{presets:{field}}}", words)
    return function


def _by_value(values: Mapping[str, str]) -> str:
    """Each value with its presets; the commonest comes last, without."""
    *others, (commonest, _) = reversed(Counter(values.values()).most_common())
    shown = [
        f"`{other}` ({', '.join(_short(name) for name, value in values.items() if value == other)})"
        for other, _ in others
    ]
    return ", ".join([*shown, f"{'else ' if shown else ''}`{commonest}`"])


def _short(preset: str) -> str:
    return preset.removeprefix("examples/")


def config_of_run(parameters: Mapping[str, Any]) -> BenchmarkConfig:
    """The config that a run's parameters stand for. Raises ConfigError, also for what the worker
    does not allow.

    A name in `config_variable` wins over the preset.
    """
    preset = parameters.get("preset", "local")
    if isinstance(preset, str):
        config = _config_of_form(preset, parameters)
    else:  # a command's config, or what Prefect has kept of one
        config = BenchmarkConfig.model_validate(preset)
    if isinstance(preset, str) or has_deployment():  # its caller may have the form unchecked
        refuse_what_is_not_allowed(config, os.environ)
    return config


def _config_of_form(preset: str, parameters: Mapping[str, Any]) -> BenchmarkConfig:
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
    """What makes changes to the config of that Prefect variable, or else to the preset."""
    if not variable:
        return partial(config_of_preset, preset)
    return partial(
        config_of_value, _value_of_variable(variable), f"the Prefect variable {variable}"
    )


def _value_of_variable(name: str) -> Any:
    """Raises ConfigError where Prefect has no such variable."""
    from prefect.variables import Variable

    value: Any = Variable.get(name)
    if value is None:
        raise ConfigError(
            f"config_variable: Prefect has no variable {name!r}; make it in the UI under Variables,"
            " its value a whole config as JSON or YAML, or leave the field empty"
        )
    return value


def _platform_of_this_machine(with_changes: _Changed) -> dict[str, str]:
    """Where the worker's own local platform is, for a config that runs on one; nothing where the
    worker's environment does not say it.
    """
    found = {name: os.environ.get(variable) for name, variable in LOCAL_PLATFORM.items()}
    if not any(found.values()) or with_changes({}).platform.credentials != "platform":
        return {}
    return {name: value for name, value in found.items() if value}


def log_to_run() -> None:
    """Prefect hands the run what PREFECT_LOGGING_EXTRA_LOGGERS names, at the level set here."""
    logging.getLogger("nodesweep").setLevel(logging.INFO)
