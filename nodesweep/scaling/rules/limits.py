"""Lengths and patterns of the request's fields.

The model in botocore 1.44.5 has these limits, but botocore does not check the maxima.
tests/nodesweep/scaling/rules compares every number here with that model. Limits that the config
models enforce (channel names, tags, VPC ids, key ids) are not repeated, and hyperparameters are
checked in nodesweep/scaling/rules/plan.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from nodesweep.configs.section import MAY_BE_SECRET, marked_values
from nodesweep.configs.training import variables_of
from nodesweep.scaling.outcome.observed import ALL_REDUCES, SWITCH, TIME_ALL_REDUCES
from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_SHARE, MOST_STEPS
from nodesweep.scaling.outcome.timed_passes import TIME_PASSES
from nodesweep.scaling.planning.workload import RUN_SECONDS, RUN_STEPS
from nodesweep.scaling.rules.rule import Facts, advises, refuses
from nodesweep.scaling.secrets import secrets_in

MAX_ENVIRONMENT_CHARS = 512
MAX_METRIC_NAME_CHARS = 255
MAX_METRIC_REGEX_CHARS = 500
MAX_IMAGE_URI_CHARS = 255
_ENVIRONMENT_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_DIGEST_CHARS = len("@sha256:") + 64


@refuses
def environment_fits(facts: Facts) -> Iterator[str]:
    """Refuse names and values of environment variables that SageMaker does not accept."""
    for key, value in facts.training.environment.items():
        if not _ENVIRONMENT_KEY.fullmatch(key):
            yield (
                f"training.environment: {_shown(key)} is not a valid variable name; use letters, "
                "digits and _, not starting with a digit"
            )
        if len(key) > MAX_ENVIRONMENT_CHARS:
            yield _too_long(
                f"training.environment: the name {_shown(key)}", key, MAX_ENVIRONMENT_CHARS
            )
        if len(value) > MAX_ENVIRONMENT_CHARS:
            yield _too_long(
                f"training.environment: the value of {_shown(key)}",
                value,
                MAX_ENVIRONMENT_CHARS,
                "put it in a file next to the program",
            )


@refuses
def probes_are_asked_by_the_sweep(facts: Facts) -> Iterator[str]:
    """Refuse variables that would make every job end early, including validation runs."""
    for name in (ASKED_BY, MOST_SHARE, MOST_STEPS):
        if name in facts.training.environment:
            yield (
                f"training.environment: {name} makes every job end early, but the sweep sets it "
                "for those that should; leave it out, and set sweep.design: probe to measure "
                "parts of runs"
            )


@refuses
def amounts_are_asked_by_the_sweep(facts: Facts) -> Iterator[str]:
    """Refuse variables that set each job's amount of work, which only the sweep may set."""
    for name, field in ((RUN_SECONDS, "baseline_seconds"), (RUN_STEPS, "steps")):
        if name in facts.training.environment:
            yield (
                f"training.environment: {name} sets the amount of work of every job, but the "
                f"sweep sets it itself; leave it out, and set training.{field} to choose how "
                "long a run takes"
            )


@refuses
def measurement_is_set_by_the_config(facts: Facts) -> Iterator[str]:
    """Refuse variables that nodesweep sets, since the report relies on their values."""
    if SWITCH in facts.training.environment:
        yield (
            f"training.environment: {SWITCH} sets whether scripts are measured from outside; "
            "leave it out, and set training.measure to auto, helper or off"
        )
    for name, measured in (
        (TIME_ALL_REDUCES, "the speed of the network"),
        (ALL_REDUCES, "the speed of the network"),
        (TIME_PASSES, "the time of smaller batches"),
    ):
        if name in facts.training.environment:
            yield (
                f"training.environment: {name} concerns {measured}, from which times are "
                "predicted; leave it out, because sweeps with sweep.design: predict measure it"
            )


