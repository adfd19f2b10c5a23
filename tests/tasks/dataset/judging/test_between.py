"""nodesweep's comparison with bounds and that of Great Expectations give the same result, field by
field."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.metrics.column_map_metrics.column_values_between import (
    ColumnValuesBetween,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from nodesweep.configs.dataset import ExpectationConfig
from nodesweep.tasks.dataset.findings import _raised_message
from nodesweep.tasks.dataset.judging.between import between, register_condition
from nodesweep.tasks.dataset.validation import _run_expectations

UTC = datetime.UTC
NUMBERS = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "bool"]
FLOATS = ["float16", "float32", "float64"]
TIMES = ["datetime64[s]", "datetime64[ms]", "datetime64[us]", "datetime64[ns]"]
NULLABLE = ["Int8", "Int64", "UInt64", "Float32", "boolean", "int64[pyarrow]"]
DAYS = st.dates(datetime.date(1970, 1, 1), datetime.date(2030, 1, 1))
MOMENTS = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2030, 1, 1))
SMALL = st.integers(-3, 130)
BOUNDS = st.one_of(
    st.none(),
    st.floats(-5, 300),
    st.sampled_from([0.1, 0.5, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**64, 1e-9]),
    DAYS,
    MOMENTS,
    MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
)
OBJECTS = st.one_of(
    st.lists(DAYS | st.none()),
    st.lists(MOMENTS | DAYS | st.none()),
    st.lists(st.decimals(-5, 300, places=2) | st.none()),
    st.lists(SMALL | st.booleans() | st.none() | st.floats(allow_infinity=True)),
    st.lists(SMALL | st.text(max_size=2) | st.none()),
    st.lists(st.sampled_from([2**53 + 1, 2**63, -(2**70), Decimal("Infinity")])),
)


def _numpy_column(dtype: str) -> st.SearchStrategy[pd.Series]:
    return npst.arrays(dtype, st.integers(0, 8)).map(pd.Series)


@st.composite
def columns(draw: st.DrawFn) -> pd.Series:
    kind = draw(st.sampled_from(["number", "float", "time", "zone", "null", "object", "text"]))
    if kind == "number":
        return draw(st.sampled_from(NUMBERS).flatmap(_numpy_column))
    if kind == "float":
        return draw(st.sampled_from(FLOATS).flatmap(_numpy_column))
    if kind in ("time", "zone"):
        values = draw(st.lists(MOMENTS | st.none(), max_size=8))
        column = pd.Series(values, dtype="datetime64[us]").astype(draw(st.sampled_from(TIMES)))
        return column if kind == "time" else column.dt.tz_localize("UTC")
    if kind == "null":
        dtype = draw(st.sampled_from(NULLABLE))
        values = draw(st.lists(st.integers(0, 1) | st.none(), max_size=8))
        return pd.Series(values, dtype=dtype)
    if kind == "text":
        return pd.Series(draw(st.lists(st.text(max_size=3) | st.none(), max_size=8)), dtype="str")
    return pd.Series(draw(OBJECTS), dtype=object)


def _ask(condition: Any, column: pd.Series, arguments: dict[str, Any]) -> Any:
    """Return the condition's result in comparable parts, or the error that it raises."""
    engine = PandasExecutionEngine(batch_data_dict={"batch": pd.DataFrame({"c": column})})
    try:
        outside, compute, accessor = condition(
            ColumnValuesBetween,
            execution_engine=engine,
            metric_domain_kwargs={"batch_id": "batch", "column": "c"},
            metric_value_kwargs=arguments,
            metrics={"table.columns": ["c"]},
            runtime_configuration={},
        )
    except Exception as error:
        return type(error), str(error)
    return outside.tolist(), outside.index.tolist(), compute, accessor


@settings(max_examples=200)
@given(columns(), BOUNDS, BOUNDS, st.booleans(), st.booleans())
@example(pd.Series([0.1], dtype="float32"), 0.1, None, False, False)
@example(pd.Series([2**53 + 1], dtype="uint64"), None, 2.0**53, False, False)
@example(pd.Series([None], dtype="float32"), 0.0, None, False, False)
def test_between_answers_as_great_expectations_does(
    column: pd.Series, low: Any, high: Any, strict_min: bool, strict_max: bool
) -> None:
    arguments = {
        "min_value": low,
        "max_value": high,
        "strict_min": strict_min,
        "strict_max": strict_max,
    }
    assert _ask(between, column, arguments) == _ask(ColumnValuesBetween._pandas, column, arguments)


@contextmanager
def _their_between() -> Iterator[None]:
    register_condition(ColumnValuesBetween._pandas)
    try:
        yield
    finally:
        register_condition(between)


def test_whole_results_are_the_same_on_good_and_broken_columns() -> None:
    frame = pd.DataFrame(
        {
            "narrow": np.array([1, 2, 300], dtype="int32"),
            "single": np.array([0.1, np.nan, 9.5], dtype="float32"),
            "time": pd.Series(
                [pd.Timestamp("2026-01-01"), pd.NaT, pd.Timestamp("2027-01-01")]
            ).astype("datetime64[us]"),
            "day": [datetime.date(2026, 1, 1), None, datetime.date(2027, 1, 1)],
            "text": ["a", "b", None],
            "nothing": np.full(3, np.nan, dtype="float32"),
        }
    )
    numbers: dict[str, Any] = {"min_value": 0.1, "max_value": 9}
    days = {"min_value": "2026-01-01", "max_value": "2026-06-01"}
    moments = {"min_value": "2026-01-01T00:00:00", "strict_min": True}
    suite = [
        ExpectationConfig(
            type="expect_column_values_to_be_between", kwargs={"column": name, **limits, **share}
        )
        for name in [*frame.columns, "absent"]
        for limits in (numbers, days, moments)
        for share in ({}, {"mostly": 0.5})
    ]
    ours = _run_expectations(frame, suite)
    with _their_between():
        theirs = _run_expectations(frame, suite)
    assert {index: _told(result) for index, result in ours.items()} == {
        index: _told(result) for index, result in theirs.items()
    }
    assert {result.success for result in ours.values()} == {True, False}


def _told(result: Any) -> Any:
    """Return all findings of a result, without the random ID in its configuration and line numbers
    in its traceback."""
    told = result.to_json_dict()
    return told["success"], told["result"], _raised_message(result.exception_info)


@pytest.mark.parametrize("dtype", ["int32", "float32", "datetime64[us]"])
def test_a_narrow_column_is_not_asked_value_by_value(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a Python call per value")

    monkeypatch.setattr(pd.Series, "map", refuse)
    column = pd.Series([1, 2]).astype(dtype)
    bound = datetime.datetime(1970, 1, 2) if dtype.startswith("datetime") else 1.5
    arguments = {"min_value": None, "max_value": bound, "strict_min": False, "strict_max": False}
    expected = [False, False] if dtype.startswith("datetime") else [False, True]
    assert _ask(between, column, arguments)[0] == expected
