"""Compare an expectation's values with a column's values in the column's type.

    frame, kwargs = comparable(frame, [("expect_column_values_to_be_in_set", {...})])

Great Expectations stores a config's values as JSON, so a decimal arrives as a float and a time in a
set as text; columns may be decimals, float32, bytes, or times of any unit and zone. Values that
cannot be compared are converted: the column into a new one next to it, the kwargs to match it;
whatever cannot be converted stays unequal, or is rejected by Great Expectations.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

_BOUNDED = frozenset(
    {
        "expect_column_values_to_be_between",
        *(
            f"expect_column_{which}_to_be_between"
            for which in ("min", "max", "mean", "median", "sum")
        ),
    }
)
_SETS = frozenset(
    {
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_not_be_in_set",
        "expect_column_distinct_values_to_be_in_set",
        "expect_column_distinct_values_to_contain_set",
        "expect_column_distinct_values_to_equal_set",
        "expect_column_most_common_value_to_be_in_set",
    }
)
_PAIRS = "expect_column_pair_values_to_be_in_set"


def comparable(
    frame: pd.DataFrame, checks: Sequence[tuple[str, Mapping[str, Any]]]
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return the frame with converted columns added, and each check's kwargs to match.

    Each check is (type, kwargs).
    """
    added: dict[str, pd.Series] = {}
    every = []
    for number, (kind, kwargs) in enumerate(checks):
        converted = _converted(frame, kind, kwargs)
        new_kwargs = dict(kwargs) | {
            name: value for name, value in converted.items() if not isinstance(value, pd.Series)
        }
        for name, column in converted.items():
            if isinstance(column, pd.Series):
                new_kwargs[name] = f"{kwargs[name]}, compared in {number}"
                added[new_kwargs[name]] = column
        every.append(new_kwargs)
    return (frame.assign(**added) if added else frame), every


