"""Read a benchmark's YAML, apply --set overrides, and report all errors in one message."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from nodesweep.configs.catalogue import UnknownInstanceType, load_catalogue
from nodesweep.configs.installed import (
    arguments_problem,
    expectation_problem,
    processing_type_problem,
    region_problem,
    values_problem,
)
from nodesweep.configs.models import BenchmarkConfig, launcher_section
from nodesweep.configs.overrides import override
from nodesweep.configs.platform import REGION
from nodesweep.configs.section import (
    MAY_BE_SECRET,
    FieldProblems,
    marked_fields,
    truncate,
    types_in,
)
from nodesweep.configs.strict_yaml import MAX_CHARACTERS, parse_yaml
from nodesweep.configs.url_users import hide_url_users

_HIDDEN_FIELDS = (
    "training.hyperparameters",
    *marked_fields(BenchmarkConfig, MAY_BE_SECRET),
)
"""Fields whose values may be secret, so messages leave them out."""
_KINDS_OF_VALUES = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false",
    tuple: "a list", list: "a list", dict: "a mapping",
}  # fmt: skip
_TAGS = ("kind", "launcher", "type")
"""Discriminators: fields that select one of several possible sections."""
_MAX_PROBLEMS = 20
"""Maximum lines per message, since a file that is not a config has an error in every line."""


class ConfigError(ValueError):
    """An unusable config; the message names every wrong field. Exit code 2."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> BenchmarkConfig:
    """Read, override and validate a config file; local paths become absolute.

    Args:
        path: The YAML file.
        overrides: Assignments `a.b.c=value`, as given to --set.

    Raises:
        ConfigError: The file cannot be read, or the config is invalid.
    """
    raw = _read_yaml(path)
    folder = path.resolve().parent
    if not _is_valid_unicode(str(folder)):
        raise ConfigError(
            f"{path}: the path of its directory is not valid UTF-8, so records cannot store it;"
            " rename the directory"
        )
    return _build_config(raw, overrides, str(path), folder)


def config_from_text(
    text: str, origin: str, folder: Path, overrides: Sequence[str] = ()
) -> BenchmarkConfig:
    """Validate YAML or JSON text as load_config() validates a file.

    Args:
        text: The config.
        origin: Name of the config in error messages.
        folder: Directory from which relative paths are resolved.
        overrides: Assignments `a.b.c=value`.

    Raises:
        ConfigError: The config is invalid.
    """
    return _build_config(_parse_mapping(text, origin), overrides, origin, folder)


def _build_config(
    raw: dict[str, Any], overrides: Sequence[str], origin: str, folder: Path
) -> BenchmarkConfig:
    settings = [_parse_override(each) for each in overrides]
    try:
        override(raw, settings)
    except ValueError as error:
        raise ConfigError(f"--set {error}") from None
    return parse_config(raw, origin=origin).with_absolute_paths(folder)


def check_directories(config: BenchmarkConfig) -> None:
    """Check that every local directory a run reads exists.

    Reporting, collecting and stopping an existing sweep need none of them and skip this check.

    Raises:
        ConfigError: Directories are missing; the message names all of them.
    """
    wanted = {"training.source_dir": config.training.source_dir}
    if config.dataset is not None and not config.dataset.is_remote:
        wanted["dataset.source"] = config.dataset.source
    if config.image.uri is None:
        wanted["image.context"] = config.image.context  # null if a container runs unmodified
    missing = [
        f"  {field}: no directory {_short(path)}; relative paths are resolved from the config"
        " file's folder"
        for field, path in sorted(wanted.items())
        if path is not None and not os.path.isdir(path)
    ]
    if missing:
        raise ConfigError("the config names directories that do not exist:\n" + "\n".join(missing))


