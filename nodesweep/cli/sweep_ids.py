"""Resolve what the user typed to a sweep id: an id, the beginning of one, or `latest`.

This module imports nothing slow, because shell completion runs it on every key press.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from nodesweep.cli.command_line import as_typed
from nodesweep.cli.output import print_event
from nodesweep.scaling import names

_MOST_NAMED = 10
_EXAMPLE = "local-20261120191500-1a2b3c4d"


def known_sweeps(directory: Path) -> list[str]:
    """Return the sweeps with a record or report in a reports directory, newest first.

    Sweeps are sorted by the start time in their ids; a missing directory has none.

    Raises:
        OSError: The directory cannot be read.
    """
    if not directory.is_dir():
        return []
    found = [
        folder.name
        for folder in directory.iterdir()
        if names.is_sweep_id(folder.name) and _may_be_sweep(folder)
    ]
    return sorted(found, key=names.sweep_age_key, reverse=True)


def _may_be_sweep(folder: Path) -> bool:
    """Return True for sweep folders, and for unreadable ones, which are reported when read."""
    try:
        return any((folder / file).is_file() for file in (names.SWEEP_RECORD, names.REPORT_JSON))
    except OSError:
        return True


def match_sweep(typed: str, sweeps: Sequence[str], where: str) -> str:
    """Return the sweep id that `typed` refers to; a complete id need not be a candidate.

    Args:
        typed: An id, `latest`, or the unambiguous beginning of an id.
        sweeps: Candidates, newest first.
        where: Location of the candidates, as worded in the message.

    Raises:
        click.BadParameter: No candidate or several candidates match; the message lists them.
    """
    if names.is_sweep_id(typed):
        return typed
    if typed == names.LATEST:
        if not sweeps:
            raise click.BadParameter(
                f"{names.LATEST}: no sweep {where}; start one with"
                f" `{as_typed('nodesweep run CONFIG')}`, or set the reports directory with --output"
            )
        return sweeps[0]
    found = [sweep for sweep in sweeps if typed and sweep.startswith(typed)]
    if len(found) == 1:
        return found[0]
    if found:
        raise click.BadParameter(
            f"{typed!r} matches {len(found)} sweep ids {where}: {_listed(found)}; type more "
            "characters"
        )
    there = (
        f"sweeps there, newest first: {_listed(sweeps)}" if sweeps else "there are no sweeps there"
    )
    raise click.BadParameter(
        f"{typed!r} is neither a sweep id nor the beginning of one {where}; {there}. Ids look "
        f"like {_EXAMPLE}; `{names.LATEST}` is the newest"
    )


def resolve_sweep_id(typed: str, config: Path | None, output: Path | None) -> str:
    """Return the sweep id given to a command, and print it on stderr if it was abbreviated.

    Candidates come from the reports directory of --output, of --config, or ./reports.

    Raises:
        click.BadParameter: The text does not match exactly one sweep.
        ConfigError: The config cannot be loaded.
    """
    if names.is_sweep_id(typed):
        return typed
    directory = reports_directory(config, output)
    return announce_match(typed, match_sweep(typed, known_sweeps(directory), f"in {directory}"))


def resolve_resume_id(typed: str, directory: Path, is_mine: Callable[[str], bool]) -> str:
    """Return the sweep id given to --resume; an abbreviation must match a sweep of the config.

    Args:
        typed: Text that the user typed.
        directory: Reports directory.
        is_mine: Returns True for sweeps of the config being run.
    """
    mine = [sweep for sweep in known_sweeps(directory) if is_mine(sweep)]
    return announce_match(typed, match_sweep(typed, mine, f"of this config in {directory}"))


def reports_directory(config: Path | None, output: Path | None) -> Path:
    """Return the reports directory: --output, the config's report.directory, or ./reports."""
    if output is not None or config is None:
        return output or Path("reports")
    from nodesweep.cli.inputs import read_config

    return Path(read_config(config).report.directory)


def announce_match(typed: str, sweep: str) -> str:
    """Return the sweep id, and print it if the user typed something else."""
    if typed != sweep:
        print_event("sweep-meant", f"{typed} is sweep {sweep}", typed=typed, sweep=sweep)
    return sweep


def complete_sweep(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete sweep ids of --output or ./reports, and `latest`, for the shell.

    The config of --config is not read, because that would take seconds.
    """
    directory = context.params.get("output") or Path("reports")
    try:
        sweeps = known_sweeps(Path(directory))
    except OSError:  # a shell shows no messages during completion
        return []
    return [
        CompletionItem(word)
        for word in (*sweeps, *([names.LATEST] if sweeps else []))
        if word.startswith(incomplete)
    ]


def complete_sweep_or_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete sweep ids, or files if no sweep matches."""
    found = complete_sweep(context, parameter, incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def _listed(sweeps: Sequence[str]) -> str:
    left = len(sweeps) - _MOST_NAMED
    return ", ".join(sweeps[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")
