"""Columns that are not stored in the table, parts without rows, and the nulls of CSV."""

from __future__ import annotations

import datetime
import io
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.infra.image_spark.nodesweep_judge.layout import (
    CSV_OPTIONS,
    csv_column,
    partitions_of,
    with_nulls,
)
from nodesweep.tasks.dataset.judging import tables
from nodesweep.tasks.dataset.judging.tables import LargeCsvTable, TableFile
from nodesweep.tasks.dataset.validation import validate_dataset
from nodesweep.tasks.dataset.validation_report import ValidationReport

NOW = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
NOT_NULL = "expect_column_values_to_not_be_null"
IN_SET = "expect_column_values_to_be_in_set"
BETWEEN = "expect_column_values_to_be_between"


def spec(kind: str, column: str | None = None, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs | ({"column": column} if column else {})}


def judged(
    folder: Path, *specs: dict[str, Any], kind: str = "parquet", **more: Any
) -> ValidationReport:
    config = DatasetConfig.model_validate(
        {"name": "x", "source": str(folder), "format": kind, "expectations": specs, **more}
    )
    return validate_dataset(sorted(folder.rglob(f"*.{kind}")), config, now=NOW)


def put(folder: Path, files: Mapping[str, pa.Table | pd.DataFrame | str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        elif isinstance(content, pd.DataFrame):
            content.to_parquet(path)
        else:
            pq.write_table(content, path)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a=1/b=01/x", "a=-2/b=2/x"], [{"a": 1, "b": 1}, {"a": -2, "b": 2}]),
        (["lr=0.1/x", "lr=1/x"], [{"lr": 0.1}, {"lr": 1.0}]),
        (["v=1/x", "v=main/x"], [{"v": "1"}, {"v": "main"}]),
        (["d=2026-01-02/x"], [{"d": datetime.date(2026, 1, 2)}]),
        (["d=2026-02-30/x"], [{"d": "2026-02-30"}]),
        (["n=1_0/x"], [{"n": "1_0"}]),
        (["z=__HIVE_DEFAULT_PARTITION__/x", "z=3/x"], [{"z": None}, {"z": 3}]),
        (["a%20b=x%2Fy/c=d=e/x"], [{"a b": "x/y", "c": "d=e"}]),
        (["plain/=x/year=1", "x"], [{}, {}]),
    ],
)
def test_partitions(names: list[str], found: list[dict[str, Any]]) -> None:
    assert partitions_of(names) == found


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_partition_is_a_column_of_its_name(tmp_path: Path, kind: str) -> None:
    part: Any = pa.table({"v": [1, 2]}) if kind == "parquet" else "v\n1\n2\n"
    put(tmp_path, {f"year={year}/part.{kind}": part for year in (2025, 2026)})
    good = [
        spec("expect_column_to_exist", "year"),
        spec(NOT_NULL, "year"),
        spec(BETWEEN, "year", min_value=2025, max_value=2026),
        spec(IN_SET, "year", value_set=[2025, "2026"]),
        spec(BETWEEN, "v", max_value=0, row_condition="year < 2025", condition_parser="pandas"),
        spec("expect_column_max_to_be_between", "year", max_value=2026),
        spec("expect_table_column_count_to_equal", value=1),
    ]
    assert judged(tmp_path, *good, kind=kind, unique_columns=["year", "v"]).failures == ()
    bad = [
        spec("expect_column_to_exist", "month"),
        spec(BETWEEN, "year", max_value=2025),
        spec(IN_SET, "year", value_set=[2025]),
        spec(BETWEEN, "v", max_value=0, row_condition="year < 2026", condition_parser="pandas"),
    ]
    report = judged(tmp_path, *bad, kind=kind, unique_columns=["v"])
    assert [(it.index, it.file) for it in report.failures] == [
        (None, None),
        (0, f"year=2025/part.{kind}"),
        (3, f"year=2025/part.{kind}"),
        (0, f"year=2026/part.{kind}"),
        (1, f"year=2026/part.{kind}"),
        (2, f"year=2026/part.{kind}"),
    ]


def test_a_partition_of_one_folder_and_null_and_a_column_of_the_file(tmp_path: Path) -> None:
    put(
        tmp_path, {"day=2026-11-01/zone=__HIVE_DEFAULT_PARTITION__/p.parquet": pa.table({"v": [1]})}
    )
    report = judged(tmp_path, spec(BETWEEN, "day", min_value="2026-11-01"), spec(NOT_NULL, "zone"))
    assert [it.index for it in report.failures] == [1]
    put(tmp_path, {"day=2026-11-01/v=7/q.parquet": pa.table({"v": [1]})})
    assert judged(tmp_path, spec(IN_SET, "v", value_set=[1])).success, "the file's own stands above"