def parse_config(raw: Mapping[str, Any], origin: str) -> BenchmarkConfig:
    """Validate a plain mapping, including instance types, regions and expectations.

    These are checked against the catalogue and against the installed packages.

    Raises:
        ConfigError: The mapping is invalid; the message starts with `origin`.
    """
    problems = []
    try:
        config = BenchmarkConfig.model_validate(raw)
    except ValidationError as error:
        problems += _explain(error)
    problems += [*_instance_problems(raw), *_region_problems(raw), *_expectation_problems(raw)]
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"  … and {len(problems) - _MAX_PROBLEMS} more problems"]
    if problems:
        raise ConfigError(f"{origin} is not a valid benchmark config:\n" + "\n".join(problems))
    return config


def _nested_value(raw: Any, *names: str) -> Any:
    """Return the value below these names in the raw mapping, or None.

    The mapping is read before its validation, so that one mistake does not hide others.
    """
    for name in names:
        raw = raw.get(name) if isinstance(raw, Mapping) else None
    return raw


def _region_problems(raw: Any) -> list[str]:
    region = _nested_value(raw, "platform", "region")
    if (
        not isinstance(region, str)
        or not re.match(REGION, region)
        or _nested_value(raw, "platform", "endpoint_url") is not None
    ):
        return []
    problem = region_problem(region)
    return [f"  platform.region: {problem}"] if problem else []


def _expectation_problems(raw: Any) -> list[str]:
    """Check names and schemas. Great Expectations checks the rest during the run."""
    expectations = _nested_value(raw, "dataset", "expectations")
    is_java = _nested_value(raw, "dataset", "validation", "engine") == "spark"
    problems = []
    for number, entry in enumerate(expectations if isinstance(expectations, list) else ()):
        kind, arguments = _nested_value(entry, "type"), _nested_value(entry, "kwargs") or {}
        if not isinstance(kind, str) or not isinstance(arguments, Mapping):
            continue
        field = f"  dataset.expectations.{number}"
        if problem := expectation_problem(kind):
            problems.append(f"{field}.type: {problem}")
        elif problem := arguments_problem(kind, arguments) or values_problem(
            kind, arguments, is_java
        ):
            problems.append(f"{field}.kwargs: {kind}: {problem}")
    return problems


def _instance_problems(raw: Any) -> list[str]:
    if launcher_section(_nested_value(raw, "platform")).fixed_image is not None:
        return []  # the launcher's own section describes the nodes
    named = [("training.instance_type", _nested_value(raw, "training", "instance_type"))]
    for section, field in (("sweep", "instance_types"), ("training", "instance_fallbacks")):
        several = _nested_value(raw, section, field)
        if isinstance(several, list | tuple):
            named += [(f"{section}.{field}.{number}", each) for number, each in enumerate(several)]
    variants = _nested_value(raw, "sweep", "variants")
    for variant in variants if isinstance(variants, list | tuple) else ():
        place = f"sweep.variants.{_nested_value(variant, 'name')}.set.training.instance_type"
        named.append((place, _nested_value(variant, "set", "training.instance_type")))
    of_validation = "dataset.validation.instance_type"
    named.append((of_validation, _nested_value(raw, "dataset", "validation", "instance_type")))
    problems = []
    for field, instance_type in named:
        if not isinstance(instance_type, str):
            continue
        problem = None
        try:
            emulated = load_catalogue().get(instance_type).emulated
        except UnknownInstanceType as error:
            problem = str(error)
        else:
            if field == of_validation and not emulated:
                problem = processing_type_problem(instance_type)
        if problem is not None:
            problems.append(f"  {field}: {problem}")
    return problems


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = _read_text(path)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file, and no shipped config has this name; to list them:"
            " nodesweep config presets"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start + 1} is not valid UTF-8; save the file as UTF-8"
        ) from None
    return _parse_mapping(text, str(path))


def _parse_mapping(text: str, origin: str) -> dict[str, Any]:
    try:
        raw = parse_yaml(text, origin)
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin} is not valid YAML: {truncate(str(error), 1000)}") from None
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{origin}: expected a mapping with the sections of a benchmark,"
            f" got {_KINDS_OF_VALUES.get(type(raw), 'a value') if raw is not None else 'nothing'}"
        )
    return raw


