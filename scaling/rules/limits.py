"""Lengths and patterns of the request's fields (botocore 1.44.5 holds them and checks none of the maxima).

tests/scaling/rules compares every number here with botocore's model. What a config's own bounds hold already
(channel names, tags, VPC ids, key ids) is not repeated, and hyperparameters are looked at in scaling/planning/plan.py.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from scaling.rules.sweep import Sweep

MAX_ENVIRONMENT_CHARS = 512
MAX_METRIC_NAME_CHARS = 255
MAX_METRIC_REGEX_CHARS = 500
MAX_IMAGE_URI_CHARS = 255
_ENVIRONMENT_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_DIGEST_CHARS = len("@sha256:") + 64


def environment_fits(sweep: Sweep) -> list[str]:
    """Names and values of the container's environment variables."""
    problems = []
    for key, value in sweep.training.environment.items():
        if not _ENVIRONMENT_KEY.fullmatch(key):
            problems.append(
                f"training.environment: {_shown(key)} is no name for a variable; use letters, digits and _, no digit "
                "first"
            )
        if len(key) > MAX_ENVIRONMENT_CHARS:
            problems.append(_too_long(f"training.environment: the name {_shown(key)}", key, MAX_ENVIRONMENT_CHARS))
        if len(value) > MAX_ENVIRONMENT_CHARS:
            problems.append(
                _too_long(f"training.environment: the value of {_shown(key)}", value, MAX_ENVIRONMENT_CHARS)
                + "; put it into a file beside the program"
            )
    return problems


def metric_definitions_fit(sweep: Sweep) -> list[str]:
    """Names and regular expressions of the metrics read from the log; neither may be empty."""
    problems = []
    for name, regex in sweep.training.metric_definitions.items():
        if not name:
            problems.append("training.metric_definitions: a metric has an empty name; name it")
        if len(name) > MAX_METRIC_NAME_CHARS:
            problems.append(
                _too_long(f"training.metric_definitions: the name {_shown(name)}", name, MAX_METRIC_NAME_CHARS)
            )
        if len(regex) > MAX_METRIC_REGEX_CHARS:
            problems.append(
                _too_long(
                    f"training.metric_definitions: the expression of {_shown(name)}", regex, MAX_METRIC_REGEX_CHARS
                )
            )
    return problems


def image_uri_fits(sweep: Sweep) -> list[str]:
    """The URI an image of our own gets: account and region's registry, the repository, its digest."""
    image, platform = sweep.config.image, sweep.config.platform
    if image.uri is not None:
        return []
    suffix = "amazonaws.com.cn" if platform.region.startswith("cn-") else "amazonaws.com"
    registry = f"{platform.role_arn.split(':')[4]}.dkr.ecr.{platform.region}.{suffix}/"
    room = MAX_IMAGE_URI_CHARS - len(registry) - _DIGEST_CHARS
    if len(image.repository) <= room:
        return []
    return [
        f"image.repository: {len(image.repository)} characters make an image URI longer than SageMaker's "
        f"{MAX_IMAGE_URI_CHARS} with registry and digest; use at most {room}"
    ]


def entry_point_fits(sweep: Sweep) -> list[str]:
    """With code of one's own the program is a file in it, and its name is sent as an environment variable too."""
    entry_point = sweep.training.entry_point
    if sweep.training.source_dir is None:
        return []
    path = PurePosixPath(entry_point)
    problems = []
    if path.is_absolute() or ".." in path.parts:
        problems.append(
            f"training.entry_point: {_shown(entry_point)} leads out of training.source_dir; name a file in it"
        )
    if len(entry_point) > MAX_ENVIRONMENT_CHARS:
        problems.append(_too_long("training.entry_point: the name", entry_point, MAX_ENVIRONMENT_CHARS))
    return problems


def _too_long(what: str, text: str, most: int) -> str:
    return f"{what} is {len(text)} characters; SageMaker takes {most}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
