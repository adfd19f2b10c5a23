"""Describe the findings of a Great Expectations result in plain words.

For example: column 'label': 3 of 180 rows not between 0 and 9, e.g. 11, 12 (file part-3.parquet)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodesweep.configs.dataset import ExpectationConfig

MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARACTERS = 80
Example = bool | int | float | str | None


@dataclass(frozen=True)
class Finding:
    """A violated expectation's column, examples and message."""

    column: str | None
    examples: tuple[Example, ...]
    message: str


def describe(
    spec: ExpectationConfig,
    details: Mapping[str, Any],
    *,
    rows: int,
    file: str,
    raised: str | None,
    columns: Sequence[object],
    is_csv: bool,
) -> Finding:
    """Return the finding of one violated expectation.

    Args:
        spec: the expectation.
        details: the `result` part of an ExpectationValidationResult.
        rows: the file's number of rows.
        file: the file's name.
        raised: the message of the result's exception, if any.
        columns: the file's columns.
        is_csv: True for a CSV file.
    """
    column = _column(spec.kwargs)
    examples = _examples(details.get("partial_unexpected_list") or ())
    subject = (
        "table"
        if column is None
        else f"column {column!r}"
        if "column" in spec.kwargs
        else f"columns {column}"
    )
    if raised is not None and "does not exist" in raised:
        sentence = f"the column that {spec.type} needs is missing; {columns_of(columns, is_csv)}"
    elif raised is not None:
        sentence = f"{spec.type} could not be evaluated: {raised.splitlines()[0]}"
    elif spec.type == "expect_column_to_exist" and spec.kwargs.get("column") not in columns:
        sentence = f"the column is missing; {columns_of(columns, is_csv)}"
    elif details.get("unexpected_count") is not None:
        shown = (
            f", e.g. {', '.join(map(_show, examples))}"
            if any(value is not None for value in examples)
            else ""
        )
        allowed = (
            f" (allowed: {100 * (1 - float(spec.kwargs['mostly'])):g}%)"
            if "mostly" in spec.kwargs
            else ""
        )
        # `mostly` is a share of the values that are not null.
        nulls = details.get("missing_count") or 0 if allowed else 0
        of = f"{rows - nulls} non-null rows" if nulls else f"{rows} rows"
        sentence = f"{details['unexpected_count']} of {of} {_rule(spec, 'violate')}{allowed}{shown}"
    else:
        sentence = f"{_rule(spec, 'not met:')}{_observed(details)}"
    return Finding(column=column, examples=examples, message=f"{subject}: {sentence} (file {file})")


def columns_of(columns: Sequence[object], is_csv: bool) -> str:
    """Describe a file's columns; for a one-column CSV file, also mention its apparent separator."""
    names = [_show(str(column)) for column in columns]
    text = ", ".join(names[:10])
    text += f" and {len(names) - 10} more" if len(names) > 10 else ""
    other = (
        next((it for it in ";\t|" if it in str(columns[0])), None) if len(columns) == 1 else None
    )
    if is_csv and other:
        return (
            f"its only column: {text!r}; the file seems to use {other!r} as its separator, but"
            " is read with ','; rewrite it with commas"
        )
    separated = ", separated by ','" if is_csv else ""
    return f"its columns{separated}: {text or 'none'}"


def _rule(spec: ExpectationConfig, verdict: str) -> str:
    """Return the violated rule, such as `not between 0 and 9`.

    For an expectation without a phrase here, return `verdict` and the expectation's name.
    """
    words = _RULES.get(spec.type)
    if words is not None:
        return words(spec.kwargs)
    arguments = {key: value for key, value in spec.kwargs.items() if key not in _NAMED_ELSEWHERE}
    shown = ", ".join(f"{key}={_show(value)}" for key, value in arguments.items())
    return f"{verdict} {spec.type}({shown})"


_NAMED_ELSEWHERE = frozenset({"column", "column_A", "column_B", "column_list", "mostly"})


def _limits(kwargs: Mapping[str, Any]) -> str:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    strict = kwargs.get("strict_min"), kwargs.get("strict_max")
    if low is not None and high is not None and not any(strict):
        return f"between {_show(low)} and {_show(high)}"
    above = "" if low is None else f"{'more than' if strict[0] else 'at least'} {_show(low)}"
    below = "" if high is None else f"{'less than' if strict[1] else 'at most'} {_show(high)}"
    return " and ".join(filter(None, (above, below)))


