"""Find the expectations that a Parquet file provably meets, in one pass over the file.

    seen = inspect_file(path, suite)
    seen.proven  # positions in the suite; Great Expectations has to evaluate the others

The pass reads the required columns in batches and keeps counts, extremes and some distinct values.
An expectation is proven only if Great Expectations would pass it on the whole column as pandas
reads it. Everything else, including every failure, is left to Great Expectations. Several files can
be inspected in parallel, because Arrow releases the GIL.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from nodesweep.infra.image_spark.nodesweep_judge.comparing import as_decimal, as_single
from nodesweep.infra.image_spark.nodesweep_judge.layout import empty_frame, index_columns

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

ROWS_PER_BATCH = 131_072
READ_BUFFER_BYTES = 1 << 20
MAX_DISTINCT = 10_000
"""Maximum distinct values to keep per column; larger sets are left to Great Expectations."""

BIGGEST_EXACT_INTEGER = 2**53
"""The largest integer up to which every integer has an exact float64."""

_LIMITS = frozenset({"column", "min_value", "max_value", "strict_min", "strict_max", "mostly"})
_SET = frozenset({"column", "value_set", "mostly"})


@dataclass
class ColumnFacts:
    """The facts collected so far about one column."""

    type: pa.DataType
    nulls: int = 0
    is_nan: bool = False
    low: Any = None
    high: Any = None
    shortest: int | None = None
    longest: int | None = None
    distinct: set[Any] | None = field(default_factory=set)

    def add(self, values: pa.Array, wanted: frozenset[str]) -> None:
        """Update the number of nulls, and the facts named in `wanted`, with more values."""
        self.nulls += values.null_count
        if "nan" in wanted and types.is_floating(self.type):
            self.is_nan |= bool(pc.any(pc.is_nan(values)).as_py())
        if "extremes" in wanted:
            self.low, self.high = _widen(self.low, self.high, values)
        if "lengths" in wanted:
            lengths = pc.utf8_length(values)
            self.shortest, self.longest = _widen(self.shortest, self.longest, lengths)
        if "distinct" in wanted and self.distinct is not None:
            found = pc.unique(values)
            if len(found) > MAX_DISTINCT or len(self.distinct) > MAX_DISTINCT:
                self.distinct = None
            else:
                self.distinct |= set(found.to_pylist()) - {None}


def _widen(low: Any, high: Any, values: pa.Array) -> tuple[Any, Any]:
    """Extend the range [low, high] to include `values`, without nulls and NaN (null in pandas)."""
    if types.is_floating(values.type):
        values = values.filter(pc.invert(pc.is_nan(values)))
    found = pc.min_max(values)
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is None:
        return low, high
    return (least, most) if low is None else (min(low, least), max(high, most))


@dataclass(frozen=True)
class _Rule:
    """The conditions under which an expectation about one column certainly holds."""

    arguments: frozenset[str]
    wanted: frozenset[str]
    suits: Callable[[pa.DataType], bool]
    holds: Callable[[Expectation, ColumnFacts], bool]


def _is_number(kind: pa.DataType) -> bool:
    return types.is_integer(kind) or types.is_floating(kind)


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)


def _has_order(kind: pa.DataType) -> bool:
    is_time = types.is_timestamp(kind) or types.is_date32(kind)
    return _is_number(kind) or is_time or types.is_decimal128(kind)


def _is_simple(kind: pa.DataType) -> bool:
    return _has_order(kind) or _is_text(kind) or types.is_boolean(kind)


def _lies_between(expectation: Any, kind: pa.DataType, low: Any, high: Any) -> bool:
    """Return True if `low` and `high`, of type `kind`, are within the expectation's bounds."""
    asked = (expectation.min_value, expectation.max_value)
    bounds = tuple(_as_of_type(bound, kind) for bound in asked)
    if [bound is None for bound in bounds] != [bound is None for bound in asked]:
        return False  # as_decimal() returns None for a date, which must not count as no bound
    if low is None or not all(_compares_exactly(low, high, bound) for bound in bounds):
        return False
    if not all(isinstance(it, bool) for it in (expectation.strict_min, expectation.strict_max)):
        return False
    least, most = bounds
    above = least is None or (low > least if expectation.strict_min else low >= least)
    below = most is None or (high < most if expectation.strict_max else high <= most)
    return above and below


def _as_of_type(bound: Any, kind: pa.DataType) -> Any:
    """Convert a bound to the precision of the column's type."""
    if types.is_float32(kind):
        return as_single(bound, kind.to_pandas_dtype())
    return as_decimal(bound) if types.is_decimal(kind) else bound


