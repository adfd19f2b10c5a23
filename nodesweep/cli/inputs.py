"""Inputs of the commands: a config, a sweep, the goals of a report.

Slow modules are imported on use.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodesweep.cli.command_line import command_words

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig, ReportConfig


def read_config(
    path: Path, overrides: tuple[str, ...] = (), output: Path | None = None
) -> BenchmarkConfig:
    """Load a config file or preset; --output overrides report.directory."""
    from nodesweep.configs.load import load_config
    from nodesweep.configs.presets import config_file
    from nodesweep.scaling.secrets import remember_secrets, secrets_of

    config = load_config(config_file(path), overrides)
    remember_secrets(secrets_of(config))
    return _with_output(config, output)


def read_config_to_run(
    path: Path, overrides: tuple[str, ...], output: Path | None = None
) -> BenchmarkConfig:
    """Load a config and check that its directories (dataset, build context, code) exist."""
    from nodesweep.configs.load import check_directories

    benchmark = read_config(path, overrides, output)
    check_directories(benchmark)
    return benchmark


def _with_output(config: BenchmarkConfig, output: Path | None) -> BenchmarkConfig:
    return (
        config
        if output is None
        else config.model_copy(
            update={"report": config.report.model_copy(update={"directory": str(output)})}
        )
    )


def config_of_sweep(sweep_id: str, path: Path | None, output: Path | None) -> BenchmarkConfig:
    """Return a sweep's config: from --config, or from this machine's record of the sweep.

    Raises:
        ConfigError: The sweep has no readable record here and no --config was given.
    """
    if path is not None:
        return read_config(path, output=output)
    from nodesweep.configs.load import ConfigError, parse_config
    from nodesweep.scaling.names import SWEEP_RECORD

    record = (output or Path("reports")) / sweep_id / SWEEP_RECORD
    if not record.is_file():
        raise ConfigError(
            f"{record}: this machine has no record of sweep {sweep_id};"
            " pass its config with --config FILE"
        )
    try:
        config = json.loads(record.read_bytes())["config"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"{record}: damaged, or not the record of a sweep; pass its config with --config FILE"
        ) from None
    benchmark = parse_config(config, origin=str(record))
    return _with_output(benchmark, output or Path("reports"))


def check_arguments(arguments: Mapping[str, object]) -> None:
    """Reject arguments that are not valid UTF-8, since records, reports and keys are text.

    Raises:
        click.UsageError: An argument is not valid UTF-8.
    """
    for name, value in arguments.items():
        for part in value if isinstance(value, tuple) else (value,):
            try:
                str(part).encode()
            except UnicodeEncodeError:
                raise click.UsageError(f"{name}: {str(part)[:80]!r} is not valid UTF-8") from None


def command_of_run(
    config: Path, overrides: tuple[str, ...], output: Path | None, further: Sequence[str] = ()
) -> str:
    """Return the command line that runs this config, as typed but with secrets masked."""
    words = [*command_words(), "run", str(config)]
    words += [word for override in overrides for word in ("--set", _without_secrets(override))]
    words += [] if output is None else ["--output", str(output)]
    words += further
    return shlex.join(words)


def _without_secrets(override: str) -> str:
    from nodesweep.scaling.secrets import CLOSED_SECTIONS, HIDDEN, hide_in_text

    name, equals, _ = override.partition("=")
    is_closed = not CLOSED_SECTIONS.isdisjoint(name.split("."))
    return f"{name}{equals}{HIDDEN}" if is_closed and equals else hide_in_text(override)


def with_goals(rules: ReportConfig, goals: dict[str, float]) -> ReportConfig:
    """Return the report's rules with the goals given on the command line.

    Raises:
        click.UsageError: A goal is out of bounds.
    """
    from pydantic import ValidationError

    from nodesweep.configs.models import RecommendationConfig

    try:
        changed = RecommendationConfig.model_validate(rules.recommendation.model_dump() | goals)
    except ValidationError as error:
        first = error.errors()[0]
        raise click.UsageError(f"{first['loc'][0]}: {first['msg']}, got {first['input']}") from None
    return rules.model_copy(update={"recommendation": changed})


def with_tolerance(rules: ReportConfig, tolerance: float | None) -> ReportConfig:
    """Return the report's rules with a new tolerance for the final metric, unless it is None.

    Raises:
        click.UsageError: The tolerance is negative or not finite.
    """
    if tolerance is None:
        return rules
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise click.UsageError(
            f"--tolerance: got {tolerance}; expected a number of at least 0, in the metric's unit"
        )
    return rules.model_copy(
        update={"parity": rules.parity.model_copy(update={"tolerance": tolerance})}
    )
