"""Allowlists of a deployment's worker: folders, endpoints and variables that runs may name.

Anyone who can start a run chooses its config, and a config can name any folder to upload, any
endpoint to call, and any variable of the worker to pass to a job. If one of these variables is set
in the worker's environment, a run may name only what the variable lists and nodesweep's own values:

    NODESWEEP_ALLOWED_PATHS         folders, separated by colons, including everything below them
    NODESWEEP_ALLOWED_ENDPOINTS     http(s)://HOST[:PORT], separated by commas
    NODESWEEP_ALLOWED_ENVIRONMENT   names of variables, separated by commas

An empty variable allows only nodesweep's own values; an unset one allows everything.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from nodesweep.configs.load import ConfigError
from nodesweep.configs.models import BenchmarkConfig, ReportConfig
from nodesweep.configs.platform import STATE_DIRECTORY
from nodesweep.configs.section import LOCAL_PATH, marked_values, truncate
from nodesweep.configs.training import variables_of

PATHS = "NODESWEEP_ALLOWED_PATHS"
ENDPOINTS = "NODESWEEP_ALLOWED_ENDPOINTS"
ENVIRONMENT = "NODESWEEP_ALLOWED_ENVIRONMENT"
LISTS = (PATHS, ENDPOINTS, ENVIRONMENT)
LOCAL_PLATFORM = {
    "platform.endpoint_url": "NODESWEEP_LOCAL_ENDPOINT_URL",
    "platform.state_directory": "NODESWEEP_LOCAL_STATE_DIRECTORY",
}
"""Config fields and the worker variables that override them (`make up` sets both)."""
_HERE = Path(__file__).resolve().parent
_SHIPPED_FOLDERS = (str(_HERE), str(_HERE.parent / "infra" / "image"))
"""Folders of the presets and of the build context that they name."""
_PORTS = {"http": 80, "https": 443}


def check_allowlists(config: BenchmarkConfig, worker: Mapping[str, str]) -> None:
    """Reject a config that names resources which the worker's environment does not allow.

    This happens before anything is read or called. Links are resolved before paths are compared.

    Raises:
        ConfigError: Resources are not allowed; the message lists all of them.
    """
    problems = [
        *_path_problems(config, worker),
        *_endpoint_problems(config, worker),
        *_variable_problems(config, worker),
    ]
    if problems:
        raise ConfigError(
            "the config uses values that this worker does not allow (docs/security.md):\n"
            + "\n".join(problems)
        )


def _path_problems(config: BenchmarkConfig, worker: Mapping[str, str]) -> Iterator[str]:
    listed = worker.get(PATHS)
    if listed is None:
        return
    named = [path for path in listed.split(os.pathsep) if path]
    for field, value in marked_values(config, LOCAL_PATH):
        for path in (value,) if isinstance(value, str) else value:
            always_allowed = _always_allowed(field, worker)
            if path.startswith("s3://") or _is_below(path, [*named, *always_allowed]):
                continue
            target = os.path.realpath(path)
            shown = repr(truncate(path)) + (
                "" if target == path else f", which resolves to {truncate(target)!r}"
            )
            yield _problem(field, shown, [*always_allowed, *named], PATHS)
    if config.dataset is not None and config.dataset.follow_links_outside:
        yield (
            f"  dataset.follow_links_outside: got true; while {PATHS} is set, no link may point"
            " outside the dataset's folder. Set it to false, and replace the links with copies"
        )
    if getattr(config.platform, "setup", ()):
        yield (
            f"  platform.setup: got commands; while {PATHS} is set, only programs in the listed"
            " folders may run. Remove the commands, and have the program do their work"
        )


def _always_allowed(field: str, worker: Mapping[str, str]) -> tuple[str, ...]:
    if field == "report.directory":
        return (str(ReportConfig().directory),)
    if field == "platform.state_directory":
        return tuple(filter(None, (worker.get(LOCAL_PLATFORM[field]), STATE_DIRECTORY)))
    return _SHIPPED_FOLDERS


def _is_below(path: str, folders: list[str]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def _endpoint_problems(config: BenchmarkConfig, worker: Mapping[str, str]) -> Iterator[str]:
    """Yield endpoint problems; AWS itself (a null endpoint) is always allowed."""
    listed, url = worker.get(ENDPOINTS), config.platform.endpoint_url
    if listed is None or url is None:
        return
    field = "platform.endpoint_url"
    always_allowed = [*filter(None, (worker.get(LOCAL_PLATFORM[field]),))]
    allowed = [*always_allowed, *_split_list(listed)]
    if _origin(url) not in map(_origin, allowed):
        yield _problem(field, repr(truncate(url)), allowed, ENDPOINTS)


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port of a URL; None if it cannot be parsed."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None


def _variable_problems(config: BenchmarkConfig, worker: Mapping[str, str]) -> Iterator[str]:
    listed = worker.get(ENVIRONMENT)
    if listed is None:
        return
    allowed = _split_list(listed)
    for name, variable in variables_of(config.training.environment).items():
        if variable not in allowed:
            field = f"training.environment.{truncate(name)}"
            yield _problem(field, f"${{{truncate(variable)}}}", allowed, ENVIRONMENT)


def _split_list(listed: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", listed) if word]


def _problem(field: str, got: str, allowed: list[str], variable: str) -> str:
    return (
        f"  {field}: got {got}; allowed: {', '.join(allowed) or 'none'}. Use one of these, or have"
        f" it added to {variable} in the worker's environment"
    )