def _read_text(path: Path) -> str:
    """Return the text of a regular file, up to the size limit.

    Opening a pipe without a writer would block, and reading /dev/zero would never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path}: this is a directory, device or pipe; give a file")
        content = file.read(4 * MAX_CHARACTERS + 1)
    if len(content) > 4 * MAX_CHARACTERS:
        raise ConfigError(
            f"{path}: a config has at most {MAX_CHARACTERS} characters; this file is larger"
        )
    return content.decode()


def _parse_override(assignment: str) -> tuple[str, Any]:
    """Return the dotted key and its value, which is parsed as YAML: 3, true, [1, 2], null."""
    key, equals, text = assignment.partition("=")
    shown = truncate(key)
    if not equals or not all(key.split(".")):
        raise ConfigError(
            f"--set {_short(assignment)}: expected a.b.c=value, e.g. --set sweep.node_counts=[1,2]"
        )
    if not _is_valid_unicode(key):
        raise ConfigError(f"--set {key!r}=…: the name contains a byte that is not valid UTF-8")
    try:
        return key, parse_yaml(text, f"--set {shown}")
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {shown}=…: the value is not valid YAML: {truncate(str(error), 1000)}"
        ) from None


def _explain(error: ValidationError) -> list[str]:
    """Return one line per problem: the field, the error and the value.

    A list that is too short only because its items were rejected is not reported.
    """
    lines = []
    problems = error.errors(include_url=False)
    lists_with_problems = {
        problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))
    }
    for problem in problems:
        if problem["type"] == "too_short" and problem["loc"] in lists_with_problems:
            continue
        variant, loc = _split_variant(problem["loc"])
        path, section, kinds, field = _locate(loc)
        found = problem.get("ctx", {}).get("error")
        if isinstance(found, FieldProblems):
            place = "".join(f"{truncate(str(part))}." for part in (*variant, *path))
            lines += [f"  {place}{truncate(each, 600)}" for each in found.problems]
            continue
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = (
                "unknown key; allowed here:"
                f" {', '.join(section) or '(see nodesweep config schema)'}"
            )
        elif problem["type"] == "missing" and field is not None:
            message = f"Field required: {_wanted(field, kinds)}"
        elif problem["type"].startswith("union_tag_"):
            tag = problem["ctx"]["discriminator"].strip("'").removesuffix("()")
            message = f"{tag} is missing or unknown; use one of {', '.join(kinds)}"
        else:
            message = _in_words(problem["type"], message, field)
        is_shown = problem["type"] not in (
            "missing",
            "extra_forbidden",
        ) and not f"{'.'.join(path)}.".startswith(tuple(f"{field}." for field in _HIDDEN_FIELDS))
        got = f" (got {_short(problem['input'])})" if is_shown else ""
        lines.append(
            f"  {'.'.join(truncate(str(part)) for part in (*variant, *path)) or '(whole config)'}:"
            f" {truncate(message, 600)}{got}"
        )
    return lines


def _in_words(problem: str, message: str, field: FieldInfo | None) -> str:
    """Return pydantic's message with the types of YAML instead of those of Python."""
    types = set() if field is None else types_in(field.annotation)
    items = "1, 2, 4" if int in types else "a, b"
    if any(hasattr(each, "model_fields") for each in types):
        items = "{key: value}"
    example = f"such as [{items}]"
    if problem == "tuple_type":
        return f"Input should be a list, {example}"
    if problem in ("dict_type", "model_type"):
        return "Input should be a mapping, such as {key: value}"
    if problem in ("too_short", "too_long"):
        message = message.replace("Tuple should have", "Input should be a list with")
        message = message.replace("Dictionary should have", "Input should be a mapping with")
        return message.replace(" after validation", "").replace(", not 0", f", {example}")
    return message


