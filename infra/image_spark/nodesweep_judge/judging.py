"""Evaluates, on pandas in an executor, the checks of one file that are not proven.

Counts and examples equal those of a validation on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from .expectations import judge_on_pandas
from .layout import add_partition, holds_by_names
from .reading import ReadError, Source
from .request import Check, S3Object
from .survey import UNREADABLE, first_line, read_columns, read_csv

MAX_FRAME_BYTES = 1 << 28
"""Maximum size of a file's columns in an executor's memory, estimated at 8 bytes per value.

Above it, each check reads only its own columns.
"""
_BYTES_PER_VALUE = 8


@dataclass(frozen=True)
class Judged:
    """One file's results by check index, None for a pass; unevaluated checks are missing."""

    index: int
    unreadable: str | None = None
    rows: int = 0
    columns: tuple[str, ...] = ()
    results: dict[int, dict[str, Any] | None] = field(default_factory=dict)


def judge_parquet(
    source: Source,
    item: S3Object,
    rows: int,
    columns: list[str],
    partition: Mapping[str, Any],
    checks: Sequence[Check],
) -> Judged:
    """Evaluate checks on one Parquet object.

    Args:
        source: The bucket.
        item: The object.
        rows: Its number of rows.
        columns: Its columns.
        partition: Further columns and their values, from the folders in its name.
        checks: The checks.

    Raises:
        ReadError: The object was deleted or replaced, or access is denied.
    """
    partition = {name: value for name, value in partition.items() if name not in columns}
    columns = [*columns, *partition]
    groups = [list(checks)]
    if rows * len(_needed(checks, columns)) * _BYTES_PER_VALUE > MAX_FRAME_BYTES:
        groups = [[check] for check in checks]
    results: dict[int, dict[str, Any] | None] = {}
    try:
        for group in groups:
            frame = read_columns(source, item, _needed(group, columns), partition)
            results |= judge_on_pandas(frame, group)
    except ReadError:
        raise
    except UNREADABLE as error:
        return Judged(item.index, first_line(error))
    return Judged(item.index, None, rows, tuple(columns), results)


def certain(
    checks: Sequence[Check], columns: Sequence[str], rows: int, has_types: bool
) -> dict[int, None]:
    """Return, by index, the checks that hold because of column names and number of rows alone."""
    return {
        check.index: None
        for check in checks
        if holds_by_names((check.type, check.kwargs), check.columns, columns, rows, has_types)
    }


def judge_csv(
    source: Source, item: S3Object, partition: Mapping[str, Any], checks: Sequence[Check]
) -> Judged:
    """Evaluate checks on one CSV object, read in full because only its end settles column types.

    Raises:
        ReadError: The object was deleted or replaced, or access is denied.
    """
    try:
        frame = read_csv(source, item)
    except ReadError:
        raise
    except UNREADABLE as error:
        return Judged(item.index, first_line(error))
    columns = list(frame.columns)
    partition = {name: value for name, value in partition.items() if name not in columns}
    every = [*columns, *partition]
    results: dict[int, dict[str, Any] | None] = {**certain(checks, every, len(frame), False)}
    left = [check for check in checks if check.index not in results]
    of_schema = [check for check in left if check.of_the_schema]
    of_rows = [check for check in left if not check.of_the_schema]
    if of_schema:
        results |= judge_on_pandas(frame.iloc[:0], of_schema)
    if of_rows:
        needed = add_partition(frame, partition, _needed(of_rows, every))
        results |= judge_on_pandas(needed, of_rows)
    return Judged(item.index, None, len(frame), tuple(map(str, columns)), results)


def judge_schema(columns: Sequence[str], checks: Sequence[Check]) -> dict[int, Any]:
    """Return the results that depend on column names alone."""
    return judge_on_pandas(pd.DataFrame(columns=list(columns)), checks) if checks else {}


def row_count_holds(check: Check, rows: int) -> bool:
    """Return True if a check of the number of rows holds for certain."""
    if check.columns != ():
        return False
    kwargs = check.kwargs
    if set(kwargs) == {"value"}:
        return bool(kwargs["value"] == rows)
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    bounds = [bound for bound in (low, high) if bound is not None]
    if not set(kwargs) <= {"min_value", "max_value"} or not bounds:
        return False
    if not all(type(bound) in (int, float) for bound in bounds):
        return False
    return (low is None or low <= rows) and (high is None or rows <= high)


def _needed(checks: Sequence[Check], columns: list[str]) -> list[str]:
    needed = {name for check in checks for name in check.needed(columns)}
    return [name for name in columns if name in needed]
