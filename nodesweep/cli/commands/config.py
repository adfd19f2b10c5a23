"""`nodesweep init` and `nodesweep config`: create or check a config, or print its schema."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from nodesweep.cli.command_line import as_typed
from nodesweep.cli.guard import config_argument, guarded, set_option
from nodesweep.cli.inputs import read_config_to_run
from nodesweep.cli.output import print_text
from nodesweep.configs import INIT_CONFIG


@click.command("init", short_help="Create a config that measures your script on this machine.")
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    help="Your training script; without it, an example script is created.",
)
@click.option(
    "--output", default=INIT_CONFIG, show_default=True,
    type=click.Path(dir_okay=False, path_type=Path), help="Config file to write.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option(
    "--slurm",
    "shared",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a config for this login node's Slurm cluster; FOLDER is your directory on its"
    " shared file system.",
)
@guarded
def init_own_script(script: Path | None, output: Path, force: bool, shared: Path | None) -> None:
    """Create a config that measures your training script.

    It runs on this machine or, with --slurm, on a cluster. Comments in the file explain the fields
    that matter.
    """
    from nodesweep.cli.commands.init_config import init_script
    from nodesweep.configs.written.from_script import GIVEN_TO_NODES, is_python

    program, notices = init_script(script, output, force, shared and shared.absolute())
    file = shlex.quote(str(output))
    then = f"nodesweep plan {file}, then nodesweep run {file}"
    print_text(as_typed(f"wrote {output} for {program}; next: {then}"))
    for notice in notices:
        print_text(f"notice: {notice}")
    if not is_python(program):
        print_text(
            f"{program.name} is started unmodified, once per node (training.distribution.kind: "
            f"none). Its environment contains {GIVEN_TO_NODES}, but no rank; see "
            "docs/shell-and-binaries.md for an example"
        )


@click.group("config", short_help="Create or check a config, or print shipped files.")
def config_group() -> None:
    """Create a config for a deployed stack, check one, or print shipped files."""


@config_group.command("init", short_help="Create a config for a first sweep on a deployed stack.")
@click.option(
    "--from-stack",
    "stack",
    required=True,
    metavar="NAME",
    help="Name of a deployed stack; see docs/aws.md.",
)
@click.option(
    "--region",
    metavar="REGION",
    help="Region of the stack; default: the region of your AWS configuration.",
)
@click.option(
    "--endpoint-url", metavar="URL", help="Local platform that holds the stack; default: AWS."
)
@click.option(
    "--state-directory",
    metavar="FOLDER",
    help="With --endpoint-url: the platform's state folder; default: .nodesweep/platform.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; default: stdout.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@guarded
def init(
    stack: str,
    region: str | None,
    endpoint_url: str | None,
    state_directory: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Create a config for a first sweep in the account of a deployed stack."""
    from nodesweep.cli.commands.init_config import init_config
    from nodesweep.configs.platform import STATE_DIRECTORY
    from nodesweep.configs.written.from_stack import LocalEndpoint

    if state_directory is not None and endpoint_url is None:
        raise click.UsageError("--state-directory requires --endpoint-url")
    local = endpoint_url and LocalEndpoint(endpoint_url, state_directory or STATE_DIRECTORY)
    text = init_config(stack, region, local or None, output, force)
    print_text(
        text.rstrip("\n")
        if output is None
        else as_typed(f"wrote {output}; next: nodesweep plan {shlex.quote(str(output))} --online")
    )


@config_group.command()
@config_argument
@set_option
@guarded
def validate(config: Path, overrides: tuple[str, ...]) -> None:
    """Check a config and the files it names, and list all errors."""
    from nodesweep.flows.stages.offline import check_offline, raise_if_refused

    benchmark = read_config_to_run(config, overrides)
    raise_if_refused(check_offline(benchmark))
    print_text(
        f"{config} is valid: benchmark {benchmark.name}, node counts"
        f" {list(benchmark.sweep.node_counts)}"
    )


@config_group.command(short_help="Print the JSON Schema of a config.")
@guarded
def schema() -> None:
    """Print the JSON Schema of a config, including the description of every field."""
    from nodesweep.configs.models import BenchmarkConfig

    print_text(json.dumps(BenchmarkConfig.model_json_schema(), indent=2))


@config_group.command(short_help="Print the names of the shipped configs.")
@guarded
def presets() -> None:
    """Print the names of the shipped configs, which every command accepts instead of a file."""
    from nodesweep.configs.presets import preset_names

    print_text("\n".join(preset_names()))


@config_group.command(short_help="Print the CloudFormation template.")
@guarded
def stack() -> None:
    """Print the CloudFormation template to deploy in your account (infra/aws/nodesweep.yaml)."""
    from nodesweep.cli.commands.stack import STACK_TEMPLATE

    print_text(STACK_TEMPLATE.read_text(encoding="utf-8").rstrip("\n"))
