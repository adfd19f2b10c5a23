"""A table of measured times (CSV) -> JobOutcomes, so that the analysis serves anyone's numbers.

Columns: nodes, train_seconds; optional repeat, billable_seconds, instance_type, status. Comma, semicolon or tab
separated; in a semicolon table a comma is the decimal mark, as spreadsheets with that separator write it.
"""

from __future__ import annotations

import csv
import io
import re
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from scaling.outcome import Clocks, JobOutcome

REQUIRED_COLUMNS = ("nodes", "train_seconds")
OPTIONAL_COLUMNS = ("repeat", "billable_seconds", "instance_type", "status")
MAX_PROBLEMS_SHOWN = 20
# Beyond these no training run was ever measured: 1 microsecond to 31 years, a million nodes.
_MIN_SECONDS, _MAX_SECONDS = 1e-6, 1e9
_MAX_COUNT = 1_000_000
_STATUSES = {"completed": "Completed", "failed": "Failed", "stopped": "Stopped"}
# float() also takes "1_0", other scripts' digits and "infinity"; a measured number is none of these.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


class MeasuredTableError(ValueError):
    """The table can't be used. `problems` has every one found; the message shows the first 20."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        lines = [*problems[:MAX_PROBLEMS_SHOWN]]
        if len(problems) > MAX_PROBLEMS_SHOWN:
            lines.append(f"… and {len(problems) - MAX_PROBLEMS_SHOWN} more")
        super().__init__("\n  ".join(["the table of measured times can't be used:", *lines]))


@dataclass(frozen=True)
class _Row:
    """One row's fields by column, and the number of the line it ends on."""

    line: int
    fields: Mapping[str, str]
    decimal_comma: bool


class _BadField(ValueError):
    pass


def read_measured(table: str | bytes) -> list[JobOutcome]:
    """Read the table; raises MeasuredTableError with every bad row's line number and reason."""
    problems: list[str] = []
    outcomes: list[JobOutcome] = []
    seen: dict[tuple[int, int], int] = {}
    rows_at: Counter[int] = Counter()
    for row in _rows(_text(table), problems):
        try:
            outcome = _outcome(row, rows_at)
            first = seen.setdefault((outcome.nodes, outcome.repeat), row.line)
            if first != row.line:
                raise _BadField(
                    f"nodes {outcome.nodes}, repeat {outcome.repeat} stands in line {first} already; "
                    "number the repeats, or leave the column out"
                )
        except _BadField as error:
            problems.append(f"line {row.line}: {error}")
            continue
        outcomes.append(outcome)
    problems += _table_problems(outcomes) if not problems else []
    if problems:
        raise MeasuredTableError(*problems)
    return outcomes


def _text(table: str | bytes) -> str:
    if isinstance(table, str):
        return table.removeprefix("\ufeff")
    try:
        return table.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = table.count(b"\n", 0, error.start) + 1
        _refuse(f"line {line}: not UTF-8 text ({error.reason}); save the table as CSV in UTF-8")


