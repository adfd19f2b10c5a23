"""nodesweep: a thin layer of commands over the flows. Imports nothing heavy until a command needs it.

Exit codes: 0 done, 1 a run failed, 2 bad config or arguments, 3 preflight refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from configs.models import BenchmarkConfig

RUN_FAILED, BAD_INPUT, PREFLIGHT_REFUSED = 1, 2, 3

config_argument = click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="a.b.c=value",
    help="Override one value of the config (YAML); repeatable.",
)
output_option = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for reports instead of report.directory.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nodesweep")
def main() -> None:
    """How many nodes should this training job run on, and what will it cost?"""


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the errors that are meant for a person into one message and their exit code; bugs keep their traceback."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, SystemExit):
            raise
        except KeyboardInterrupt:
            fail("interrupted; the sweep's running jobs were asked to stop", RUN_FAILED)
        except Exception as error:
            message, code = explain(error)
            fail(message, code)

    return run


def explain(error: Exception) -> tuple[str, int]:
    """(message, exit code) of an error meant for a person. Raises anything else again."""
    from botocore.exceptions import BotoCoreError, ClientError

    from configs.load import ConfigError
    from flows.local_platform import LocalPlatformError
    from scaling.measured import MeasuredTableError
    from tasks.errors import DatasetMissing, NodesweepError, PreflightRefused
    from tasks.validation_report import InvalidExpectations

    if isinstance(error, ConfigError | MeasuredTableError | InvalidExpectations | DatasetMissing):
        return str(error), BAD_INPUT
    if isinstance(error, PreflightRefused):
        return str(error), PREFLIGHT_REFUSED
    if isinstance(error, NodesweepError | LocalPlatformError):
        return str(error), RUN_FAILED
    if isinstance(error, BotoCoreError | ClientError):
        return f"AWS call failed: {error}", RUN_FAILED
    if isinstance(error, OSError):
        return f"{error.filename or 'file'}: {error.strerror or error}", RUN_FAILED
    raise error


def fail(message: str, code: int) -> None:
    click.echo(f"nodesweep: {message}", err=True)
    sys.exit(code)


@main.command()
@config_argument
@set_option
@click.option(
    "--resume", is_flag=False, flag_value="", default=None, metavar="[SWEEP_ID]",
    help="Continue a sweep instead of starting one; without an id, the latest of this config.",
)  # fmt: skip
@output_option
@guarded
def run(config: Path, overrides: tuple[str, ...], resume: str | None, output: Path | None) -> None:
    """Run a benchmark to its report."""
    benchmark = read_config(config, overrides, output)
    if resume:
        check_sweep_id(resume)
    from flows.session import flow_session

    with flow_session(benchmark.platform):
        from flows.scaling_benchmark import scaling_benchmark

        result = scaling_benchmark(benchmark, sweep_id=resume or None, resume=resume is not None)
    show(result.report)
    click.echo(f"report: {result.folder / 'report.html'}")
    if result.missing_points:
        fail(
            f"{result.missing_points} of the planned points have no completed run; the report says why. "
            f"Try them again: nodesweep run {config} --resume {result.sweep_id}",
            RUN_FAILED,
        )


@main.command()
@config_argument
@set_option
@guarded
def plan(config: Path, overrides: tuple[str, ...]) -> None:
    """Show what would run and what it can cost; sends nothing."""
    from flows.offline import describe_plan, plan_of

    benchmark = read_config(config, overrides)
    sweep_plan = plan_of(benchmark)
    click.echo(describe_plan(benchmark, sweep_plan))
    refuse_problems(sweep_plan.problems)


@main.command()
@config_argument
@set_option
@guarded
def requests(config: Path, overrides: tuple[str, ...]) -> None:
    """Print the CreateTrainingJob request of every point as a JSON array; sends nothing.

    The image's digest, the sweep id and a local dataset's upload are made by a run; here they are spelled from what
    is known without one.
    """
    from flows.offline import plan_of, requests_of

    benchmark = read_config(config, overrides)
    sweep_plan = plan_of(benchmark)
    refuse_problems(sweep_plan.problems)
    click.echo(json.dumps(requests_of(benchmark, sweep_plan), indent=2))


@main.command()
@click.argument("sweep_id", required=False)
@click.option(
    "--csv", "table", type=click.Path(dir_okay=False, path_type=Path), help="A table of measured times instead."
)
@click.option(
    "--config", "config", type=click.Path(dir_okay=False, path_type=Path), help="Where the sweep ran, if not from here."
)
@output_option
@guarded
def report(sweep_id: str | None, table: Path | None, config: Path | None, output: Path | None) -> None:
    """Make the report of a sweep anew, or of a table of anyone's measured times (--csv)."""
    if (sweep_id is None) == (table is None):
        raise click.UsageError("give a SWEEP_ID or --csv FILE, one of the two")
    if table is not None:
        from flows.offline import report_table

        made, folder = report_table(table, output or Path("reports"))
    else:
        check_sweep_id(sweep_id)
        benchmark = config_of_sweep(str(sweep_id), config, output)
        from flows.session import flow_session

        with flow_session(benchmark.platform):
            from flows.report import report_sweep

            made, folder = report_sweep(benchmark, str(sweep_id))
    show(made)
    click.echo(f"report: {folder / 'report.html'}")


