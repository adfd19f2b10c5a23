"""The expectations that Spark may prove.

An expectation qualifies if pandas passes it whenever Great Expectations' condition on Spark finds
no violating row: those about single values, without exceptions (`mostly` is sent as 1), on types
with the same values in Spark and pandas. NaN is sent as null, which it is to pandas. Left to
pandas: bounds of decimals, which Spark compares as floats; times finer than Spark's microseconds;
bounds before 1583; and columns without a value, whose type pandas does not know.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from .comparing import as_single
from .request import Check

BIGGEST_EXACT_INTEGER = 2**53
SAME_CALENDAR = datetime.datetime(1583, 1, 1)
"""Earliest Python time used in a proof: from here on, times reach Spark unchanged.

It travels as a java.sql.Timestamp, whose calendar is Julian before October 1582.
"""
MOST_MEMBERS = 1000
"""Maximum size of a set that becomes part of a query."""
_LIMITS = frozenset({"column", "min_value", "max_value", "strict_min", "strict_max", "mostly"})
_SET = frozenset({"column", "value_set", "mostly"})
_FORMS = {
    "expect_column_values_to_not_be_null": frozenset({"column", "mostly"}),
    "expect_column_values_to_be_between": _LIMITS,
    "expect_column_value_lengths_to_be_between": _LIMITS,
    "expect_column_values_to_be_in_set": _SET,
    "expect_column_values_to_not_be_in_set": _SET,
}
PROVABLE = frozenset(_FORMS)
NEEDS_NO_VALUE = frozenset({"expect_column_values_to_not_be_null"})
"""Expectations that are provable even in a column of only nulls."""

Values = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class Transport:
    """A column on its way to Spark: its name there, its types, and the conversion of its values."""

    name: str
    sql_type: str
    arrow_type: pa.DataType
    convert: Values


@dataclass(frozen=True)
class Proof:
    """Spark's part of one check: the column to send, and the check to evaluate there."""

    check: Check
    column: str
    transport: Transport
    asked: Check


def proof_of(check: Check, expectation: Any, schema: pa.Schema) -> Proof | None:
    """Return Spark's proof of a check on files of a schema; None if Spark can't prove it.

    Args:
        check: The check.
        expectation: The same check, built by Great Expectations.
        schema: The files' schema.
    """
    form = _FORMS.get(check.type)
    if form is None or not set(check.kwargs) <= form:
        return None
    mostly = check.kwargs.get("mostly", 1)
    column = str(check.kwargs.get("column"))
    if not isinstance(mostly, int | float) or len(schema.get_all_field_indices(column)) != 1:
        return None
    position = schema.get_field_index(column)
    kind = schema.field(position).type
    transport = _transport(check, expectation, position, kind)
    if transport is None:
        return None
    kwargs = {name: value for name, value in check.kwargs.items() if name != "mostly"}
    if _is_float(kind):
        as_column = kind.to_pandas_dtype()
        bounds = {"min_value", "max_value"} & kwargs.keys()
        kwargs |= {name: as_single(kwargs[name], as_column) for name in bounds}
    asked = replace(check, kwargs=kwargs | {"column": transport.name})
    return Proof(check, column, transport, asked)


def _transport(
    check: Check, expectation: Any, position: int, kind: pa.DataType
) -> Transport | None:
    if check.type == "expect_column_values_to_not_be_null":
        return _presence(position, kind)
    if check.type == "expect_column_value_lengths_to_be_between":
        fits = _is_text(kind) and _bounds_are(expectation, (int, float))
    elif check.type == "expect_column_values_to_be_between":
        is_number = types.is_integer(kind) or _is_float(kind)
        is_time = types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns"
        fits = (is_number and _bounds_are(expectation, (int, float))) or (
            is_time and _bounds_are_naive_times(expectation)
        )
    else:
        fits = _is_exact_set(expectation.value_set, kind)
    return _values(position, kind) if fits else None


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)


def _is_float(kind: pa.DataType) -> bool:
    return types.is_float32(kind) or types.is_float64(kind)


def _bounds(expectation: Any) -> list[Any] | None:
    """Return the bounds that are set, in order; None if they or their strictness are unsuitable."""
    flags = (expectation.strict_min, expectation.strict_max)
    bounds = [it for it in (expectation.min_value, expectation.max_value) if it is not None]
    if not bounds or not all(flag is None or isinstance(flag, bool) for flag in flags):
        return None
    return bounds


def _bounds_are(expectation: Any, kinds: tuple[type, ...]) -> bool:
    bounds = _bounds(expectation)
    return bounds is not None and all(type(bound) in kinds for bound in bounds)


def _bounds_are_naive_times(expectation: Any) -> bool:
    bounds = _bounds(expectation)
    return bounds is not None and all(
        type(bound) is datetime.datetime and bound.tzinfo is None and bound >= SAME_CALENDAR
        for bound in bounds
    )


def _is_exact_set(members: Any, kind: pa.DataType) -> bool:
    if not isinstance(members, list | tuple | set) or not 0 < len(members) <= MOST_MEMBERS:
        return False
    if _is_text(kind):
        return all(type(member) is str for member in members)
    return types.is_integer(kind) and all(
        type(member) is int and abs(member) <= BIGGEST_EXACT_INTEGER for member in members
    )


def _presence(position: int, kind: pa.DataType) -> Transport | None:
    """Return a transport of true or null per value, for a column of any simple type."""
    if _is_float(kind):
        return _values(position, kind)
    is_simple = (
        types.is_integer(kind)
        or types.is_boolean(kind)
        or _is_text(kind)
        or types.is_timestamp(kind)
        or types.is_date32(kind)
        or types.is_decimal128(kind)
    )
    return Transport(f"p{position}", "boolean", pa.bool_(), _where_present) if is_simple else None


def _where_present(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(values), pa.scalar(True), pa.scalar(None, pa.bool_()))


def _values(position: int, kind: pa.DataType) -> Transport | None:
    """Return a transport of the values themselves, in a type that Spark has."""
    if _is_text(kind):
        return Transport(f"c{position}", "string", pa.string(), _cast(pa.string()))
    if _is_float(kind):
        name = "float" if types.is_float32(kind) else "double"
        return Transport(f"c{position}", name, kind, _nan_as_null)
    if types.is_timestamp(kind):
        micros = pa.timestamp("us")
        return Transport(f"c{position}", "timestamp_ntz", micros, _cast(micros))
    if types.is_integer(kind) and not types.is_uint64(kind):
        return Transport(f"c{position}", "bigint", pa.int64(), _cast(pa.int64()))
    return None


def _cast(kind: pa.DataType) -> Values:
    return lambda values: values if values.type == kind else pc.cast(values, kind)


def _nan_as_null(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
