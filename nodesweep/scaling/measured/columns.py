"""The columns of a table of measured times, with a reader for the cells of each column.

A reader takes the text of a cell and returns the value, or None if the cell is blank. It raises
BadCell if it cannot read the cell. docs/measured-tables.md describes the columns for users.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

TIME_COLUMNS = ("train_seconds", "samples_per_second")
# Wider than any real training run: 1 microsecond to 31 years, a million nodes.
_SECONDS = (1e-6, 1e9)
_SAMPLES_PER_SECOND = (1e-9, 1e12)
_USD = (1e-9, 1e9)
_MAX_COUNT = 1_000_000
_MAX_SAMPLES = 1_000_000_000_000
_MAX_TEXT = 64
_DATE_CHARACTERS = len("2026-11-26")
_STATUSES = {"completed": "Completed", "failed": "Failed", "stopped": "Stopped"}
_POLICIES = ("fixed_global", "fixed_per_replica")
# float() would also accept "1_0", "infinity" and digits of non-Latin scripts.
_BLANKS = " \t\r\n\u00a0"
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)

Reader = Callable[[str], Any]


class BadCell(ValueError):
    """An unreadable cell; the message says what was expected."""


def number(cell: str) -> float | None:
    """Parse a cell as a finite number; return None if it is blank.

    Raises:
        BadCell: The cell contains a unit, a thousands separator or other characters.
    """
    if _NUMBER.fullmatch(cell) and math.isfinite(value := float(cell)):
        return value
    stripped = cell.strip(_BLANKS)
    if not stripped:
        return None
    if stripped == cell:
        raise BadCell(
            "expected a plain finite number such as 39.2, without a unit or thousands separators"
        )
    return number(stripped)


def positive_reader(unit: str, bounds: tuple[float, float]) -> Reader:
    """Return a reader for numbers within `bounds`, (minimum, maximum) in `unit`."""
    low, high = bounds

    def read(cell: str) -> float | None:
        value = number(cell)
        if value is not None and not low <= value <= high:
            raise BadCell(f"expected {unit} from {low:g} to {high:g}")
        return value

    return read


def whole_reader(maximum: int, required: bool = False) -> Reader:
    """Return a reader for whole numbers from 1 to `maximum`; it accepts 2.0 as 2."""

    def read(cell: str) -> int | None:
        value = number(cell)
        if value is None and not required:
            return None
        if value is None or not value.is_integer() or not 1 <= value <= maximum:
            raise BadCell(f"expected a whole number from 1 to {maximum:,}")
        return int(value)

    return read


def status(cell: str) -> str:
    """Parse a status, which is case-insensitive; a blank cell means Completed."""
    found = _STATUSES.get(cell.strip(_BLANKS).lower() or "completed")
    if found is None:
        raise BadCell(f"allowed: {', '.join(_STATUSES.values())}")
    return found


def started_at(cell: str) -> str | None:
    """Return a date and time in ISO 8601 and UTC, or None if the cell is blank.

    A time without an offset is assumed to be in UTC.
    """
    cell = cell.strip(_BLANKS)
    if not cell:
        return None
    try:
        at = datetime.fromisoformat(cell)
        at = at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        at = None
    if at is None or len(cell) <= _DATE_CHARACTERS or not 1970 < at.year < 9999:
        raise BadCell("expected a date and time such as 2026-11-26T09:30:00Z")
    return at.isoformat()


def batch_policy(cell: str) -> str | None:
    """Return the batch policy in a cell, or None if the cell is blank."""
    cell = cell.strip(_BLANKS)
    if cell and cell not in _POLICIES:
        raise BadCell(f"allowed: {', '.join(_POLICIES)}")
    return cell or None


def text(cell: str) -> str | None:
    """Return the text of a cell, or None if the cell is blank.

    Raises:
        BadCell: The text is too long or contains control characters, which could end up in
            terminals and files.
    """
    cell = cell.strip(_BLANKS)
    if not cell.isprintable() or len(cell) > _MAX_TEXT:
        raise BadCell(f"expected at most {_MAX_TEXT} characters without control characters")
    return cell or None


COLUMNS: dict[str, Reader] = {
    "nodes": whole_reader(_MAX_COUNT, required=True),
    "train_seconds": positive_reader("seconds", _SECONDS),
    "samples_per_second": positive_reader("samples per second", _SAMPLES_PER_SECOND),
    "repeat": whole_reader(_MAX_COUNT, required=True),
    "started_at": started_at,
    "billable_seconds": positive_reader("seconds", _SECONDS),
    "cost_usd": positive_reader("USD", _USD),
    "instance_type": text,
    "region": text,
    "status": status,
    "batch_policy": batch_policy,
    "global_batch_size": whole_reader(_MAX_SAMPLES),
    "world_size": whole_reader(_MAX_COUNT),
    "final_metric": number,
}
TEXT_COLUMNS = frozenset({"started_at", "instance_type", "region", "status", "batch_policy"})


def header_problems(names: Sequence[str]) -> list[str]:
    """Return the problems of a header with these lower-case names, or [] if it is valid."""
    problems = [
        f"unknown column {quoted(name)}{_meant(name)}; allowed: {', '.join(COLUMNS)}"
        for name in names
        if name not in COLUMNS
    ]
    problems += [
        f"column {name!r} appears {names.count(name)} times"
        for name in dict.fromkeys(names)
        if name in COLUMNS and names.count(name) > 1
    ]
    if "nodes" not in names:
        problems.append("no column 'nodes', which has the number of nodes of each run")
    times = [name for name in TIME_COLUMNS if name in names]
    if not times:
        problems.append(f"no time column; give one of {', '.join(TIME_COLUMNS)}")
    if len(times) > 1:
        problems.append(f"columns {' and '.join(times)} are both present; give only one of them")
    return problems


def with_decimal_comma(read: Reader, comma_line: int) -> Reader:
    """Return a reader for numbers with a decimal comma; `comma_line` is the first line with one.

    A dot is refused, since it could be a decimal mark or a thousands separator.
    """

    def read_comma(cell: str) -> Any:
        if "." in cell:
            raise BadCell(
                f"a dot is ambiguous, since line {comma_line} has a decimal comma; use the same "
                "decimal mark in the whole table and no thousands separators"
            )
        return read(cell.replace(",", ".", 1))

    return read_comma


def quoted(cell: str) -> str:
    """Quote a cell, escape its control characters, and shorten it if it is long."""
    return reprlib.repr(cell)


def _meant(name: str) -> str:
    nearest = difflib.get_close_matches(name[:_MAX_TEXT], COLUMNS, n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""