def test_an_index_of_pandas_is_a_column_of_its_name(tmp_path: Path) -> None:
    frame = pd.DataFrame({"v": [1, 2], "id": [10, 20], "at": [1, 1]}).set_index(["id", "at"])
    put(tmp_path, {"a.parquet": frame, "b.parquet": pa.table({"v": [3], "id": [30], "at": [1]})})
    good = [
        spec("expect_column_to_exist", "id"),
        spec(NOT_NULL, "id"),
        spec(BETWEEN, "id", min_value=10, max_value=30),
        spec("expect_column_pair_values_a_to_be_greater_than_b", column_A="id", column_B="v"),
        spec("expect_compound_columns_to_be_unique", column_list=["id", "at"]),
    ]
    assert judged(tmp_path, *good, unique_columns=["id", "at"]).failures == ()
    report = judged(tmp_path, spec(BETWEEN, "id", min_value=15), unique_columns=["at"])
    assert [(it.index, it.unexpected_count) for it in report.failures] == [(None, 2), (0, 1)]


def test_an_index_that_is_not_in_the_file_is_no_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"v": [1, 2]}, index=pd.RangeIndex(2, name="id"))
    put(tmp_path, {"a.parquet": frame, "b.parquet": pd.DataFrame({"v": [1]}, index=[5])})
    assert judged(tmp_path, spec("expect_table_column_count_to_equal", value=1)).success
    assert len(judged(tmp_path, spec(NOT_NULL, "id")).failures) == 2


def test_numbers_as_names_of_columns_are_texts(tmp_path: Path) -> None:
    put(tmp_path, {"a.parquet": pd.DataFrame({0: [1, 2], 1: [3, 3]})})
    specs = [spec(NOT_NULL, "0"), spec(BETWEEN, "1", max_value=2), spec(BETWEEN, "0", max_value=2)]
    specs.append(spec("expect_table_columns_to_match_ordered_list", column_list=["0", "1"]))
    specs.append(spec("expect_table_row_count_to_be_between", min_value=1))
    assert [it.index for it in judged(tmp_path, *specs, unique_columns=["0"]).failures] == [1]


AGGREGATES = [
    *(
        spec(f"expect_column_{which}_to_be_between", "v", min_value=1, max_value=9)
        for which in ("mean", "median", "min", "max", "sum", "unique_value_count")
    ),
    spec("expect_column_stdev_to_be_between", "v", min_value=0.1),
    spec("expect_column_proportion_of_unique_values_to_be_between", "v", min_value=0.5),
    spec("expect_column_distinct_values_to_contain_set", "v", value_set=[1]),
    spec("expect_column_distinct_values_to_equal_set", "v", value_set=[1, 3]),
    spec("expect_column_most_common_value_to_be_in_set", "v", value_set=[1, 3], ties_okay=True),
]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_empty_part_breaks_nothing_about_all_values(tmp_path: Path, kind: str) -> None:
    full: Any = pa.table({"v": [1.0, 3.0]}) if kind == "parquet" else "v\n1.0\n3.0\n"
    empty: Any = full.slice(0, 0) if kind == "parquet" else "v\n"
    of_type = spec("expect_column_values_to_be_of_type", "v", type_="float64")
    put(tmp_path, {f"a.{kind}": full, f"b.{kind}": empty})
    assert judged(tmp_path, *AGGREGATES, of_type, kind=kind).failures == ()
    rows = spec("expect_table_row_count_to_be_between", min_value=1)
    absent = spec("expect_column_mean_to_be_between", "w", min_value=1)
    report = judged(tmp_path, rows, absent, kind=kind)
    assert [(it.file, it.index) for it in report.failures] == [
        (f"a.{kind}", 1), (f"b.{kind}", 0), (f"b.{kind}", 1)
    ]  # fmt: skip


def test_a_dataset_of_empty_parts_is_refused_and_a_part_without_values_is_none(
    tmp_path: Path,
) -> None:
    put(tmp_path, {"a.parquet": pa.table({"v": pa.array([], pa.float64())})})
    [failure] = judged(tmp_path, *AGGREGATES).failures
    assert "no file" in failure.message
    put(tmp_path, {"a.parquet": pa.table({"v": pa.array([None], pa.float64())})})
    assert not judged(tmp_path, AGGREGATES[0]).success


CSV = "country,label,flag\nNA,1,True\nDE,NA,\n,3,NA\n"


@pytest.mark.parametrize("max_bytes", [1 << 30, 0])
def test_na_is_a_text_among_texts_and_a_null_among_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    read_tables = tables.read_tables
    monkeypatch.setattr(
        "nodesweep.tasks.dataset.validation.read_tables",
        lambda files, is_parquet, suite, _: read_tables(files, is_parquet, suite, max_bytes),
    )
    put(tmp_path, {"a.csv": CSV})
    specs = [spec(NOT_NULL, name) for name in ("country", "label", "flag")]
    specs += [spec(IN_SET, "country", value_set=["NA", "DE"]), spec(BETWEEN, "label", max_value=3)]
    specs += [spec(IN_SET, "flag", value_set=[True]), spec(BETWEEN, "label", max_value=2)]
    report = judged(tmp_path, *specs, kind="csv")
    assert [(it.index, it.unexpected_count) for it in report.failures] == [
        (0, 1), (1, 1), (2, 2), (6, 1)
    ]  # fmt: skip


