"""Create configs for `nodesweep init` (a script) and `nodesweep config init` (a stack)."""

from __future__ import annotations

import os.path
import sys
import warnings
from pathlib import Path

from nodesweep.cli.commands.code_folder import code_folder
from nodesweep.cli.commands.stack import read_outputs, stack_client
from nodesweep.configs.atomic import SHARED, write_atomic
from nodesweep.configs.load import ConfigError, parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.presets import PRESETS_DIRECTORY
from nodesweep.configs.strict_yaml import parse_yaml
from nodesweep.configs.written.from_script import EXAMPLE, fill_script, is_python, name_of
from nodesweep.configs.written.from_stack import LocalEndpoint, Stack, fill_template

TEMPLATE = PRESETS_DIRECTORY / "first_sweep.yaml"
SCRIPT_TEMPLATE = PRESETS_DIRECTORY / "own_script.yaml"


def init_config(
    stack_name: str,
    region: str | None,
    local: LocalEndpoint | None,
    output: Path | None,
    force: bool = False,
) -> str:
    """Return the text of a config for a deployed stack, and write it to `output` if given.

    Paths in the config are relative to the folder of `output`, by default the working directory.

    Args:
        stack_name: Name of the stack.
        region: Region of the stack; None for the default of the AWS configuration.
        local: The local platform that holds the stack; None for AWS.
        output: File to write.
        force: Overwrite an existing file.

    Raises:
        ConfigError: The stack is unknown or from a different template, or `output` exists.
    """
    if output is not None and output.exists() and not force:
        raise ConfigError(f"{output} exists; choose another --output, or replace it with --force")
    client = stack_client(region, local)
    stack = Stack.from_outputs(
        stack_name, client.meta.region_name, read_outputs(client, stack_name)
    )
    folder = Path.cwd() if output is None else output.resolve().parent
    text = fill_template(
        TEMPLATE.read_text(encoding="utf-8"), stack, local, TEMPLATE.parent, folder
    )
    parse_config(parse_yaml(text), origin=f"the config created from the stack {stack_name}")
    if output is not None:
        write_atomic(output, text.encode(), SHARED)
    return text


def init_script(
    script: Path | None, output: Path, force: bool = False, shared: Path | None = None
) -> tuple[Path, tuple[str, ...]]:
    """Write a config that measures a script on this machine or on its Slurm cluster.

    Args:
        script: The training script; None to write an example as code/train.py next to the config.
        output: Config file to write.
        force: Overwrite existing files.
        shared: Folder that the nodes of the Slurm cluster share; None to measure on this machine.

    Returns:
        The script's path, and the notices from preflight.

    Raises:
        ConfigError: The script does not exist or has a syntax error, or an output file exists.
        PreflightRefused: No job could start the script; nothing was written.
    """
    example = (SCRIPT_TEMPLATE.parent / EXAMPLE).read_bytes()
    program = script or output.parent / "code" / "train.py"
    if script is not None and not script.is_file():
        raise ConfigError(f"--script: {script} is not a file; give the script that each rank runs")
    for path in [output] if script else [output, program]:
        if path.exists() and not force:
            raise ConfigError(f"{path} exists; choose another --output, or replace it with --force")
    template, folder = SCRIPT_TEMPLATE.read_text(encoding="utf-8"), output.resolve().parent
    path = Path(os.path.abspath(program))
    top = path.parent if script is None else code_folder(path, Path.cwd())
    name = name_of(program)
    if shared is None:
        text = fill_script(template, name, path, top, SCRIPT_TEMPLATE.parent, folder)
    else:
        from nodesweep.launch.slurm.starter import first_config

        text = first_config(name, path, top, shared, is_python(path))
    config = parse_config(parse_yaml(text), origin=f"the config created for {program}")
    notices: tuple[str, ...] = ()
    if script is not None:
        notices = _check_program(config.with_absolute_paths(folder))
        if is_python(path) and (problem := _syntax_problem(script)):
            version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
            if shared is None:  # jobs on this machine run the script with this Python
                raise ConfigError(f"--script: {problem}; correct it for this {version}")
            notices += (f"{problem}, in {version}; the nodes' Python might accept it",)
    else:
        program.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(program, example, SHARED)
    write_atomic(output, text.encode(), SHARED)
    return program, notices


def _syntax_problem(script: Path) -> str | None:
    """Return the place and the text of a Python script's syntax error; None if it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an unknown escape sequence
            compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{script}{line}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; too deeply nested
        return f"{script}: {error}"
    return None


def _check_program(config: BenchmarkConfig) -> tuple[str, ...]:
    """Return the notices from preflight about the program.

    Raises:
        PreflightRefused: No job could start the program.
    """
    from nodesweep.flows.stages.offline import check_offline, raise_if_refused

    checked = check_offline(config)
    raise_if_refused(checked)
    return checked.findings.notices
