"""Terminal output in any encoding, robust against readers that stop reading."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import Any

import click

from nodesweep.cli.command_line import as_typed

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_WIDEST = 1000
RUN_OF_CONTEXT = "nodesweep.run"
"""Key of the current run's command line in click's context."""


def escape_control_characters(text: str) -> str:
    r"""Return the text with control characters and lone surrogates escaped, e.g. \x1b or \udcff."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def print_in_any_encoding() -> None:
    """Make stdout print question marks for unencodable characters instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def open_closed_streams() -> None:
    """Open /dev/null for each standard stream that this process was started without (`>&-`).

    Otherwise Python has no stream there, and the next opened file gets the file descriptor of
    stdout.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # open() returns the lowest free descriptor, which is the stream's
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def print_text(text: str) -> None:
    """Print text with control characters escaped, since much of it comes from outside.

    If the reader stops early (`| head`), that is not an error, and the exit code is unchanged.
    """
    _print(escape_control_characters(text))


def print_notice(text: str) -> None:
    """Print a line on stderr with control characters escaped."""
    click.echo(escape_control_characters(text), err=True)


def _print(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_event(event: str, text: str, is_error: bool = False, **facts: Any) -> None:
    """Print the command's own message on stderr, spelling commands as the user types them.

    With `--log-format json`, the message is a JSON line, like the lines of a run.
    """
    text = as_typed_here(text)
    if is_json_requested():
        from nodesweep.cli.views.json_lines import line_of_command

        line = line_of_command(event, text, is_error, facts)
    else:
        line = f"nodesweep: {escape_control_characters(text)}"
    click.echo(line, err=True)


def as_typed_here(text: str) -> str:
    """Return the text with commands as the user types them, with the config of the current run."""
    context = click.get_current_context(silent=True)
    return as_typed(text, None if context is None else context.meta.get(RUN_OF_CONTEXT))


def is_json_requested() -> bool:
    """Return True if the current command was given `--log-format json`."""
    context = click.get_current_context(silent=True)
    return context is not None and context.params.get("log_format") == "json"


def print_rendered(renderable: Any, whole: bool = False) -> None:
    """Print a rich renderable at the terminal's width.

    Args:
        renderable: Any object that rich can render.
        whole: Do not limit the width if stdout is not a terminal.
    """
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console(width=None if sys.stdout.isatty() or not whole else _WIDEST)
    with console.capture() as rendered:
        # only rich may write control characters; those in the text are escaped
        parts = [
            Segment(escape_control_characters(text), style) if control is None else Segment(text)
            for text, style, control in console.render(renderable)
        ]
        console.print(Segments(parts), end="")
    _print(rendered.get().removesuffix("\n"))