@main.command()
@click.argument("sweep_id")
@click.option(
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the sweep runs, if not from here.",
)
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Reports directory the sweep was started with."
)
@guarded
def stop(sweep_id: str, config: Path | None, output: Path | None) -> None:
    """Stop every job of a sweep."""
    check_sweep_id(sweep_id)
    benchmark = config_of_sweep(sweep_id, config, output)
    from flows.local_platform import answers
    from flows.session import flow_session

    if benchmark.platform.autostart and not answers(benchmark.platform):
        click.echo(f"the platform at {benchmark.platform.endpoint_url} is not running, and so is no job of {sweep_id}")
        return
    with flow_session(benchmark.platform, autostart=False):
        from flows.stop import stop_sweep

        stopped = stop_sweep(benchmark.platform, sweep_id)
    click.echo("\n".join(f"stopping {name}" for name in stopped) or f"sweep {sweep_id} has no running job")


@main.group("config")
def config_group() -> None:
    """Check a config, or print its schema."""


@config_group.command()
@config_argument
@set_option
@guarded
def validate(config: Path, overrides: tuple[str, ...]) -> None:
    """Check a config file; says everything that is wrong with it."""
    benchmark = read_config(config, overrides)
    click.echo(f"{config} is valid: benchmark {benchmark.name}, node counts {list(benchmark.sweep.node_counts)}")


@config_group.command()
@guarded
def schema() -> None:
    """Print the JSON Schema of a config, every field with its description."""
    from configs.models import BenchmarkConfig

    click.echo(json.dumps(BenchmarkConfig.model_json_schema(), indent=2))


@main.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def local(arguments: tuple[str, ...]) -> None:
    """The platform on this machine: start, stop or status."""
    sys.exit(subprocess.call([sys.executable, "-m", "infra.local", *arguments]))


def read_config(path: Path, overrides: tuple[str, ...] = (), output: Path | None = None) -> BenchmarkConfig:
    """Load a config; --output wins over report.directory."""
    from configs.load import load_config

    benchmark = load_config(path, overrides)
    if output is None:
        return benchmark
    return benchmark.model_copy(update={"report": benchmark.report.model_copy(update={"directory": str(output)})})


def config_of_sweep(sweep_id: str, path: Path | None, output: Path | None) -> BenchmarkConfig:
    """The config a sweep was started with: from --config, else from what this machine remembers of it."""
    if path is not None:
        return read_config(path, output=output)
    from configs.load import ConfigError, parse_config
    from scaling.names import SWEEP_RECORD

    record = (output or Path("reports")) / sweep_id / SWEEP_RECORD
    if not record.is_file():
        raise ConfigError(
            f"{record}: this machine does not know sweep {sweep_id}; say where it runs with --config FILE"
        )
    benchmark = parse_config(json.loads(record.read_text())["config"], origin=str(record))
    directory = {"directory": str(output or Path("reports"))}
    return benchmark.model_copy(update={"report": benchmark.report.model_copy(update=directory)})


def check_sweep_id(sweep_id: str | None) -> None:
    from scaling.names import is_sweep_id

    if sweep_id is None or not is_sweep_id(sweep_id):
        raise click.BadParameter(f"{sweep_id!r} is not a sweep id; they look like local-20261120191500-1a2b3c4d")


def refuse_problems(problems: tuple[str, ...]) -> None:
    if problems:
        from tasks.errors import PreflightRefused

        raise PreflightRefused(problems)


def show(made: Any) -> None:
    """The report's table on the terminal."""
    from rich.console import Console

    from scaling.report.render import render_terminal

    Console().print(render_terminal(made))


if __name__ == "__main__":
    main()