def _compares_exactly(low: Any, high: Any, bound: Any) -> bool:
    if bound is None:
        return True
    if isinstance(low, Decimal):
        return isinstance(bound, Decimal)
    if isinstance(low, int):
        most = BIGGEST_EXACT_INTEGER
        return type(bound) in (int, float) and -most <= low and high <= most
    if isinstance(low, float):
        return type(bound) in (int, float)
    if isinstance(low, datetime.datetime):
        return isinstance(bound, datetime.datetime) and low.tzinfo is None and bound.tzinfo is None
    return type(low) is datetime.date and type(bound) is datetime.date


def _between_holds(expectation: Any, facts: ColumnFacts) -> bool:
    return _lies_between(expectation, facts.type, facts.low, facts.high)


def _extreme_holds(name: str) -> Callable[[Any, ColumnFacts], bool]:
    """Return the rule for a column's minimum or maximum.

    Great Expectations rounds a strict bound to the column's precision, so strict bounds are left to
    it.
    """

    def holds(expectation: Any, facts: ColumnFacts) -> bool:
        if expectation.strict_min is not False or expectation.strict_max is not False:
            return False
        value = getattr(facts, name)
        return _lies_between(expectation, facts.type, value, value)

    return holds


def _lengths_hold(expectation: Any, facts: ColumnFacts) -> bool:
    return _lies_between(expectation, pa.int32(), facts.shortest, facts.longest)


def _set_holds(expectation: Any, facts: ColumnFacts) -> bool:
    members = expectation.value_set
    if not facts.distinct or not isinstance(members, list | tuple | set):
        return False
    kind = str if _is_text(facts.type) else int
    if any(type(member) is not kind for member in members):
        return False
    if kind is int and any(abs(value) > BIGGEST_EXACT_INTEGER for value in facts.distinct):
        return False
    return facts.distinct <= set(members)


def _no_nulls(expectation: Any, facts: ColumnFacts) -> bool:
    return facts.nulls == 0 and not facts.is_nan


_EXTREMES = frozenset({"extremes"})
_COLUMN_RULES: dict[str, _Rule] = {
    "expect_column_values_to_not_be_null": _Rule(
        frozenset({"column", "mostly"}), frozenset({"nan"}), _is_simple, _no_nulls
    ),
    "expect_column_values_to_be_between": _Rule(_LIMITS, _EXTREMES, _has_order, _between_holds),
    "expect_column_min_to_be_between": _Rule(
        _LIMITS - {"mostly"}, _EXTREMES, _is_number, _extreme_holds("low")
    ),
    "expect_column_max_to_be_between": _Rule(
        _LIMITS - {"mostly"}, _EXTREMES, _is_number, _extreme_holds("high")
    ),
    "expect_column_value_lengths_to_be_between": _Rule(
        _LIMITS, frozenset({"lengths"}), _is_text, _lengths_hold
    ),
    "expect_column_values_to_be_in_set": _Rule(
        _SET,
        frozenset({"distinct"}),
        lambda kind: _is_text(kind) or types.is_integer(kind),
        _set_holds,
    ),
}


def _table_rule_holds(expectation: Any, columns: Sequence[Any], rows: int) -> bool:
    """Return True if an expectation about the columns or the number of rows certainly holds."""
    arguments = set(expectation.configuration.kwargs)
    match expectation.expectation_type:
        case "expect_column_to_exist":
            return arguments == {"column"} and expectation.column in columns
        case "expect_table_column_count_to_equal":
            return arguments == {"value"} and expectation.value == len(columns)
        case "expect_table_row_count_to_equal":
            return arguments == {"value"} and expectation.value == rows
        case "expect_table_columns_to_match_ordered_list":
            return arguments == {"column_list"} and expectation.column_list == list(columns)
        case "expect_table_columns_to_match_set":
            wanted = expectation.column_set
            is_set = isinstance(wanted, list | tuple | set)
            return arguments == {"column_set"} and is_set and set(wanted) == set(columns)
    return False


@dataclass(frozen=True)
class InspectedFile:
    """A Parquet file's columns and number of rows, and the expectations that it provably meets."""

    rows: int
    columns: pd.DataFrame
    """An empty frame with every column that pandas would read."""
    index: list[str]
    """The columns that pandas would use as its index."""
    types: dict[str, tuple[str, str]]
    """Each column's kind of values (such as number) and type name, without columns of type null."""
    proven: frozenset[int]


