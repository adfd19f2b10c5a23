"""Strip what launchers, loggers, terminals and progress bars add to a log line.

    >>> [line.text for line in plain_lines("[1,mpirank:0,algo-1]<stdout>:INFO:root:step=3;")]
    ['step=3;']

All code that reads the log of a training job uses plain_lines(). Only metric definitions are first
matched against the raw line (nodesweep/scaling/outcome/logged.py), because they can contain a mark
or a prefix, and because CloudWatch searches raw lines.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# SageMaker's log has control characters as #OCTAL: "#015" for a carriage return, "#033[32m".
_COLOURS = re.compile(
    r"(?:\x1b|#033)\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]"
)
_RETURN = re.compile(r"[\r\x08]+|(?:#015|#010)+")
# A bar of tqdm has no line end: "Epoch 1: 40%|████ | 4/10 [00:03<00:05, 1.1it/s]" or "4it [00:03]".
_BAR = re.compile(r"[^|\[\]]{0,200}(?:\d%\|[^|]{0,400}\|[^|\[\]]{0,80}|\dit )\[\d+:\d\d[^\]]*\]")
_MARK = re.compile(
    # mpirun -tag-output, horovodrun and Open MPI 5, with or without a timestamp; the toolkit adds
    # the node: "[1,0]<stdout>:", "[0]<stderr>:", "[1,mpirank:0,algo-1]<stdout>:"
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4} ?)?"
    r"\[(?:[\w.-]+@)?(?:\d+,)?(?:mpirank:)?(?P<mpi>\d{1,9})"
    r"(?:,(?:(?P<node>algo-[1-9]\d*)|[\w.-]+))?\]<std(?:out|err|diag)>: ?"
    r"|<std(?:out|err|diag)>:? ?"
    # torch 2.3 or later: "[rank1]:"; torchrun --tee, by role and local rank: "[default0]:"
    r"|\[(?P<role>[A-Za-z_]\w*?)(?P<number>\d{1,9})\]: ?"
    r"|\[[Rr]ank[ :]+(?P<rank>\d{1,9})\]:? ?"  # DeepSpeed, Lightning
    r"|(?P<host>algo-[1-9]\d*): ?"  # pdsh
    r"|\((?P<ray>\w+ pid=\d+(?:, ip=[\d.:a-f]+)?)\) "
)
_OPEN_MPI_4 = r"\[\d+,(?:mpirank:)?\d+(?:,[\w.-]+)?\]<std(?:out|err|diag)>:"
# Open MPI 4 can join the lines of two ranks: "step=1;[1,1]<stdout>:step=1;"
_NEXT_RANK = re.compile(rf"(?<=[^\s:])(?<!:\d\d \d{{4}})(?={_OPEN_MPI_4})")
_ONE_RANK = re.compile(_OPEN_MPI_4)
_LEVEL = r"TRACE|DEBUG|INFO|SUCCESS|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL"
_TIME = (
    r"(?:(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.]\d\d(?:[-/.]\d\d(?:\d\d)?)?)[T ,] ?)?"
    r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?: [AP]M)?(?:Z| UTC| ?[+-]\d\d:?\d\d)?"
)
_SEPARATOR = r"(?:\s*(?:[:|]+|>>|-+(?=\s))\s?|\s+|$)"
# The start of a logger's prefix. No part of a prefix has a "=", so that no name=value is lost.
_HEAD = re.compile(
    r"\s*(?:"
    r"(?P<letter>[DIWEF])\d{4}(?:\d{4})? \d\d:\d\d:\d\d(?:\.\d+)? +(?:\d+ +)?[^\s=\]]+\] ?"  # absl
    rf"|\[(?=\s*(?P<bracketed>(?i:{_LEVEL}))\b|[^\[\]=]{{0,160}}{_TIME})[^\[\]=]{{1,160}}\](?:{_SEPARATOR})?"
    rf"|{_TIME}{_SEPARATOR}"
    rf"|(?P<level>{_LEVEL})(?![\w.=-]){_SEPARATOR}"
    rf"|[\w.]+(?:\s*[-:|]\s*| +)(?=(?:{_LEVEL})\s*[-:|])"  # "root - INFO - …"
    r")"
)
# The rest of a prefix: text in brackets, or the name of a logger or a code location with a
# separator, unless a number or an error follows ("step: 3", "ValueError: no").
_BRACKETS = re.compile(rf"\s*(?:\[[^\[\]=]{{0,160}}\]|\{{[^{{}}=]{{0,160}}\}})(?:{_SEPARATOR})?")
_NO_ERROR = r"(?!\w*(?:Error|Exception|Interrupt|Exit)\b)"
_NAME = re.compile(
    rf"{_NO_ERROR}[\w./<>-]+(?::{_NO_ERROR}[\w./<>-]+)*"
    r"(?:: ?|\] ?| +(?:-|\||>>) )(?!\s*(?:[-+.\d]|error:))"
)
_MOST_NAMES, _MOST_PARTS = 2, 12
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}


class PlainLine(NamedTuple):
    """The content of a line, or of a part of it between two carriage returns.

    Attributes:
        text: the text without marks of launchers and prefixes of loggers.
        unmarked: the text without marks, but with the prefix.
        speaker: the process within the log of a node; "" without a mark.
        rank: the global rank in a mark; None if there is none.
        level: the level in the prefix of a logger, in upper case; None if there is none.
        host: the node in a mark, such as algo-2; None if there is none.
    """

    text: str
    unmarked: str
    speaker: str = ""
    rank: int | None = None
    level: str | None = None
    host: str | None = None

    @property
    def is_below_error(self) -> bool:
        """True if the logger's level is below ERROR."""
        return self.level is not None and self.level not in ("ERROR", "CRITICAL", "FATAL")


