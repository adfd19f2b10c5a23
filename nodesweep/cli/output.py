"""What a command prints: on a terminal of any encoding, and to a reader that may stop reading."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import Any

import click

from nodesweep.cli.own_name import as_typed

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_WIDEST = 1000
RUN_OF_CONTEXT = "nodesweep.run"
"""Where click's context has the command of the run that is under way, as one would type it."""


def escape_control_characters(text: str) -> str:
    """The text with \\x1b in place of what a terminal would obey,
    and with \\udcff for half a character.
    """
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def print_in_any_encoding() -> None:
    """Let stdout show a question mark where its encoding lacks a character,
    rather than end the command.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def open_closed_streams() -> None:
    """Open /dev/null where this process was started without stdin, stdout or stderr (`>&-`).

    Otherwise Python has no stream there, and the next file to be opened takes the place of stdout.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # open() takes the lowest free number, that of the stream
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def print_text(text: str) -> None:
    """Print it with control characters escaped, since much of it comes from outside; a reader that
    has seen enough (`| head`) is no error and leaves the exit code as it is.
    """
    _print(escape_control_characters(text))


def print_notice(text: str) -> None:
    """A line on stderr that may hold names and words from outside."""
    click.echo(escape_control_characters(text), err=True)


def _print(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(event: str, text: str, is_error: bool = False, **facts: Any) -> None:
    """A line on stderr that is the command's own, with commands in it as one would type them; with
    `--log-format json` a JSON line, as those of a run are.
    """
    context = click.get_current_context(silent=True)
    text = as_typed(text, None if context is None else context.meta.get(RUN_OF_CONTEXT))
    if is_json_asked_for():
        from nodesweep.cli.views.json_lines import line_of_command

        line = line_of_command(event, text, is_error, facts)
    else:
        line = f"nodesweep: {escape_control_characters(text)}"
    click.echo(line, err=True)


def is_json_asked_for() -> bool:
    """Whether the command that runs was given `--log-format json`."""
    context = click.get_current_context(silent=True)
    return context is not None and context.params.get("log_format") == "json"


def print_rendered(renderable: Any, whole: bool = False) -> None:
    """Print one of rich's renderables, as wide as the terminal; `whole` lets what goes to no
    terminal be as wide as it is.
    """
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console(width=None if sys.stdout.isatty() or not whole else _WIDEST)
    with console.capture() as rendered:
        # rich writes what styles need; what the text itself holds is escaped
        parts = [
            Segment(escape_control_characters(text), style) if control is None else Segment(text)
            for text, style, control in console.render(renderable)
        ]
        console.print(Segments(parts), end="")
    _print(rendered.get().removesuffix("\n"))
