"""Texts stripped of what differs between runs, for comparison with snapshots."""

from __future__ import annotations

import re

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PYDANTIC_LINK = re.compile(r"\n +For further information visit \S+")  # contains pydantic's version


def plain(text: object, **names: object) -> str:
    """Return the text with each value replaced by its name in angle brackets.

    Colours and pydantic's links to its documentation are dropped. Longer values are replaced
    first, so that a file in a folder is not taken for the folder.

    Example:
        `plain(result.output, config=path)` turns `/tmp/x/a.yaml: no such file` into
        `<config>: no such file`.
    """
    stable = PYDANTIC_LINK.sub("", ANSI.sub("", str(text)))
    for name, value in sorted(names.items(), key=lambda item: -len(str(item[1]))):
        stable = stable.replace(str(value), f"<{name}>")
    return stable
