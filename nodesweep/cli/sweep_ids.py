"""The sweeps that this machine knows, and which of them is meant by what was typed: a sweep id, the
beginning of one, or `latest`. Imports nothing heavy, since completion asks at every key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from nodesweep.cli.output import say
from nodesweep.cli.own_name import as_typed
from nodesweep.scaling import names

_MOST_NAMED = 10
_EXAMPLE = "local-20261120191500-1a2b3c4d"


def known_sweeps(directory: Path) -> list[str]:
    """The sweeps with a record or a report in a reports directory, by the start in their ids, the
    newest first; none where there is no such directory.

    Raises OSError for a directory that can't be read.
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
    """Return True for a folder that can't be looked into, too: who reads it will say why."""
    try:
        return any((folder / file).is_file() for file in (names.SWEEP_RECORD, names.REPORT_JSON))
    except OSError:
        return True


def match_sweep(typed: str, sweeps: Sequence[str], where: str) -> str:
    """The sweep id that `typed` means: a whole id as it is, known or not; else `latest`, or the
    beginning of one id alone among `sweeps`, the newest first.

    Raises click.BadParameter that names what there is `where` the sweeps were looked for.
    """
    if names.is_sweep_id(typed):
        return typed
    if typed == names.LATEST:
        if not sweeps:
            raise click.BadParameter(
                f"{names.LATEST}: there is no sweep {where}; start one with"
                f" `{as_typed('nodesweep run CONFIG')}`, or say with --output where the reports are"
            )
        return sweeps[0]
    found = [sweep for sweep in sweeps if typed and sweep.startswith(typed)]
    if len(found) == 1:
        return found[0]
    if found:
        raise click.BadParameter(
            f"{typed!r} is the beginning of {len(found)} sweep ids {where}: {_listed(found)};"
            " type more of the one that is meant"
        )
    there = f"sweeps there, newest first: {_listed(sweeps)}" if sweeps else "no sweep is there"
    raise click.BadParameter(
        f"{typed!r} is not a sweep id, nor the beginning of one {where}; {there}."
        f" Ids look like {_EXAMPLE}; `{names.LATEST}` is the newest"
    )


def sweep_meant(typed: str, config: Path | None, output: Path | None) -> str:
    """The sweep id that a command is given, in the reports directory of --output, else of --config,
    else ./reports. What is no whole id is spelled out on stderr.

    Raises click.BadParameter as match_sweep() does, and ConfigError of the config.
    """
    if names.is_sweep_id(typed):
        return typed
    directory = reports_directory(config, output)
    return said(typed, match_sweep(typed, known_sweeps(directory), f"in {directory}"))


def sweep_to_resume(typed: str, directory: Path, is_mine: Callable[[str], bool]) -> str:
    """The sweep id that --resume is given; what is no whole id means a sweep of the config that is
    run, as `is_mine` tells.
    """
    mine = [sweep for sweep in known_sweeps(directory) if is_mine(sweep)]
    return said(typed, match_sweep(typed, mine, f"of this config in {directory}"))


def reports_directory(config: Path | None, output: Path | None) -> Path:
    """Where the reports are: --output, else the config's report.directory, else ./reports."""
    if output is not None or config is None:
        return output or Path("reports")
    from nodesweep.cli.inputs import read_config

    return Path(read_config(config).report.directory)


def said(typed: str, sweep: str) -> str:
    """The sweep id, which is shown where another word was typed for it."""
    if typed != sweep:
        say("sweep-meant", f"{typed} is sweep {sweep}", typed=typed, sweep=sweep)
    return sweep


def complete_sweep(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """For the shell: the sweeps of --output, else of ./reports, and `latest` where there is one.

    A config that --config names is not read: that would take seconds.
    """
    directory = context.params.get("output") or Path("reports")
    try:
        sweeps = known_sweeps(Path(directory))
    except OSError:  # a shell shows no message while it completes
        return []
    return [
        CompletionItem(word)
        for word in (*sweeps, *([names.LATEST] if sweeps else []))
        if word.startswith(incomplete)
    ]


def complete_sweep_or_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """complete_sweep(), and files where no sweep begins so."""
    found = complete_sweep(context, parameter, incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def _listed(sweeps: Sequence[str]) -> str:
    left = len(sweeps) - _MOST_NAMED
    return ", ".join(sweeps[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")
