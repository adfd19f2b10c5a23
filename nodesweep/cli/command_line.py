"""The command-line prefix that started this process, used to spell commands in messages."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from functools import lru_cache
from pathlib import Path

NAME = "nodesweep"
COMMANDS = (
    "run", "plan", "requests", "collect", "report", "list", "show", "open", "logs", "stop",
    "compare", "history", "predict", "init", "config", "doctor", "local",
    "conformance", "prices",
)  # fmt: skip
_MODULE = ("-m", "nodesweep")
_ANY_RUN = f"{NAME} run CONFIG"
_TOLD = re.compile(rf"(?<![\w./-])(?<!-m ){NAME} (?=(?:{'|'.join(COMMANDS)})\b)")


def command_words() -> list[str]:
    """Return the words that start this program on a command line.

    They are `nodesweep` if a shell finds it by that name, otherwise the path it was started by, or
    the interpreter with `-m nodesweep`.
    """
    return list(_words(sys.argv[0], os.environ.get("PATH")))


def as_typed(text: str, run: str | None = None) -> str:
    """Return the text with `nodesweep` commands spelled the way this process was started.

    Args:
        text: The message.
        run: Command line of the current run, which replaces `nodesweep run CONFIG`.
    """
    if run is not None:
        text = text.replace(_ANY_RUN, run)
    words = command_words()
    if words == [NAME]:
        return text
    own = shlex.join(words)
    return _TOLD.sub(lambda _: f"{own} ", text)


@lru_cache(maxsize=4)
def _words(started: str, path: str | None) -> tuple[str, ...]:
    of = Path(started)
    if of.parts[-2:] == (NAME, "__main__.py"):
        return sys.executable, *_MODULE
    if of.name != NAME:  # e.g. a worker's process or a test
        return (NAME,)
    found = shutil.which(NAME, path=path)
    is_found = found is not None and os.path.realpath(found) == os.path.realpath(started)
    return (NAME,) if is_found else (started,)
