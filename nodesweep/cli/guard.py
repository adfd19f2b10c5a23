"""Exit codes, options and error handling shared by the commands.

Exit codes: 0 done, 1 a run failed or `compare` or `history` found a regression, 2 bad config or
arguments, 3 preflight refused. This module imports nothing slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import click

from nodesweep.cli.inputs import check_arguments
from nodesweep.cli.output import is_json_requested, print_event

RUN_FAILED, BAD_INPUT, PREFLIGHT_REFUSED = 1, 2, 3

# configs/load.py checks that the file exists: a folder here may have a preset's name.
config_argument = click.argument("config", type=click.Path(path_type=Path))
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="a.b.c=value",
    help="Override one config value (parsed as YAML); repeatable.",
)
sweep_config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Config of the sweep, if it was not started from here.",
)
output_option = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Reports directory; overrides report.directory.",
)


tolerance_option = click.option(
    "--tolerance",
    type=float,
    default=0.05,
    show_default=True,
    help="Fraction by which a sweep may be slower.",
)


def goal_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for the limits of report.recommendation, named as in a config.

    --deadline and --budget are short forms of two of them.
    """
    limits = (
        ("min_efficiency", (), "SHARE", "Minimum efficiency at the recommended node count; 0-1."),
        (
            "min_doubling_ratio",
            (),
            "RATIO",
            "Minimum speedup that justifies doubling the nodes; 1-2.",
        ),
        (
            "deadline_seconds",
            ("--deadline",),
            "SECONDS",
            "Recommend the cheapest node count whose run takes at most this long.",
        ),
        (
            "budget_usd_per_run",
            ("--budget",),
            "USD",
            "Maximum cost of a run at the recommended node count.",
        ),
        (
            "hour_value_usd",
            ("--hour-value",),
            "USD",
            "Value of an hour of waiting; recommend the node count with the lowest total cost.",
        ),
    )
    for name, short, unit, meaning in reversed(limits):
        spelled = (*short, f"--{name.replace('_', '-')}")
        command = click.option(*spelled, name, type=float, metavar=unit, help=meaning)(command)
    return command


def add_view_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --verbose and --log-format to a command."""
    verbose = click.option(
        "--verbose",
        is_flag=True,
        help="Show every log line of every node; by default, only the run's log has all lines.",
    )
    log_format = click.option(
        "--log-format",
        type=click.Choice(["auto", "plain", "json"]),
        default="auto",
        show_default=True,
        help="Progress format on stderr; auto: a live view on a terminal, otherwise plain lines.",
    )
    return verbose(log_format(command))


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Convert errors meant for users into a message and an exit code; bugs keep their traceback."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            check_arguments(kwargs)
            command(*args, **kwargs)
        except click.ClickException as error:
            if not is_json_requested():
                raise
            fail(error.format_message(), error.exit_code)
        except (click.exceptions.Exit, SystemExit):
            raise
        except KeyboardInterrupt:
            fail("interrupted", RUN_FAILED)
        except Exception as error:
            message, code = explain(error)
            fail(message, code)

    return run


def explain(error: Exception) -> tuple[str, int]:
    """Return (message, exit code) for an error meant for users; re-raise any other error."""
    from botocore.exceptions import BotoCoreError, ClientError

    from nodesweep.cli.local_platform import LocalPlatformError
    from nodesweep.configs.load import ConfigError
    from nodesweep.errors import (
        EXPIRED_CODES,
        DatasetMissing,
        InputsChanged,
        NodesweepError,
        PreflightRefused,
        PriceListNotFound,
        SweepNotNamed,
        error_code,
        is_bucket_gone,
    )
    from nodesweep.scaling.measured.table import MeasuredTableError
    from nodesweep.tasks.dataset.validation_report import InvalidExpectations

    bad_input = (
        ConfigError,
        MeasuredTableError,
        InvalidExpectations,
        DatasetMissing,
        InputsChanged,
        PriceListNotFound,
        SweepNotNamed,
    )
    if isinstance(error, bad_input):
        return str(error), BAD_INPUT
    if isinstance(error, PreflightRefused):
        return str(error), PREFLIGHT_REFUSED
    if isinstance(error, NodesweepError | LocalPlatformError):
        return str(error), RUN_FAILED
    if isinstance(error, BotoCoreError | ClientError):
        hint = ""
        if error_code(error) in EXPIRED_CODES:
            hint = "; renew the credentials, then continue with --resume"
        elif is_bucket_gone(error):
            hint = (
                "; the bucket held the records of the sweeps, so --resume can't work."
                " `nodesweep stop SWEEP_ID` stops running jobs, and `nodesweep logs SWEEP_ID`"
                " prints their logs. Create the bucket or set platform.create_missing: true, then"
                " start a new sweep: nodesweep run CONFIG"
            )
        return f"AWS call failed: {error}{hint}", RUN_FAILED
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}", RUN_FAILED
    # imported late, so that the errors above are reported quickly
    import httpx
    import pydantic

    from nodesweep.scaling.analysis.speedup import MixedOutcomesError

    if isinstance(error, MixedOutcomesError):
        return str(error), RUN_FAILED
    prefect_error = error.__cause__ if isinstance(error, RuntimeError) else error
    if isinstance(prefect_error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return f"PREFECT_API_URL is not a valid HTTP URL: {prefect_error}", BAD_INPUT
    if (
        isinstance(prefect_error, httpx.HTTPStatusError)
        and prefect_error.response.status_code == 401
    ):
        return (
            (
                "Prefect's server refused the credentials: export PREFECT_API_AUTH_STRING with its"
                " password, see docs/production.md"
            ),
            RUN_FAILED,
        )
    if isinstance(prefect_error, httpx.HTTPError):
        # boto3 does not use httpx, so the error comes from Prefect's API
        reason = str(prefect_error).partition("\n")[0] or type(prefect_error).__name__
        return (
            f"Prefect's API can't be used ({reason}); check PREFECT_API_URL or unset it",
            RUN_FAILED,
        )
    if isinstance(error, pydantic.ValidationError) and error.title.endswith("Settings"):
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        return f"invalid PREFECT_ setting: {place}{problem}", BAD_INPUT
    raise error


def fail(message: str, code: int) -> NoReturn:
    """Print a final message on stderr and exit with the code."""
    print_event("failed", message, is_error=True, exit_code=code)
    sys.exit(code)
