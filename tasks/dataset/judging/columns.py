"""Find the table columns that an expectation uses.

    needed_columns(spec, ["label", "split", "pixel_0"])  # ["label"]

Only these columns are read, or all of them if in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.configs.dataset import ExpectationConfig

_NAMING = ("column", "column_A", "column_B", "column_list")
_LOOKING_ELSEWHERE = frozenset({"row_condition", "result_format"})
"""Arguments whose value can refer to any column."""

OF_THE_SCHEMA = frozenset(
    {
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
    }
)
"""Expectations that can be evaluated on a table without rows."""

_OF_THE_ROWS = frozenset(
    {"expect_table_row_count_to_be_between", "expect_table_row_count_to_equal"}
)


def needed_columns(spec: ExpectationConfig, columns: Sequence[str]) -> list[str]:
    """Return the columns of the table that are needed to evaluate the expectation."""
    named = named_columns(spec)
    if named is None:
        return list(columns)
    if named == ():
        return list(columns[:1])  # a table without columns has no rows
    return [name for name in columns if name in named]


def named_columns(spec: ExpectationConfig) -> tuple[object, ...] | None:
    """Return the columns that the expectation names, or () if it only needs the number of rows.

    Return None if it can use any column.
    """
    if _LOOKING_ELSEWHERE & set(spec.kwargs):
        return None
    if spec.type in _OF_THE_ROWS:
        return ()
    named: list[object] = []
    for key in _NAMING:
        value = spec.kwargs.get(key, ())
        named += value if isinstance(value, list | tuple) else [value]
    return tuple(named) or None