def _split_variant(
    loc: tuple[int | str, ...],
) -> tuple[tuple[int | str, ...], tuple[int | str, ...]]:
    """Split sweep.variants.NAME.set from the location of a problem in that variant's config."""
    named = loc[:2] == ("sweep", "variants") and len(loc) > 3 and isinstance(loc[2], str)
    return (loc[:4], loc[4:]) if named else ((), loc)


def _wanted(field: FieldInfo, kinds: list[str]) -> str:
    """Describe the value of a missing field: its type and its description."""
    chosen_by_default = _default_section(field.annotation) if kinds else None
    if chosen_by_default is not None:
        wanted = _kind_of_value(chosen_by_default)
    elif kinds:
        wanted = f"a section whose kind is one of {', '.join(kinds)}"
    else:
        wanted = _kind_of_value(field.annotation)
    return f"{wanted}. {field.description}" if field.description else wanted


def _default_section(annotation: Any) -> Any:
    """Return the section that applies if the YAML names no kind; None if a kind is required."""
    for section in get_args(annotation):
        tags = [tag for tag in _TAGS if tag in getattr(section, "model_fields", {})]
        if tags and not section.model_fields[tags[0]].is_required():
            return section
    return None


def _kind_of_value(annotation: Any) -> str:
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _kind_of_value(parts[0])
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(str, parts))
    if type(None) in parts:
        return " or ".join(
            [*(_kind_of_value(part) for part in parts if part is not type(None)), "null"]
        )
    if hasattr(annotation, "model_fields"):
        fields = annotation.model_fields.items()
        needed = [name for name, field in fields if field.is_required()]
        return f"a section with {', '.join(needed)}"
    return _KINDS_OF_VALUES.get(get_origin(annotation) or annotation, "a value")


def _locate(
    loc: tuple[int | str, ...],
) -> tuple[list[str], list[str], list[str], FieldInfo | None]:
    """Return an error's location as the YAML names it, and its definition in the config.

    pydantic puts the kind of a tagged union into the path; the YAML has no such level.

    Returns:
        The names that lead to the problem, the field names allowed in its section, the possible
        kinds, and the field definition if the problem is in a field of a section.
    """
    path: list[str] = []
    section: Any = BenchmarkConfig
    models: dict[str, Any] = {"": BenchmarkConfig}
    entry: Any = None  # value type of a mapping, if the next part is one of its keys
    field: FieldInfo | None = None
    for part in loc:
        if part in models:
            models = {"": models[str(part)]}
            continue
        path.append(str(part))
        if entry is not None:
            models, entry, field = _models(entry), None, None
            continue
        section = next(iter(models.values()), None)
        field = getattr(section, "model_fields", {}).get(part)
        annotation = None if field is None else field.annotation
        entry = get_args(annotation)[1] if get_origin(annotation) is dict else None
        models = _models(annotation)
    allowed = list(getattr(section, "model_fields", {}))
    return path, allowed, [kind for kind in models if kind], field


def _models(annotation: Any) -> dict[str, Any]:
    """Return a field's possible sections by discriminator value, or by "" if there is only one."""
    if get_origin(annotation) is Annotated:
        return _models(get_args(annotation)[0])
    found = [
        model for model in (annotation, *get_args(annotation)) if hasattr(model, "model_fields")
    ]
    if len(found) < 2:
        return {"": found[0]} if found else {}
    tag = next(name for name in _TAGS if name in found[0].model_fields)
    return {
        value: model for model in found for value in get_args(model.model_fields[tag].annotation)
    }


def _short(value: object) -> str:
    """Return the value on one line: a mapping as its keys, a list of mappings as its length.

    Text before the @ of a URL may be a password, and any value of a mapping may be a secret.
    """
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        noun = "key" if len(value) == 1 else "keys"
        keys = truncate(f"a mapping with the {noun} {', '.join(map(str, value))}")
        return keys if value else "an empty mapping"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return truncate(hide_url_users(repr(value), "…"))


def _is_valid_unicode(text: str) -> bool:
    """Return True if the text has no lone surrogates, which stand for bytes that are not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