@refuses
def metric_definitions_fit(facts: Facts) -> Iterator[str]:
    """Refuse metrics with an empty name, or with a name or expression that is too long."""
    for name, regex in facts.training.metric_definitions.items():
        if not name:
            yield "training.metric_definitions: a metric has an empty name; give it a name"
        if len(name) > MAX_METRIC_NAME_CHARS:
            yield _too_long(
                f"training.metric_definitions: the name {_shown(name)}", name, MAX_METRIC_NAME_CHARS
            )
        if len(regex) > MAX_METRIC_REGEX_CHARS:
            yield _too_long(
                f"training.metric_definitions: the expression of {_shown(name)}",
                regex,
                MAX_METRIC_REGEX_CHARS,
            )


@refuses
def image_uri_fits(facts: Facts) -> list[str]:
    """Refuse a repository whose image URI (registry, repository, digest) would be too long."""
    image, platform = facts.config.image, facts.config.platform
    if image.uri is not None:
        return []
    suffix = "amazonaws.com.cn" if platform.region.startswith("cn-") else "amazonaws.com"
    registry = f"{platform.account_id}.dkr.ecr.{platform.region}.{suffix}/"
    room = MAX_IMAGE_URI_CHARS - len(registry) - _DIGEST_CHARS
    if len(image.repository) <= room:
        return []
    return [
        f"image.repository: its {len(image.repository)} characters, plus registry and digest, "
        f"make an image URI longer than SageMaker's limit of {MAX_IMAGE_URI_CHARS}; use at most "
        f"{room}"
    ]


@refuses
def entry_point_fits(facts: Facts) -> Iterator[str]:
    """Refuse an entry point outside training.source_dir, or too long for a variable."""
    entry_point = facts.training.entry_point
    if facts.training.source_dir is None:
        return
    path = PurePosixPath(entry_point)
    if path.is_absolute() or ".." in path.parts:
        yield (
            f"training.entry_point: {_shown(entry_point)} is outside training.source_dir; "
            "choose a file inside it"
        )
    if len(entry_point) > MAX_ENVIRONMENT_CHARS:
        yield _too_long("training.entry_point: the name", entry_point, MAX_ENVIRONMENT_CHARS)


@refuses
def variables_are_set(facts: Facts) -> list[str]:
    """Refuse training.environment if a variable that it refers to is unset or too long."""
    return (
        []
        if facts.variables is None
        else variable_problems(facts.training.environment, facts.variables)
    )


@advises
def build_arguments_are_no_secrets(facts: Facts) -> Iterator[str]:
    """Warn about secrets in build arguments, which Docker and podman write to the image history.

    Source: https://docs.docker.com/reference/dockerfile/#arg.
    """
    for field, arguments in marked_values(facts.config, MAY_BE_SECRET):
        if not field.endswith("build_args"):
            continue
        for name, value in arguments.items():
            if secrets_in({name: value}):
                yield (
                    f"{field}.{name} looks like a secret, and anyone who can pull the image can "
                    "read build arguments in the image's history; have the job fetch the secret, "
                    "or use a package index that needs no password"
                )


def variable_problems(environment: Mapping[str, str], lengths: Mapping[str, int]) -> list[str]:
    """Return a problem for each reference that cannot be resolved; values are never included.

    `lengths` maps each variable that is set to its number of characters.
    """
    problems = []
    for name, variable in variables_of(environment).items():
        value, length = environment[name], lengths.get(variable)
        if length is None:
            problems.append(
                f"training.environment.{name} is {value}, but {variable} is not set where the "
                "flow runs; set it in the environment of the command or of the worker"
            )
        elif length > MAX_ENVIRONMENT_CHARS:
            problems.append(
                f"training.environment.{name} is {value}, and {variable} has {length} "
                "characters where the flow runs, but SageMaker allows at most "
                f"{MAX_ENVIRONMENT_CHARS}: have the job fetch it, e.g. from Secrets Manager"
            )
    return problems


def _too_long(name: str, text: str, most: int, remedy: str = "shorten it") -> str:
    return f"{name} has {len(text)} characters, but SageMaker allows at most {most}; {remedy}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