def _rows(text: str, problems: list[str]) -> Iterator[_Row]:
    """The data rows; blank lines are passed over, rows of the wrong length go to `problems`."""
    first_line = next((line for line in text.splitlines() if line.strip()), None)
    if first_line is None:
        _refuse(f"the table is empty; its first line names the columns: {', '.join(REQUIRED_COLUMNS)}")
    separator = max(",;\t", key=first_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    columns: list[str] | None = None
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            _refuse(f"line {reader.line_num}: not a CSV row: {error}")
        if fields is None:
            return
        if not any(field.strip() for field in fields):
            continue
        if columns is None:
            columns = _columns(fields, reader.line_num)
        elif len(fields) != len(columns):
            problems.append(f"line {reader.line_num}: {len(fields)} fields, but the header has {len(columns)}")
        else:
            stripped = {column: field.strip() for column, field in zip(columns, fields, strict=True)}
            yield _Row(reader.line_num, stripped, decimal_comma=separator == ";")


def _columns(header: list[str], line: int) -> list[str]:
    columns = [name.strip().lower() for name in header]
    allowed = REQUIRED_COLUMNS + OPTIONAL_COLUMNS
    problems = [
        f"line {line}: unknown column {_shown(name)}; allowed: {', '.join(allowed)}"
        for name in columns
        if name not in allowed
    ]
    problems += [
        f"line {line}: no column {name!r}; required: {', '.join(REQUIRED_COLUMNS)}"
        for name in REQUIRED_COLUMNS
        if name not in columns
    ]
    problems += [
        f"line {line}: column {name!r} stands {columns.count(name)} times"
        for name in dict.fromkeys(columns)
        if name in allowed and columns.count(name) > 1
    ]
    if problems:
        raise MeasuredTableError(*problems)
    return columns


def _outcome(row: _Row, rows_at: Counter[int]) -> JobOutcome:
    """One row as a JobOutcome; without a repeat column the rows of a node count are numbered. Raises _BadField."""
    nodes = _whole(row, "nodes")
    rows_at[nodes] += 1
    status_text = row.fields.get("status") or "Completed"
    status = _STATUSES.get(status_text.lower())
    if status is None:
        raise _BadField(f"status {_shown(status_text)} is unknown; allowed: {', '.join(_STATUSES.values())}")
    train_seconds = _seconds(row, "train_seconds")
    if train_seconds is None and status == "Completed":
        raise _BadField("train_seconds is empty; give the time in seconds, or a status other than Completed")
    return JobOutcome(
        nodes=nodes,
        repeat=_whole(row, "repeat") if "repeat" in row.fields else rows_at[nodes],
        attempt=1,
        job_name=f"line {row.line}",
        status=status,
        platform_kind="measured",
        instance_type=row.fields.get("instance_type") or None,
        reason=None if status == "Completed" else "given as " + status.lower(),
        clocks=Clocks(billable_seconds=_seconds(row, "billable_seconds"), train_seconds=train_seconds),
        train_clock=None if train_seconds is None else "measured",
    )


def _whole(row: _Row, column: str) -> int:
    number = _number(row, column)
    if number is None or not number.is_integer() or not 1 <= number <= _MAX_COUNT:
        raise _BadField(f"{column} is {_shown(row.fields[column])}; expected a whole number from 1 to {_MAX_COUNT:,}")
    return int(number)


def _seconds(row: _Row, column: str) -> float | None:
    number = _number(row, column)
    if number is not None and not _MIN_SECONDS <= number <= _MAX_SECONDS:
        raise _BadField(
            f"{column} is {_shown(row.fields[column])}; expected seconds above zero, at most {_MAX_SECONDS:.0e}"
        )
    return number


def _number(row: _Row, column: str) -> float | None:
    """The field as a finite number, or None where it is empty or the table has no such column."""
    field = row.fields.get(column, "")
    if not field:
        return None
    text = field.replace(",", ".", 1) if row.decimal_comma and "." not in field else field
    if not _NUMBER.fullmatch(text):
        raise _BadField(f"{column} is {_shown(field)}; expected a plain finite number such as 39.2, without a unit")
    return float(text)


def _table_problems(outcomes: list[JobOutcome]) -> list[str]:
    """What is wrong with the table as a whole, once every row is good."""
    if not any(outcome.completed for outcome in outcomes):
        return [f"no completed row among {len(outcomes)}: nothing to analyse"]
    types = sorted({outcome.instance_type for outcome in outcomes if outcome.instance_type})
    if len(types) > 1:
        return [f"instance_type: {len(types)} different ones ({', '.join(types)}); give each its own table"]
    return []


def _shown(field: str) -> str:
    """Quoted, with control characters escaped, and cut where it is long."""
    return reprlib.repr(field)


def _refuse(problem: str) -> NoReturn:
    raise MeasuredTableError(problem)
