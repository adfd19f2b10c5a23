"""Reassemble the lines of Python's fault handler, which reports crashes of native code.

The handler writes word by word, and the SageMaker toolkit logs each piece that it reads as a line:
`File`, `"`, `/opt/ml/code/train.py`, `"`, `, line`, `3`, `in`, `step` (observed with
sagemaker-training 5.1.4 on Python 3.11).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BEGIN = "Fatal Python error:"
_MOST_PIECES = 2000
_PIECE = re.compile(
    r"\s*(?:Aborted|Segmentation fault|Bus error|Illegal instruction|Floating[- ]point exception"
    r"|(?:Current t|T)hread 0x.*|[0-9a-f]{8,16}|\[.*\]|\(most recent call first\):|<.*>"
    r'|File\b.*|"|/.*|[\w./-]+|, line\b.*|Extension modules:.*|\.\.\.|)\s*'
)
_THREAD = re.compile(
    r"\s*((?:Current t|T)hread 0x)\s*(\w+)\s*((?:\[[^\]]*\])?)\s*(\(most recent call first\):)"
)
_FRAME = re.compile(r'\s*File\s*"\s*([^"]+?)\s*"\s*,\s*line\s+(\d+)\s+in\s+(\S+)')


class Dump(NamedTuple):
    """The reassembled lines of a dump, and its position in the log from `begin` up to `end`."""

    begin: int
    end: int
    lines: tuple[str, ...]


def find_dumps(lines: Sequence[str]) -> Iterator[Dump]:
    """Yield the dumps in the log of one node, whose lines have no prefix of the node."""
    at = 0
    while at < len(lines):
        if not lines[at].startswith(BEGIN):
            at += 1
            continue
        end = at + 1
        while end < min(len(lines), at + _MOST_PIECES) and _PIECE.fullmatch(lines[end]):
            end += 1
        yield Dump(at, end, _whole(lines[at:end]))
        at = end


def _whole(pieces: Sequence[str]) -> tuple[str, ...]:
    text = " ".join(piece.strip() for piece in pieces)
    text = _THREAD.sub(r"\n\1\2 \3\4\n", text)
    text = _FRAME.sub(r'\n  File "\1", line \2 in \3\n', text)
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())