def test_numbers_are_read_as_pandas_reads_them() -> None:
    chosen = random.Random(1)
    words = ["1", "2.5", "NA", "nan", "", "-3", "1e5", "9007199254740993", "inf", "007", " 4"]
    for _ in range(200):
        text = "a,b\n" + "".join(f"{chosen.choice(words)},1\n" for _ in range(5))
        found = with_nulls(pd.read_csv(io.StringIO(text), **CSV_OPTIONS))
        pd.testing.assert_frame_equal(found, pd.read_csv(io.StringIO(text)))


def test_a_block_of_na_in_a_large_file_is_part_of_its_column(tmp_path: Path) -> None:
    rows = tables.rows_per_block(2)
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "NA,NA\n" * rows + "1,DE\n" * 9)
    table = LargeCsvTable(TableFile("a.csv", 0.0, lambda: path, path.stat().st_size))
    frame = table.read(["a", "b"])
    assert frame["a"].dtype == "float64" and frame["a"].isna().sum() == rows
    assert set(frame["b"]) == {"NA", "DE"}
    assert csv_column(pd.Series(["NA", None], dtype="str")).isna().all()


BIG = 2**60


@pytest.mark.parametrize("max_bytes", [1 << 30, 0])
@pytest.mark.parametrize(
    "files",
    [
        {"a.parquet": pa.table({"id": [BIG, BIG + 1]}), "b.parquet": pa.table({"id": [None, 5]})},
        {
            "a.parquet": pa.table({"id": pa.array([BIG, None]).dictionary_encode()}),
            "b.parquet": pa.table({"id": pa.array([BIG + 1]).dictionary_encode()}),
        },
        {"a.csv": f"id\n{BIG}\n{BIG + 1}\n", "b.csv": "id\nNA\n5\n"},
        {"a.csv": f"id,v\n{BIG},1\nNA,2\n", "b.csv": f"id,v\n {BIG + 1},\n"},
    ],
)
def test_big_integers_next_to_a_null_are_different_keys(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, Any],
    max_bytes: int,
) -> None:
    monkeypatch.setattr("nodesweep.tasks.dataset.validation.MAX_FRAME_BYTES", max_bytes)
    kind = next(iter(files)).partition(".")[2]
    put(tmp_path, files)
    exists = spec("expect_column_to_exist", "id")
    assert judged(tmp_path, exists, kind=kind, unique_columns=["id"]).success
    again = files["a.csv"] if kind == "csv" else files["a.parquet"]
    put(tmp_path, {f"c.{kind}": again})
    [failure] = judged(tmp_path, exists, kind=kind, unique_columns=["id"]).failures
    assert failure.unexpected_count == 2 and failure.examples[0] == str(BIG)


OTHER_TYPES: list[tuple[list[Any], list[Any], tuple[Any, list[Any]]]] = [
    ([pa.binary(), pa.large_binary(), pa.binary(1)], [b"x"], (pa.string(), ["x"])),
    (
        [pa.list_(pa.float32(), 1), pa.list_(pa.int64()), pa.large_list(pa.float64())],
        [[1]],
        (pa.list_(pa.string()), [["1"]]),
    ),
    ([pa.list_(pa.int8()), pa.list_(pa.null())], [[]], (pa.int8(), [1])),
    (
        [pa.int8(), pa.uint64(), pa.float16(), pa.decimal128(9, 2), pa.decimal256(60, 2)],
        [1],
        (pa.bool_(), [True]),
    ),
    ([pa.string(), pa.large_string(), pa.string_view()], ["x"], (pa.binary(), [b"x"])),
    (
        [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.date32()],
        [None],
        (pa.time64("us"), [None]),
    ),
    ([pa.time32("s"), pa.time64("ns")], [datetime.time(1)], (pa.duration("s"), [None])),
    (
        [
            pa.struct({"a": pa.int8(), "b": pa.string()}),
            pa.struct({"b": pa.large_string(), "a": pa.float32()}),
        ],
        [None],
        (pa.struct({"a": pa.string()}), [None]),
    ),
    (
        [pa.map_(pa.string(), pa.int8()), pa.map_(pa.large_string(), pa.float64())],
        [None],
        (pa.map_(pa.string(), pa.string()), [None]),
    ),
]


@pytest.mark.parametrize(("kinds", "values", "other"), OTHER_TYPES)
def test_width_unit_and_encoding_of_a_type_do_not_matter(
    tmp_path: Path, kinds: list[Any], values: list[Any], other: tuple[Any, list[Any]]
) -> None:
    for number, kind in enumerate(kinds):
        column = (
            pa.array(values, pa.float32()).cast(kind)
            if kind == pa.float16()
            else pa.array(values, kind)
        )
        put(tmp_path, {f"{number}.parquet": pa.table({"v": column})})
    exists = spec("expect_column_to_exist", "v")
    assert judged(tmp_path, exists).failures == ()
    put(tmp_path, {"9.parquet": pa.table({"v": pa.array(other[1], other[0])})})
    (failure,) = judged(tmp_path, exists).failures
    assert failure.expectation == "column_types" and "9.parquet" in failure.message
