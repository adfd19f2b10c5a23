"""Parses CodeBuild buildspecs (version 0.2): the commands and failure behavior of phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sagemaker_emulator.plain_yaml import parse_plain_yaml

PHASES = ("install", "pre_build", "build", "post_build")
_PHASE_KEYS = frozenset({"commands", "on-failure", "run-as", "runtime-versions", "finally"})
_TOP_KEYS = frozenset({"version", "env", "phases"})
_IGNORED_KEYS = frozenset({"artifacts", "cache", "reports", "proxy", "batch", "run-as"})


class BuildspecError(Exception):
    """A buildspec cannot be executed. The message names the entry."""


@dataclass(frozen=True)
class Phase:
    """The commands of a phase.

    If `aborts` is True, a failure of the phase ends the build immediately, without post_build.
    """

    commands: tuple[str, ...] = ()
    final_commands: tuple[str, ...] = ()
    aborts: bool = False


@dataclass(frozen=True)
class Buildspec:
    """A buildspec with all phases by name, including omitted ones, and env.variables."""

    phases: Mapping[str, Phase]
    variables: Mapping[str, str] = field(default_factory=dict)


def parse_buildspec(text: str) -> Buildspec:
    """Parse the YAML of a buildspec.

    Raises:
        BuildspecError: If the buildspec is invalid or uses unsupported features.
    """
    try:
        document = parse_plain_yaml(text)
    except yaml.YAMLError as error:
        raise BuildspecError(f"YAML_FILE_ERROR: {error}") from error
    top = _mapping(document, "buildspec")
    if str(top.get("version")) != "0.2":
        raise BuildspecError(
            f"YAML_FILE_ERROR: version is {top.get('version')!r}; only 0.2 is supported here"
        )
    if unknown := sorted(set(top) - _TOP_KEYS - _IGNORED_KEYS):
        raise BuildspecError(f"YAML_FILE_ERROR: unknown key {unknown[0]!r}")
    env = _mapping(top.get("env"), "env")
    if unknown := sorted(set(env) - {"variables", "shell"}):
        raise BuildspecError(
            f"env.{unknown[0]}: the local platform only supports variables and shell"
        )
    if (shell := env.get("shell", "/bin/sh")) != "/bin/sh":
        raise BuildspecError(
            f"env.shell: is {shell!r}; the local platform runs commands only in /bin/sh"
        )
    phases = _mapping(top.get("phases"), "phases")
    if unknown := sorted(set(phases) - set(PHASES)):
        raise BuildspecError(
            f"YAML_FILE_ERROR: unknown phase {unknown[0]!r}; phases are {', '.join(PHASES)}"
        )
    variables = {
        str(name): str(value)
        for name, value in _mapping(env.get("variables"), "env.variables").items()
    }
    return Buildspec({name: _phase(name, phases.get(name)) for name in PHASES}, variables)


def _phase(name: str, value: Any) -> Phase:
    entry = _mapping(value, f"phases.{name}")
    if unknown := sorted(set(entry) - _PHASE_KEYS):
        raise BuildspecError(f"YAML_FILE_ERROR: unknown key phases.{name}.{unknown[0]}")
    aborts = entry.get("on-failure", "CONTINUE")
    if aborts not in ("ABORT", "CONTINUE"):
        raise BuildspecError(
            f"YAML_FILE_ERROR: phases.{name}.on-failure is {aborts!r}; it must be ABORT or CONTINUE"
        )
    return Phase(
        _commands(name, entry, "commands"), _commands(name, entry, "finally"), aborts == "ABORT"
    )


def _commands(phase: str, entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    commands = entry.get(key) or []
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise BuildspecError(f"YAML_FILE_ERROR: phases.{phase}.{key} is not a list of commands")
    return tuple(commands)


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BuildspecError(f"YAML_FILE_ERROR: {name} is not a mapping")
    return value
