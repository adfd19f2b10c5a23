"""Split the bytes of a table of measured times into a data frame of text cells."""

from __future__ import annotations

import csv
import io
import reprlib
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from nodesweep.scaling.measured.columns import COLUMNS

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_TABLE_BYTES = 64 * 1024 * 1024
"""Maximum size of a file, far larger than MAX_ROWS rows, so that an error can count the rows."""
MAX_ROWS = 5_000
"""Maximum number of rows: five for each job of the largest sweep that nodesweep runs."""
HEAD_BYTES = 64 * 1024 + 1
"""Number of bytes that refuse_other_files() needs, one more than a header can have."""
MAX_PROBLEMS_SHOWN = 20
_SEPARATORS = ",;\t"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class MeasuredTableError(ValueError):
    """The table cannot be used. `problems` lists every problem; the message shows the first 20."""

    what = "table of measured times"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        lines = [*problems[:MAX_PROBLEMS_SHOWN]]
        if len(problems) > MAX_PROBLEMS_SHOWN:
            lines.append(f"… and {len(problems) - MAX_PROBLEMS_SHOWN} more")
        super().__init__("\n  ".join([f"invalid {self.what}:", *lines]))


class Cells(NamedTuple):
    """The cells of a table as unparsed text."""

    separator: str
    header_line: int
    frame: DataFrame
    """The rows with as many cells as the header, indexed by the line on which the row ends."""
    ragged: dict[int, list[str]]
    """The cells of all other rows, by the line on which the row ends."""


class _Record(NamedTuple):
    line: int
    """The line on which the row ends."""
    text: str
    cells: list[str]


def refuse_other_files(head: bytes) -> None:
    """Refuse a file that cannot be a table, given its first HEAD_BYTES bytes.

    Raises:
        MeasuredTableError: The file is empty, binary or UTF-16, or its first line is too long or
            names no known column.
    """
    if head.startswith(_UTF16_MARKS):
        raise MeasuredTableError("this is UTF-16 text; save the table as CSV in UTF-8")
    if b"\0" in head:
        raise MeasuredTableError(
            "this is not UTF-8 text (it has NUL bytes); save the table as CSV in UTF-8"
        )
    first_line = _first_line(head.decode("utf-8-sig", errors="replace"))
    if first_line is None and len(head) < HEAD_BYTES:
        raise MeasuredTableError(
            f"the table is empty; its first line must name the columns: {', '.join(COLUMNS)}"
        )
    if len(head) >= HEAD_BYTES and (first_line is None or not first_line.endswith(("\r", "\n"))):
        raise MeasuredTableError(
            f"the first line is longer than {HEAD_BYTES - 1:,} bytes; this is not a CSV table"
        )
    names = _names(next(csv.reader([first_line or ""], delimiter=_separator(first_line or ""))))
    if not any(name in COLUMNS for name in names):
        raise MeasuredTableError(
            f"the first line, {reprlib.repr(first_line)}, names no known column; known: "
            f"{', '.join(COLUMNS)}"
        )


def read_cells(table: bytes, origin: str) -> Cells:
    """Split a table into cells.

    Args:
        table: The whole file.
        origin: Name of the table in the error about too many rows.

    Raises:
        MeasuredTableError: The file is not a CSV table in UTF-8, or exceeds MAX_TABLE_BYTES or
            MAX_ROWS.
    """
    if len(table) > MAX_TABLE_BYTES:
        raise MeasuredTableError(
            f"the table is larger than the maximum of {MAX_TABLE_BYTES // 2**20} MiB"
        )
    refuse_other_files(table[:HEAD_BYTES])
    text = _decoded(table)
    separator = _separator(_first_line(text) or "")
    records = _records(text, separator)
    header = next(records)
    rows = list(islice(records, MAX_ROWS))
    if beyond := sum(1 for _ in records):
        raise MeasuredTableError(
            f"{origin} has {MAX_ROWS + beyond:,} rows; at most {MAX_ROWS:,} are allowed. Give "
            "fewer repeats of each node count, or split the table by node count and keep the "
            "rows of the smallest count in every part"
        )
    width = len(header.cells)
    even = [row for row in rows if len(row.cells) == width]
    ragged = {row.line: row.cells for row in rows if len(row.cells) != width}
    return Cells(separator, header.line, _frame([header, *even], separator), ragged)


def _frame(records: list[_Record], separator: str) -> DataFrame:
    from pandas import read_csv

    header, *rows = records
    frame = read_csv(
        io.StringIO("".join(record.text for record in records), newline=""),
        sep=separator,
        header=0,
        # a header can name a column twice, which is refused later
        names=range(len(header.cells)),
        dtype=object,
        na_filter=False,
        skipinitialspace=True,
        engine="python",
    )
    return frame.set_axis(_names(header.cells), axis=1).set_axis([row.line for row in rows])


def _decoded(table: bytes) -> str:
    try:
        return table.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = table.count(b"\n", 0, error.start) + 1
        raise MeasuredTableError(
            f"line {line}: not UTF-8 text ({error.reason}); save the table as CSV in UTF-8"
        ) from None


def _records(text: str, separator: str) -> Iterator[_Record]:
    """Yield every non-blank row, with its line and width, which read_csv does not return."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    reader = csv.reader(lines(), delimiter=separator, skipinitialspace=True, strict=True)
    line = 0
    try:
        for cells in reader:
            line = reader.line_num
            if "".join(cells).strip():
                yield _Record(line, "".join(taken), cells)
            taken.clear()
    except csv.Error as error:
        raise MeasuredTableError(
            f"the row that starts on line {line + 1} is not a valid CSV row ({error}); check it "
            "for an unclosed quote"
        ) from None


def _first_line(text: str) -> str | None:
    """Return the first non-blank line, including its line ending, or None if there is none."""
    return next((line for line in io.StringIO(text, newline="") if line.strip()), None)


def _separator(header: str) -> str:
    return max(_SEPARATORS, key=header.count)


def _names(header: list[str]) -> list[str]:
    return [name.strip().lower() for name in header]
