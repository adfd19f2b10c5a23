"""A single pass over a Parquet file proves what Great Expectations finds, and the report is the
same with or without it."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodesweep.configs.dataset import DatasetConfig, ExpectationConfig
from nodesweep.infra.image_spark.nodesweep_judge.layout import holds_by_names, with_index
from nodesweep.tasks.dataset import validation
from nodesweep.tasks.dataset.findings import _from_details
from nodesweep.tasks.dataset.judging import proof
from nodesweep.tasks.dataset.judging.columns import OF_THE_SCHEMA, named_columns, needed_columns
from nodesweep.tasks.dataset.validation import (
    _run_some,
    build_expectations,
    validate_dataset,
)

NOW = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
MOMENT = datetime.datetime(2026, 1, 1)
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "narrow": (pa.int32(), [0, 1, 2, 9, 10, 300]),
    "wide": (pa.int64(), [0, 9, 2**53, 2**53 + 1, -(2**63)]),
    "unsigned": (pa.uint64(), [0, 9, 2**64 - 1]),
    "single": (pa.float32(), [0.0, 0.1, 9.0, float("nan"), float("inf")]),
    "double": (pa.float64(), [0.0, 0.1, 9.0, float("nan")]),
    "text": (pa.string(), ["train", "test", "", "é", "valid"]),
    "time": (pa.timestamp("us"), [MOMENT, MOMENT + datetime.timedelta(microseconds=1)]),
    "zoned": (pa.timestamp("ms", tz="UTC"), [MOMENT, MOMENT + datetime.timedelta(days=1)]),
    "day": (pa.date32(), [MOMENT.date(), datetime.date(2027, 1, 1)]),
    "money": (pa.decimal128(9, 2), [Decimal("0.10"), Decimal("9.00"), Decimal("300.00")]),
    "flag": (pa.bool_(), [True, False]),
}


def _suite() -> list[ExpectationConfig]:
    """Return every rule on every column, with arguments that hold, that fail, and that are
    unusual."""
    ranges: list[dict[str, Any]] = [
        {"min_value": 0, "max_value": 9},
        {"min_value": 0.1, "strict_min": True},
        {"max_value": 2**53},
        {"min_value": "2026-01-01", "max_value": "2026-12-01"},
        {"min_value": "2026-01-01T00:00:00", "strict_min": True, "mostly": 0.5},
    ]
    specs: list[tuple[str, dict[str, Any]]] = []
    for name in [*TYPES, "absent"]:
        column = {"column": name}
        specs += [("expect_column_values_to_be_between", {**column, **limits}) for limits in ranges]
        specs += [
            (f"expect_column_{side}_to_be_between", {**column, "min_value": 0.1, **strict})
            for side in ("min", "max")
            for strict in ({}, {"strict_min": True})
        ]
        specs += [
            ("expect_column_values_to_not_be_null", column),
            ("expect_column_values_to_not_be_null", {**column, "mostly": 0.5}),
            ("expect_column_to_exist", column),
            (
                "expect_column_value_lengths_to_be_between",
                {**column, "min_value": 1, "max_value": 5},
            ),
            ("expect_column_values_to_be_in_set", {**column, "value_set": ["train", "test", "é"]}),
            ("expect_column_values_to_be_in_set", {**column, "value_set": [0, 1, 2, 9]}),
            (
                "expect_column_values_to_not_be_null",
                {**column, "row_condition": "narrow < 10", "condition_parser": "pandas"},
            ),
        ]
    names = list(TYPES)
    specs += [
        ("expect_table_column_count_to_equal", {"value": len(TYPES)}),
        ("expect_table_row_count_to_equal", {"value": 3}),
        ("expect_table_row_count_to_be_between", {"min_value": 2}),
        ("expect_table_columns_to_match_set", {"column_set": names[::-1]}),
        ("expect_table_columns_to_match_set", {"column_set": names[1:], "exact_match": False}),
        ("expect_table_columns_to_match_ordered_list", {"column_list": names[::-1]}),
        ("expect_column_mean_to_be_between", {"column": "double", "max_value": 1}),
        (
            "expect_column_pair_values_a_to_be_greater_than_b",
            {"column_A": "narrow", "column_B": "wide"},
        ),
        ("expect_compound_columns_to_be_unique", {"column_list": ["text", "narrow"]}),
    ]
    return [ExpectationConfig(type=kind, kwargs=arguments) for kind, arguments in specs]


def _table(draw: Any, rows: int) -> pa.Table:
    """Return a table with few distinct values, so that a column often meets an expectation
    entirely."""
    columns = {}
    for name, (kind, values) in TYPES.items():
        some = draw(st.lists(st.sampled_from([*values, None]), min_size=1, max_size=2))
        columns[name] = pa.array([some[row % len(some)] for row in range(rows)], kind)
    return pa.table(columns)


def _assert_same_report(path: Path, suite: list[ExpectationConfig]) -> tuple[int, int]:
    """Check that both ways give the same failures; return how many checks hold, and how many of
    these were proven."""
    config = DatasetConfig(name="x", source="data", format="parquet", expectations=tuple(suite))
    (ours,) = validate_dataset([path], config, now=NOW).files
    frame = with_index(pd.read_parquet(path))
    of_schema = [index for index, one in enumerate(suite) if one.type in OF_THE_SCHEMA]
    of_rows = sorted(set(range(len(suite))) - set(of_schema))
    results = _run_some(frame, suite, of_schema) | _run_some(frame, suite, of_rows)
    certain = {
        index
        for index, spec in enumerate(suite)
        if holds_by_names(
            (spec.type, spec.kwargs), named_columns(spec), list(frame.columns), len(frame), True
        )
    }
    theirs = [
        _from_details(
            *(result.to_json_dict()["result"], result.exception_info, config, index),
            *(path.name, len(frame), list(frame.columns)),
        )
        for index, result in sorted(results.items())
        if not result.success and index not in certain
    ]
    assert (ours.rows, ours.expectations) == (len(frame), len(suite))
    assert list(ours.failures) == theirs
    proven = proof.inspect_file(path, build_expectations(suite)).proven
    return len(suite) - len(theirs), len(proven)


@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 5), st.integers(1, 3))
def test_a_report_is_what_great_expectations_alone_would_give(
    tmp_path: Path, data: st.DataObject, rows: int, group: int
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(_table(data.draw, rows), path, row_group_size=group)
    some = st.lists(st.sampled_from(_suite()), min_size=15, max_size=30)
    _assert_same_report(path, data.draw(some))


def test_good_and_broken_columns_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {
        name: pa.array([values[0], None if name == "single" else values[1], values[0]], kind)
        for name, (kind, values) in TYPES.items()
    }
    pq.write_table(pa.table(columns), path, row_group_size=2)
    held, proven = _assert_same_report(path, _suite()[::9])
    assert held > proven > 5, "most of what holds is proven, and some is left to judge"


@pytest.mark.parametrize("bounds", [{"min_value": "2026-01-01"}, {"max_value": "2026-12-01"}])
def test_a_bound_of_another_kind_proves_nothing(bounds: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({name: pa.array([values[0]], kind) for name, (kind, values) in TYPES.items()}),
        path,
    )
    numbers = ("wide", "unsigned", "single", "double", "money", "text", "flag")
    suite = [
        ExpectationConfig(
            type="expect_column_values_to_be_between", kwargs={"column": name, **bounds}
        )
        for name in numbers
    ]
    assert proof.inspect_file(path, build_expectations(suite)).proven == frozenset()


def test_an_index_and_nullable_types_of_pandas(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "label": pd.array([1, None, 3], "Int64"),
            "kind": pd.Categorical(["a", "b", "a"]),
            "key": ["x", "y", "z"],
        }
    ).set_index("key")
    frame.to_parquet(tmp_path / "a.parquet")
    between = {"column": "label", "min_value": 1, "max_value": 3}
    suite = [
        ExpectationConfig(type="expect_column_values_to_be_between", kwargs=between),
        ExpectationConfig(
            type="expect_column_values_to_be_in_set",
            kwargs={"column": "kind", "value_set": ["a"]},
        ),
        ExpectationConfig(type="expect_column_to_exist", kwargs={"column": "key"}),
        ExpectationConfig(type="expect_column_values_to_not_be_null", kwargs={"column": "key"}),
        ExpectationConfig(
            type="expect_column_values_to_be_in_set",
            kwargs={"column": "key", "value_set": ["x", "y"]},
        ),
    ]
    assert _assert_same_report(tmp_path / "a.parquet", suite) == (3, 2)


def test_only_columns_that_are_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: np.arange(9) for name in ("a", "b", "c", "d")}), path)
    asked: list[list[str]] = []
    iterate, read = pq.ParquetFile.iter_batches, pd.read_parquet

    def iter_batches(self: Any, *arguments: Any, **named: Any) -> Any:
        asked.append(named["columns"])
        return iterate(self, *arguments, **named)

    def read_parquet(path: Path, columns: list[str]) -> Any:
        asked.append(columns)
        return read(path, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    monkeypatch.setattr(pd, "read_parquet", read_parquet)
    suite = (
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "b"}},
        {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "d", "min_value": 0}},
        {"type": "expect_table_column_count_to_equal", "kwargs": {"value": 4}},
    )
    config = DatasetConfig(name="x", source="data", format="parquet", expectations=suite)
    assert validate_dataset([path], config, now=NOW).success
    assert asked == [["b"], ["d"]]


def test_a_large_file_is_judged_an_expectation_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: np.arange(9) for name in ("a", "b", "c")}), path)
    asked: list[list[str]] = []
    read = pd.read_parquet

    def read_parquet(path: Path, columns: list[str]) -> Any:
        asked.append(columns)
        return read(path, columns=columns)

    monkeypatch.setattr(pd, "read_parquet", read_parquet)
    below = [
        {"type": "expect_column_mean_to_be_between", "kwargs": {"column": name, "max_value": 3}}
        for name in ("b", "a")
    ]
    config = DatasetConfig(name="x", source="data", format="parquet", expectations=tuple(below))
    together = validate_dataset([path], config, now=NOW)
    monkeypatch.setattr(validation, "MAX_FRAME_BYTES", 9 * 8)
    apart = validate_dataset([path], config, now=NOW)
    assert asked == [["a", "b"], ["b"], ["a"]]
    assert together == apart and len(apart.problems) == 2


@pytest.mark.parametrize(
    ("kind", "arguments", "needed"),
    [
        ("expect_column_values_to_be_unique", {"column": "b"}, ["b"]),
        (
            "expect_column_pair_values_to_be_equal",
            {"column_A": "c", "column_B": "a"},
            ["a", "c"],
        ),
        ("expect_compound_columns_to_be_unique", {"column_list": ["c", "x"]}, ["c"]),
        (
            "expect_column_values_to_be_unique",
            {"column": "b", "row_condition": "a > 1"},
            ["a", "b", "c"],
        ),
        ("expect_table_row_count_to_equal", {"value": 1}, ["a"]),
        ("expect_something_new", {}, ["a", "b", "c"]),
    ],
)
def test_needed_columns(kind: str, arguments: dict[str, Any], needed: list[str]) -> None:
    spec = ExpectationConfig(type=kind, kwargs=arguments)
    assert needed_columns(spec, ["a", "b", "c"]) == needed