def refused(
    frame: pd.DataFrame, checks: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[int, dict[str, Any]]:
    """Return the exception info, by position, of checks whose sets don't fit the column.

    The sets have times with a time zone, but the column has none. Great Expectations would
    find no member in the column, and rejects such bounds itself.
    """
    found = {}
    for position, (kind, kwargs) in enumerate(checks):
        sets = [("column", kwargs.get("value_set"))] if kind in _SETS else []
        if kind == _PAIRS:
            pairs = kwargs.get("value_pairs_set") or ()
            sides = [[it for pair in pairs for it in list(pair)[at : at + 1]] for at in range(2)]
            sets = [("column_A", sides[0]), ("column_B", sides[1])]
        for name, members in sets:
            column = _column(frame, kwargs.get(name))
            if column is None or column.dtype.kind != "M" or getattr(column.dtype, "tz", None):
                continue
            zoned = [it for it in members or () if _has_zone(it)]
            if zoned:
                message = f"{zoned[0]!s} has a time zone, but the column has none; remove it"
                found[position] = {"raised_exception": True, "exception_message": message}
    return found


def _has_zone(value: Any) -> bool:
    return _moment(value, None) is None and _moment(value, "UTC") is not None


def _converted(frame: pd.DataFrame, kind: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kwargs that change: converted values, and converted columns instead of names."""
    found: dict[str, Any] = {}
    if kind in _BOUNDED:
        sides = [side for side in ("min_value", "max_value") if kwargs.get(side) is not None]
        column = _column(frame, kwargs.get("column"))
        if column is not None:
            new_column, bounds = as_bounds(
                column, [kwargs[side] for side in sides], [_rounds_up(kwargs, it) for it in sides]
            )
            found = dict(zip(sides, bounds, strict=True))
            if new_column is not column:
                found["column"] = new_column
    elif kind in _SETS and isinstance(kwargs.get("value_set"), list | tuple | set):
        column = _column(frame, kwargs.get("column"))
        if column is not None:
            new_column, found["value_set"] = as_members(column, list(kwargs["value_set"]))
            if new_column is not column:
                found["column"] = new_column
    elif kind == _PAIRS and isinstance(kwargs.get("value_pairs_set"), list | tuple | set):
        pairs = [tuple(pair) for pair in kwargs["value_pairs_set"]]
        if all(len(pair) == 2 for pair in pairs):
            members = [[pair[at] for pair in pairs] for at in range(2)]
            for at, name in enumerate(("column_A", "column_B")):
                column = _column(frame, kwargs.get(name))
                if column is not None:
                    new_column, members[at] = as_members(column, members[at])
                    if new_column is not column:
                        found[name] = new_column
            found["value_pairs_set"] = list(zip(*members, strict=True))
    return found


def _rounds_up(kwargs: Mapping[str, Any], side: str) -> bool:
    """Return True if a bound within a day means the next day: inclusive minima, strict maxima."""
    is_strict = bool(kwargs.get("strict_min" if side == "min_value" else "strict_max"))
    return is_strict == (side == "max_value")


def _column(frame: pd.DataFrame, name: Any) -> pd.Series | None:
    """Return the column of this name, with plain values; None if there is none or more than one."""
    column = frame[name] if isinstance(name, str) and name in frame.columns else None
    if not isinstance(column, pd.Series):
        return None
    if isinstance(column.dtype, pd.ArrowDtype):
        plain: pd.Series = pa.array(column).to_pandas()
        return plain.set_axis(column.index)
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.astype(column.dtype.categories.dtype)
    return column


def as_bounds(
    column: pd.Series, bounds: list[Any], round_up: Sequence[bool]
) -> tuple[pd.Series, list[Any]]:
    """Return the column and its bounds, made comparable."""
    match _kind(column):
        case "time":
            zone = getattr(column.dtype, "tz", None)
            moments = [_moment(bound, zone) for bound in bounds]
            return column, [
                bound if moment is None else moment.to_pydatetime(warn=False)
                for bound, moment in zip(bounds, moments, strict=True)
            ]
        case "date":
            return column, [_day(it, up) for it, up in zip(bounds, round_up, strict=True)]
        case "decimal":
            return _as_floats(column, bounds)
        case "single":
            return column, [as_single(bound, column.dtype) for bound in bounds]
        case "text":
            return _as_times(column, bounds)
    return column, bounds


def as_members(column: pd.Series, members: list[Any]) -> tuple[pd.Series, list[Any]]:
    """Return the column and the members of a set, made comparable."""
    kind = _kind(column)
    text: Callable[[Any], Any]
    match kind:
        case "time":
            zone = getattr(column.dtype, "tz", None)

            def text(value: Any) -> Any:
                moment = _moment(value, zone)
                return value if moment is None else moment.isoformat()

        case "date":

            def text(value: Any) -> Any:
                day = _day(value, None)
                return day.isoformat() if isinstance(day, datetime.date) else day

        case "clock":
            text = _clock
        case "bytes":

            def text(value: Any) -> Any:
                return value.decode("utf-8", "backslashreplace") if _is_bytes(value) else value

        case "decimal":
            return _as_floats(column, members)
        case "single":
            return column, [as_single(member, column.dtype) for member in members]
        case "whole":
            return column, [_whole(member) for member in members]
        case "text":
            return column, [_written(member) for member in members]
        case _:
            return column, members
    return column.map(text, na_action="ignore").astype(object), [text(it) for it in members]


def _kind(column: pd.Series) -> str:
    """Return the kind of the column's values if they need a conversion, else ""."""
    dtype = column.dtype
    if dtype.kind == "M":
        return "time"
    if dtype.kind == "f" and isinstance(dtype, np.dtype) and dtype.itemsize < 8:
        return "single"
    if dtype.kind in "iuf":  # a null makes a column of integers float64
        return "whole"
    if dtype.kind != "O":
        return ""
    inferred = pd.api.types.infer_dtype(column, skipna=True)
    return {
        "decimal": "decimal",
        "date": "date",
        "time": "clock",
        "bytes": "bytes",
        "string": "text",
    }.get(inferred, "")


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes)


def _moment(value: Any, zone: Any) -> pd.Timestamp | None:
    """Return a value as a time in the column's zone, which is assumed if the value has none.

    Return None for anything else, and for a time with a zone if the column has none.
    """
    try:
        if isinstance(value, str):
            datetime.datetime.fromisoformat(value)  # pandas parses "5" as a day of this month
        elif not isinstance(value, datetime.date):
            return None
        moment = pd.Timestamp(value)
        if moment.tzinfo is None:
            return moment if zone is None else moment.tz_localize(zone, False, "shift_forward")
        return None if zone is None else moment.tz_convert(zone)
    except ValueError:
        return None


def _day(value: Any, round_up: bool | None) -> Any:
    """Return a string or time as a date; if `round_up` is None, keep a time within a day."""
    moment = _moment(value, None)
    if moment is None:
        return value
    begin = moment.normalize()
    if begin == moment:
        return begin.date()
    if round_up is None:
        return value
    return (begin + pd.Timedelta(days=1) if round_up else begin).date()


def _as_times(column: pd.Series, bounds: list[Any]) -> tuple[pd.Series, list[Any]]:
    """Parse a column of ISO dates or times, as in a CSV file, if the bounds are times too."""
    try:
        times = pd.to_datetime(column, format="ISO8601")
    except (ValueError, TypeError):  # TypeError: several zones
        return column, bounds
    moments = [_moment(bound, getattr(times.dtype, "tz", None)) for bound in bounds]
    if times.dtype.kind != "M" or None in moments:
        return column, bounds
    return times, [moment.to_pydatetime(warn=False) for moment in moments if moment is not None]


def _written(value: Any) -> Any:
    """Return a config's date or time in the form used in a text column."""
    return value.isoformat() if isinstance(value, datetime.date) else value


def _clock(value: Any) -> Any:
    try:
        value = datetime.time.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return value.isoformat() if isinstance(value, datetime.time) else value


def _whole(value: Any) -> Any:
    try:
        return int(value) if isinstance(value, str) else value
    except ValueError:
        return value


def as_single(value: Any, dtype: Any) -> Any:
    """Round a number to a narrow float type, as a file stores it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    with np.errstate(over="ignore"):
        rounded = float(np.asarray(float(value), dtype=dtype))
    return rounded if np.isfinite(rounded) else value


def as_decimal(value: Any) -> Decimal | None:
    """Return a number with its decimal digits as written; None if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        return Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return None


def _as_floats(column: pd.Series, numbers: list[Any]) -> tuple[pd.Series, list[Any]]:
    """Return a column of decimals, and the numbers to compare it with, as float64.

    A decimal that differs from a number but rounds to the same float becomes the next float in its
    own direction, so that it still compares correctly.
    """
    floats = column.map(float, na_action="ignore").astype("float64")
    found: list[Any] = []
    for number in numbers:
        exact = as_decimal(number)
        found.append(number if exact is None else float(exact))
        if exact is None:
            continue
        for at in np.flatnonzero((floats == float(exact)).to_numpy()):
            if column.iloc[at] != exact:
                towards = np.inf if column.iloc[at] > exact else -np.inf
                floats.iloc[at] = np.nextafter(float(exact), towards)
    return floats, found