def plain_lines(line: str) -> tuple[PlainLine, ...]:
    """Return the parts of a log line, such as its progress bars; there is at least one part."""
    parts = []
    for of_a_rank in _NEXT_RANK.split(without_colours(line)):
        marks = _marks(of_a_rank, 0)
        for piece in _RETURN.split(of_a_rank[marks.end :]):
            bar = _BAR.match(piece)
            for part in (piece[: bar.end()], piece[bar.end() :]) if bar else (piece,):
                if part.strip():
                    parts.append(_read(part, marks))
    return tuple(parts) or (PlainLine("", "", marks.speaker, marks.rank, None, marks.host),)


def fragments(line: str) -> list[tuple[str, str]]:
    """Return the (mark, text) of each fragment of a line, split at the marks of Open MPI 4.

    The first fragment can lack a mark, which is then "". A mark inside a line shows that mpirun
    switched to the pipe of a different rank, possibly within a number. The interrupted text
    continues in the next fragment with the same mark.
    """
    parts = []
    for part in _NEXT_RANK.split(line):
        mark = _ONE_RANK.match(part)
        parts.append((mark[0], part[mark.end() :]) if mark else ("", part))
    return parts


def without_colours(line: str) -> str:
    """Return the line without the escape sequences of terminals."""
    return _COLOURS.sub("", line) if "\x1b" in line or "#033" in line else line


def rank_of(line: str) -> int | None:
    """Return the global rank in the mark of a line; None if the line has no such mark."""
    return plain_lines(line)[-1].rank


def is_of_mpirun(line: str) -> bool:
    """Return True if mpirun marked the line, whose log has the lines of all nodes' ranks."""
    found = _MARK.match(line)
    return found is not None and found["mpi"] is not None


class _Marks(NamedTuple):
    """The process, the global rank and the node in marks, and the index of their end."""

    speaker: str
    rank: int | None
    host: str | None
    end: int


_NO_MARKS = _Marks("", None, None, 0)


def _read(part: str, marks: _Marks) -> PlainLine:
    marks = _marks(part, 0, marks)
    unmarked = part[marks.end :]
    level = None
    at = names = 0
    for _ in range(_MOST_PARTS):
        found = _HEAD.match(unmarked, at)
        if found:
            word = found["level"] or found["bracketed"]
            level = word.upper() if word else _LETTERS.get(found["letter"] or "", level)
        elif at and (found := _BRACKETS.match(unmarked, at)) is None and names < _MOST_NAMES:
            found, names = _NAME.match(unmarked, at), names + 1
        marks = _marks(unmarked, at if found is None else found.end(), marks)
        if marks.end == at:
            break
        at = marks.end
    return PlainLine(unmarked[at:], unmarked, marks.speaker, marks.rank, level, marks.host)


def _marks(text: str, at: int, before: _Marks = _NO_MARKS) -> _Marks:
    """Return the marks before the text, followed by those that begin at `at`."""
    speaker, rank, host, _ = before
    while found := _MARK.match(text, at):
        at = found.end()
        number = found["mpi"] or found["rank"]
        host = found["node"] or found["host"] or host
        if found["role"] == "rank":
            number = found["number"]
        if number is not None:
            speaker, rank = f"{speaker}/{number}", int(number)
        else:
            who = found["host"] or found["ray"] or f"{found['role'] or ''}{found['number'] or ''}"
            speaker = f"{speaker}/{who}" if who else speaker
    return _Marks(speaker, rank, host, at)
