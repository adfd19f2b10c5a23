"""Texts without what differs from run to run, to compare them with snapshots."""

from __future__ import annotations

import re

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(text: object, **names: object) -> str:
    """Return the text without colours, with each value replaced by its name in angle brackets.

    Longer values are replaced first, so that a file in a folder is not taken for the folder.

    Example:
        `plain(result.output, config=path)` turns `/tmp/x/a.yaml: no such file` into
        `<config>: no such file`.
    """
    without_colours = ANSI.sub("", str(text))
    for name, value in sorted(names.items(), key=lambda item: -len(str(item[1]))):
        without_colours = without_colours.replace(str(value), f"<{name}>")
    return without_colours