def inspect_file(source: Any, suite: Sequence[Expectation]) -> InspectedFile:
    """Read the columns that `suite` needs, and find the expectations that they prove.

    Args:
        source: a path or an open file.
        suite: the expectations.

    Raises:
        OSError, ValueError, pyarrow.ArrowException: the file is unreadable.
    """
    with pq.ParquetFile(source, buffer_size=READ_BUFFER_BYTES) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        columns = empty_frame(schema)
        kept, names = index_columns(columns), list(columns.columns)
        proven = {
            index
            for index, expectation in enumerate(suite)
            if _table_rule_holds(expectation, names, rows)
        }
        asked = {
            index: rule
            for index, expectation in enumerate(suite)
            if (rule := _rule_for(expectation, schema, [*names, *kept])) is not None
        }
        wanted: dict[str, frozenset[str]] = {}
        for index, rule in asked.items():
            name = _column(suite[index])
            wanted[name] = wanted.get(name, frozenset()) | rule.wanted
        facts = _collect(file, wanted)
        if rows:
            proven |= {
                index
                for index, rule in asked.items()
                if (found := facts.get(_column(suite[index]))) is not None
                and rule.holds(suite[index], found)
            }
        return InspectedFile(rows, columns, kept, column_types(schema), frozenset(proven))


def _column(expectation: Any) -> str:
    return str(expectation.column)


def _rule_for(expectation: Any, schema: pa.Schema, columns: Sequence[Any]) -> _Rule | None:
    """Return the rule that can prove the expectation on this file, or None."""
    rule = _COLUMN_RULES.get(expectation.expectation_type)
    if rule is None or not set(expectation.configuration.kwargs) <= rule.arguments:
        return None
    if not isinstance(getattr(expectation, "mostly", 1), int | float):
        return None
    name = expectation.column
    if columns.count(name) != 1 or len(schema.get_all_field_indices(name)) != 1:
        return None
    kind = schema.field(name).type
    # Arrow cannot compute the extremes of half-precision floats.
    return rule if rule.suits(kind) and not types.is_float16(kind) else None


def _collect(file: pq.ParquetFile, wanted: dict[str, frozenset[str]]) -> dict[str, ColumnFacts]:
    """Return the facts about the wanted columns, without those whose values Python can't hold."""
    facts = {name: ColumnFacts(file.schema_arrow.field(name).type) for name in wanted}
    if not facts:
        return facts
    for batch in file.iter_batches(ROWS_PER_BATCH, columns=list(facts), use_threads=False):
        for name, column in tuple(facts.items()):
            values = batch.column(name)
            if _is_text(column.type):
                values.validate(full=True)  # pandas can't read invalid UTF-8
            try:
                column.add(values, wanted[name])
            except OverflowError:  # a time outside Python's years; Great Expectations decides
                del facts[name]
    return facts


def column_types(schema: pa.Schema) -> dict[str, tuple[str, str]]:
    """Return each column's kind of values and type name, without columns of type null."""
    return {
        column.name: (_value_kind(column.type), str(column.type))
        for column in schema
        if not _is_of_nulls(column.type)
    }


def _is_of_nulls(kind: pa.DataType) -> bool:
    """Return True for a type without values: null, or lists of nulls."""
    return types.is_null(kind) or (_is_list(kind) and _is_of_nulls(kind.value_type))


def _is_list(kind: pa.DataType) -> bool:
    return any(
        is_one(kind)
        for is_one in (
            *(types.is_list, types.is_large_list, types.is_fixed_size_list),
            *(types.is_list_view, types.is_large_list_view),
        )
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        is_one(kind)
        for is_one in (
            *(types.is_binary, types.is_large_binary),
            *(types.is_binary_view, types.is_fixed_size_binary),
        )
    )


def _value_kind(kind: pa.DataType) -> str:
    """Return the kind of a type's values, regardless of their width, unit or encoding."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _value_kind(kind.value_type)
    if _is_number(kind) or types.is_decimal(kind):
        return "number"
    if _is_text(kind) or types.is_string_view(kind):
        return "text"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    if types.is_time(kind):
        return "time of day"
    if types.is_duration(kind):
        return "duration"
    if _is_bytes(kind):
        return "bytes"
    if _is_list(kind):
        return f"list of {_value_kind(kind.value_type)}"
    if types.is_map(kind):
        return f"map of {_value_kind(kind.key_type)} to {_value_kind(kind.item_type)}"
    if types.is_struct(kind):
        return f"struct of {sorted((part.name, _value_kind(part.type)) for part in kind.fields)}"
    return str(kind)