_RULES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "expect_column_values_to_be_between": lambda kwargs: f"not {_limits(kwargs)}",
    "expect_column_values_to_not_be_null": lambda kwargs: "are null",
    "expect_column_values_to_be_null": lambda kwargs: "are not null",
    "expect_column_values_to_be_in_set": lambda kwargs: f"not in {_show_set(kwargs['value_set'])}",
    "expect_column_values_to_not_be_in_set": lambda kwargs: f"in {_show_set(kwargs['value_set'])}",
    "expect_column_values_to_be_unique": lambda kwargs: "have a value that occurs more than once",
    "expect_compound_columns_to_be_unique": lambda kwargs: (
        "have a combination of values that occurs more than once"
    ),
    "expect_column_values_to_match_regex": lambda kwargs: f"don't match {kwargs['regex']!r}",
    "expect_column_values_to_be_of_type": lambda kwargs: f"not of type {kwargs['type_']}",
    "expect_column_values_to_be_in_type_list": lambda kwargs: (
        f"not of a type in {_show_set(kwargs['type_list'])}"
    ),
    "expect_column_value_lengths_to_be_between": lambda kwargs: (
        f"have a value whose length is not {_limits(kwargs)}"
    ),
    "expect_column_to_exist": lambda kwargs: "the column is missing",
    "expect_table_row_count_to_be_between": lambda kwargs: f"number of rows not {_limits(kwargs)}",
    "expect_table_row_count_to_equal": lambda kwargs: (
        f"number of rows not {_show(kwargs['value'])}"
    ),
    "expect_table_column_count_to_equal": lambda kwargs: (
        f"number of columns not {_show(kwargs['value'])}"
    ),
    "expect_table_columns_to_match_set": lambda kwargs: "columns are not the expected set",
    "expect_table_columns_to_match_ordered_list": lambda kwargs: (
        "columns are not the expected list"
    ),
    "expect_column_mean_to_be_between": lambda kwargs: f"mean not {_limits(kwargs)}",
    "expect_column_min_to_be_between": lambda kwargs: f"minimum not {_limits(kwargs)}",
    "expect_column_max_to_be_between": lambda kwargs: f"maximum not {_limits(kwargs)}",
    "expect_column_stdev_to_be_between": lambda kwargs: f"standard deviation not {_limits(kwargs)}",
}


def _observed(details: Mapping[str, Any]) -> str:
    """Return `, found 6` or, for sets of columns, the missing and the unexpected ones."""
    mismatched = (details.get("details") or {}).get("mismatched")
    if isinstance(mismatched, Mapping):
        words = {"missing": "missing", "unexpected": "unexpected"}
        parts = [
            f"{words[key]}: {', '.join(map(str, mismatched[key]))}"
            for key in words
            if mismatched.get(key)
        ]
        return "; " + "; ".join(parts)
    observed = details.get("observed_value")
    return "" if observed is None else f", found {_show(observed)}"


def _column(kwargs: Mapping[str, Any]) -> str | None:
    if "column" in kwargs:
        return str(kwargs["column"])
    pair = [str(kwargs[key]) for key in ("column_A", "column_B") if key in kwargs]
    columns = pair or [str(name) for name in kwargs.get("column_list", ())]
    return ", ".join(columns) or None


def _examples(values: Any) -> tuple[Example, ...]:
    """Return up to five distinct values in order of appearance, with long strings truncated."""
    distinct: dict[str, Example] = {}
    for value in values:
        plain = value if value is None or isinstance(value, bool | int | float) else str(value)
        distinct.setdefault(
            _show(plain), plain[:MAX_EXAMPLE_CHARACTERS] if isinstance(plain, str) else plain
        )
    return tuple(distinct.values())[:MAX_EXAMPLES]


def _show(value: Any) -> str:
    """Format a value, truncated if long; 11.0 becomes 11, since a column with nulls has floats."""
    text = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_EXAMPLE_CHARACTERS else text[: MAX_EXAMPLE_CHARACTERS - 1] + "…"


def _show_set(values: Any) -> str:
    shown = [_show(value) for value in list(values)[:12]]
    return "{" + ", ".join(shown) + (", …" if len(values) > 12 else "") + "}"
