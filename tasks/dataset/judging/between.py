"""Compare a pandas column with bounds, without Great Expectations' Python call per value.

    use_vectorised_between()  # once per process; Great Expectations then calls between()

Great Expectations 1.24 compares int64, float64 and datetime64[ns] columns as arrays and all others
value by value, which takes 2 to 5 s per million values. Its metrics registry accepts a replacement:
the one here handles the columns for which both comparisons agree
(tests/tasks/dataset/judging/test_between.py), and delegates the others to the original.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.metrics.column_map_metrics.column_values_between import (
    ColumnValuesBetween,
)
from great_expectations.expectations.metrics.metric_provider import metric_partial
from great_expectations.expectations.registry import register_metric

from nodesweep.tasks.dataset.judging.proof import BIGGEST_EXACT_INTEGER

_NUMBERS = frozenset({int, float, bool, Decimal})


@metric_partial(
    engine=PandasExecutionEngine,
    partial_fn_type=MetricPartialFunctionTypes.MAP_CONDITION_SERIES,
    domain_type=MetricDomainTypes.COLUMN,
)
def between(
    cls: type[ColumnValuesBetween],
    execution_engine: PandasExecutionEngine,
    metric_domain_kwargs: dict[str, Any],
    metric_value_kwargs: dict[str, Any],
    metrics: dict[str, Any],
    runtime_configuration: dict[str, Any],
) -> tuple[pd.Series, dict[str, Any], dict[str, Any]]:
    """Return a mask of the non-null values outside the bounds, and the column's domain.

    Arguments and return value are those of a Great Expectations condition metric.
    """
    frame, compute, accessor = execution_engine.get_compute_domain(
        domain_kwargs=metric_domain_kwargs, domain_type=MetricDomainTypes.COLUMN
    )
    column = _find_column(frame, metric_domain_kwargs["column"])
    values = None if column is None else comparable_values(column, metric_value_kwargs)
    if values is None:
        return ColumnValuesBetween._pandas(
            cls,
            execution_engine=execution_engine,
            metric_domain_kwargs=metric_domain_kwargs,
            metric_value_kwargs=metric_value_kwargs,
            metrics=metrics,
            runtime_configuration=runtime_configuration,
        )
    inside = ColumnValuesBetween._pandas_vectorized(values, **metric_value_kwargs)
    return ~inside, compute, accessor


def _find_column(frame: pd.DataFrame, name: str) -> pd.Series | None:
    """Return the column without its nulls, or None unless exactly one column has the name."""
    if name not in frame.columns:
        return None
    column = frame[name]
    return column[column.notnull()] if isinstance(column, pd.Series) else None


def comparable_values(column: pd.Series, arguments: Mapping[str, Any]) -> pd.Series | None:
    """Return the non-null column in a form that gives the same results when compared as an array.

    `arguments` holds `min_value` and `max_value`, each a float, date or datetime, as Great
    Expectations reads them from a config. Return None if its own function must be called because
    the column is empty, the bounds are invalid, or the two types are not handled here.
    """
    bounds = [arguments[key] for key in ("min_value", "max_value") if arguments[key] is not None]
    kinds = {type(bound) for bound in bounds}
    if len(column) == 0 or len(kinds) != 1 or bounds != sorted(bounds):
        return None
    kind = kinds.pop()
    if column.dtype == object:
        return column if _compares_one_by_one(column, kind) else None
    if kind is float:
        return _as_numbers(column)
    is_plain_time = isinstance(column.dtype, np.dtype) and column.dtype.kind == "M"
    if kind is datetime.datetime and is_plain_time:
        return column if all(bound.tzinfo is None for bound in bounds) else None
    return None


def _compares_one_by_one(column: pd.Series, kind: type) -> bool:
    """Return True if pandas' comparison of objects (a loop in C) gives the same results."""
    types = set(map(type, column.array))
    return types <= _NUMBERS if kind is float else kind is datetime.date and types == {kind}


def _as_numbers(column: pd.Series) -> pd.Series | None:
    """Return the column as float64 (int64 unchanged), or None if a value might change.

    Great Expectations also compares int64 as an array.
    """
    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        stored: np.dtype[Any] | None = dtype
    elif isinstance(dtype, pd.ArrowDtype):
        return None
    else:
        stored = getattr(dtype, "numpy_dtype", None)
    if stored is None or stored.kind not in "iufb":
        return None
    if dtype in (np.dtype("int64"), np.dtype("float64")):
        return column
    if stored.kind == "f" and dtype != stored:
        return None  # a nullable float has both NaN and null
    values = column.to_numpy(dtype=stored)
    if stored.itemsize == 8 and (
        values.max() > BIGGEST_EXACT_INTEGER or values.min() < -BIGGEST_EXACT_INTEGER
    ):
        return None
    return pd.Series(values.astype("float64"), index=column.index)


@cache
def use_vectorised_between() -> None:
    """Make Great Expectations call between() in this process; further calls do nothing."""
    register_condition(between)


def register_condition(condition: Any) -> None:
    """Register `condition` as Great Expectations' `column_values.between` for pandas.

    The registry's warning about a replaced metric is silenced for this call.
    """
    registry_logger = logging.getLogger("great_expectations.expectations.registry")
    level = registry_logger.level
    registry_logger.setLevel(logging.ERROR)
    try:
        register_metric(
            metric_name="column_values.between.condition",
            metric_domain_keys=ColumnValuesBetween.condition_domain_keys,
            metric_value_keys=ColumnValuesBetween.condition_value_keys,
            execution_engine=PandasExecutionEngine,
            metric_class=ColumnValuesBetween,
            metric_provider=condition,
            metric_fn_type=MetricPartialFunctionTypes.MAP_CONDITION_SERIES,
        )
    finally:
        registry_logger.setLevel(level)
