"""The bytes of a table of measured times -> its header and rows, still as text,
or the reason why they are no CSV.
"""

from __future__ import annotations

import csv
import io
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from nodesweep.scaling.measured.columns import COLUMNS

MAX_TABLE_BYTES = 64 * 1024 * 1024
"""The largest file that is read: far more than MAX_ROWS take, so that a table of too many rows can
be told how many.
"""
MAX_ROWS = 5_000
"""Rows in one table: five for each job of the largest sweep that nodesweep itself runs."""
HEAD_BYTES = 64 * 1024 + 1
"""What refuse_other_files needs of a file: a longer first line is no header."""
MAX_PROBLEMS_SHOWN = 20
_SEPARATORS = ",;\t"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class MeasuredTableError(ValueError):
    """The table can't be used. `problems` has every one found; the message shows the first 20."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        lines = [*problems[:MAX_PROBLEMS_SHOWN]]
        if len(problems) > MAX_PROBLEMS_SHOWN:
            lines.append(f"… and {len(problems) - MAX_PROBLEMS_SHOWN} more")
        super().__init__("\n  ".join(["the table of measured times can't be used:", *lines]))


@dataclass(frozen=True)
class Grid:
    """A table's header and its rows, each with the number of the line it ends on.

    A row may have too many cells or too few.
    """

    separator: str
    header_line: int
    header: list[str]
    rows: list[tuple[int, list[str]]]


def refuse_other_files(head: bytes) -> None:
    """Raise MeasuredTableError where a file's first HEAD_BYTES (or all of it) can't begin a table
    of measured times.
    """
    if head.startswith(_UTF16_MARKS):
        raise MeasuredTableError("this is UTF-16 text; save the table as CSV in UTF-8")
    if b"\0" in head:
        raise MeasuredTableError(
            "this is no text in UTF-8 (it has NUL bytes); save the table as CSV in UTF-8"
        )
    first_line = _first_line(head.decode("utf-8-sig", errors="replace"))
    if first_line is None and len(head) < HEAD_BYTES:
        raise MeasuredTableError(
            f"the table is empty; its first line names the columns: {', '.join(COLUMNS)}"
        )
    if len(head) >= HEAD_BYTES and (first_line is None or not first_line.endswith(("\r", "\n"))):
        raise MeasuredTableError(
            f"no first line within {HEAD_BYTES - 1:,} bytes; this is not a CSV table"
        )
    names = _names(next(csv.reader([first_line or ""], delimiter=_separator(first_line or ""))))
    if not any(name in COLUMNS for name in names):
        raise MeasuredTableError(
            f"the first line, {reprlib.repr(first_line)}, names no column of ours:"
            f" {', '.join(COLUMNS)}"
        )


def read_grid(table: bytes, origin: str) -> Grid:
    """Split the table into cells; raises MeasuredTableError where it is not one,
    or larger than the limits.

    `origin` names the table to whoever gave it too many rows.
    """
    if len(table) > MAX_TABLE_BYTES:
        raise MeasuredTableError(
            f"the table is larger than {MAX_TABLE_BYTES // 2**20} MiB, the most that is read"
        )
    refuse_other_files(table[:HEAD_BYTES])
    text = _decoded(table)
    separator = _separator(_first_line(text) or "")
    rows = _rows(text, separator)
    header_line, header = next(rows)
    grid = Grid(separator, header_line, _names(header), list(islice(rows, MAX_ROWS)))
    if beyond := sum(1 for _ in rows):
        raise MeasuredTableError(
            f"{origin} has {MAX_ROWS + beyond:,} rows, at most {MAX_ROWS:,} are read: give fewer"
            " repeats of each node count, or split the table by node counts and keep the rows of"
            " the smallest count in every part"
        )
    return grid


def _decoded(table: bytes) -> str:
    try:
        return table.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = table.count(b"\n", 0, error.start) + 1
        raise MeasuredTableError(
            f"line {line}: not UTF-8 text ({error.reason}); save the table as CSV in UTF-8"
        ) from None


def _rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(number of the line it ends on, cells) of every row that is not blank."""
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True
    )
    line = 0
    try:
        for cells in reader:
            line = reader.line_num
            if "".join(cells).strip():
                yield line, cells
    except csv.Error as error:
        raise MeasuredTableError(
            f"the row that starts in line {line + 1} is no CSV row,"
            f" is a quote not closed? ({error})"
        ) from None


def _first_line(text: str) -> str | None:
    """The first line that is not blank, with its line end."""
    return next((line for line in io.StringIO(text, newline="") if line.strip()), None)


def _separator(header: str) -> str:
    return max(_SEPARATORS, key=header.count)


def _names(header: list[str]) -> list[str]:
    return [name.strip().lower() for name in header]
