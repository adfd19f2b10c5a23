"""Values of a config are compared as values of the column's type, on pandas here and in Spark's
executors.

Good data passes, and the next value fails.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.infra.image_spark.nodesweep_judge.expectations import judge_on_pandas
from nodesweep.infra.image_spark.nodesweep_judge.request import Check
from nodesweep.tasks.dataset.validation import validate_dataset

NOW = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"
NOT_IN_SET = "expect_column_values_to_not_be_in_set"
MIN, MAX, MEDIAN = (f"expect_column_{it}_to_be_between" for it in ("min", "max", "median"))
DISTINCT = "expect_column_distinct_values_to_be_in_set"
CONTAINS = "expect_column_distinct_values_to_contain_set"
COMMON = "expect_column_most_common_value_to_be_in_set"
T = datetime.datetime(2026, 1, 1)
DAY = datetime.timedelta(days=1)
TINY = datetime.timedelta(microseconds=1)
D = Decimal


def times(unit: str, zone: str | None = None, *values: datetime.datetime) -> pa.Array:
    return pa.array(values or (T, T + DAY), pa.timestamp(unit, zone))


def decimals(kind: Any, *values: str) -> pa.Array:
    return pa.array([None if it == "" else D(it) for it in values], kind)


@dataclass(frozen=True)
class Case:
    """An expectation of a column that holds for `good` but not for `bad`."""

    kind: str
    kwargs: dict[str, Any]
    good: pa.Array
    bad: pa.Array


UNITS = ("s", "ms", "us", "ns")
ISO = ["2026-01-01T00:00:00", "2026-01-02"]
LATER = T + 9 * DAY
TENTHS = ["0.10", "0.20", ""]
CASES: dict[str, Case] = {
    **{
        f"times in {unit}, {name}": Case(kind, kwargs, times(unit), times(unit, None, T, LATER))
        for unit in UNITS
        for name, kind, kwargs in (
            ("set", IN_SET, {"value_set": ISO}),
            ("set of times", IN_SET, {"value_set": [T, T + DAY]}),
            ("distinct", DISTINCT, {"value_set": ISO}),
            ("between dates", BETWEEN, {"min_value": "2026-01-01", "max_value": "2026-01-02"}),
            ("a date", BETWEEN, {"max_value": datetime.date(2026, 1, 2)}),
            ("compact", BETWEEN, {"max_value": "20260102"}),
            ("max", MAX, {"max_value": "2026-01-02"}),
            ("median", MEDIAN, {"max_value": "2026-01-02"}),
        )
    },
    **{
        f"times as text, {name}": Case(
            kind,
            kwargs,
            pa.array(["2026-01-01", None, "2026-01-02T00:00:00"]),
            pa.array(["2026-01-01", "2026-01-03"]),
        )
        for name, kind, kwargs in (
            ("quoted", BETWEEN, {"min_value": "2026-01-01", "max_value": "2026-01-02"}),
            ("date", BETWEEN, {"max_value": datetime.date(2026, 1, 2)}),
            ("max", MAX, {"max_value": T + DAY}),
        )
    },
    "dates of a config among texts": Case(
        IN_SET, {"value_set": [T.date()]}, pa.array(["2026-01-01"]), pa.array(["2026-01-02"])
    ),
    "zoned times as text": Case(
        BETWEEN,
        {"min_value": "2026-01-01T00:00:00Z"},
        pa.array(["2026-01-01T01:00:00+01:00"]),
        pa.array(["2026-01-01T00:00:00+01:00"]),
    ),
    "quantiles": Case(
        "expect_column_quantile_values_to_be_between",
        {"quantile_ranges": {"quantiles": [0.0, 1.0], "value_ranges": [[1, 2], [None, 3]]}},
        pa.array([1.5, 3.0]),
        pa.array([1.5, 3.5]),
    ),
    "other times": Case(
        NOT_IN_SET, {"value_set": ["2026-01-03"]}, times("us"), times("us", None, T + 2 * DAY)
    ),
    "most common time": Case(
        COMMON, {"value_set": ISO[:1]}, times("us", None, T, T), times("us", None, LATER, LATER, T)
    ),
    "strict time": Case(
        BETWEEN,
        {"min_value": "2026-01-01", "strict_min": True},
        times("us", None, T + TINY),
        times("us", None, T),
    ),
    "zoned and UTC": Case(
        BETWEEN,
        {"min_value": "2026-01-01T00:00:00Z"},
        times("ms", "Europe/Berlin"),
        times("ms", "Europe/Berlin", T - DAY),
    ),
    "zoned, of its own zone": Case(
        MIN,
        {"min_value": "2026-01-01"},
        times("us", "Europe/Berlin", T),
        times("us", "Europe/Berlin", T - 2 * datetime.timedelta(hours=1)),
    ),
    "zoned in a set": Case(
        IN_SET,
        {"value_set": ["2026-01-01T02:00:00+02:00"]},
        times("us", "UTC", T),
        times("us", "UTC", T + TINY),
    ),
    "dates in a set": Case(
        IN_SET,
        {"value_set": ["2026-01-01", T + DAY]},
        pa.array([T.date(), (T + DAY).date()]),
        pa.array([LATER.date()]),
    ),
    "date before noon": Case(
        BETWEEN, {"max_value": T + DAY / 2}, pa.array([T.date()]), pa.array([(T + DAY).date()])
    ),
    "date after noon": Case(
        BETWEEN,
        {"min_value": "2026-01-01T12:00"},
        pa.array([(T + DAY).date()]),
        pa.array([T.date()]),
    ),
    "noon is no date": Case(
        NOT_IN_SET,
        {"value_set": ["2026-01-01T12:00", "2026-01-05"]},
        pa.array([T.date()]),
        pa.array([(T + 4 * DAY).date()]),
    ),
    "latest date": Case(
        MAX, {"max_value": "2026-01-02"}, pa.array([T.date()]), pa.array([LATER.date()])
    ),
    "clock": Case(
        IN_SET,
        {"value_set": ["01:00"]},
        pa.array([datetime.time(1)], pa.time64("us")),
        pa.array([datetime.time(2)], pa.time32("ms")),
    ),
    **{
        f"{kind}, {name}": Case(
            what, kwargs, decimals(kind, *TENTHS), decimals(kind, "0.09", "0.30")
        )
        for kind in (
            pa.decimal32(5, 2),
            pa.decimal64(12, 4),
            pa.decimal128(10, 2),
            pa.decimal256(60, 20),
        )
        for name, what, kwargs in (
            ("between", BETWEEN, {"min_value": 0.1, "max_value": 0.2}),
            ("set", IN_SET, {"value_set": [0.1, "0.2"]}),
            ("min", MIN, {"min_value": 0.1, "max_value": 0.1}),
            ("distinct", DISTINCT, {"value_set": [0.2, 0.1]}),
        )
    },
    "long decimal above": Case(
        BETWEEN,
        {"max_value": 0.1},
        decimals(pa.decimal128(38, 30), "0.1"),
        decimals(pa.decimal128(38, 30), "0.1", "0.100000000000000000000000000001"),
    ),
    "long decimal below": Case(
        MIN,
        {"min_value": 0.3},
        decimals(pa.decimal128(38, 30), "0.3"),
        decimals(pa.decimal128(38, 30), "0.3", "0.299999999999999999999999999999"),
    ),
    "long decimal in a set": Case(
        IN_SET,
        {"value_set": [0.1]},
        decimals(pa.decimal128(38, 30), "0.1"),
        decimals(pa.decimal128(38, 30), "0.100000000000000000000000000001"),
    ),
    "single at a bound": Case(
        BETWEEN,
        {"min_value": 0.1, "max_value": 0.7},
        pa.array([0.1, 0.7], pa.float32()),
        pa.array([0.1, 0.70001], pa.float32()),
    ),
    "single below": Case(
        BETWEEN,
        {"min_value": 0.7},
        pa.array([0.7], pa.float32()),
        pa.array([0.69999], pa.float32()),
    ),
    "single, strict": Case(
        BETWEEN,
        {"min_value": 0.1, "strict_min": True},
        pa.array([0.2], pa.float32()),
        pa.array([0.1], pa.float32()),
    ),
    "single in a set": Case(
        IN_SET,
        {"value_set": [0.1]},
        pa.array([0.1], pa.float32()),
        pa.array([0.10001], pa.float32()),
    ),
    "a bound that is too large for single": Case(
        BETWEEN,
        {"max_value": 1e300},
        pa.array([3e38], pa.float32()),
        pa.array([float("inf")], pa.float32()),
    ),
    "half": Case(
        BETWEEN, {"max_value": 0.1}, pa.array([0.1], pa.float16()), pa.array([0.2], pa.float16())
    ),
    **{
        f"{kind}": Case(
            IN_SET, {"value_set": [1, "2", 3.0]}, pa.array([1, 2, 3], kind), pa.array([1, 4], kind)
        )
        for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64())
    },
    **{
        f"digits, integers with a null, {kind}": Case(
            kind, {"value_set": ["1", "2"]}, pa.array([*good, None]), pa.array([*bad, None])
        )
        for kind, good, bad in (
            (IN_SET, [1, 2], [1, 3]),
            (NOT_IN_SET, [3, 4], [3, 2]),
            (CONTAINS, [1, 2, 3], [1, 3]),
        )
    },
    **{
        f"{kind}": Case(
            IN_SET,
            {"value_set": ["ab", "ä"]},
            pa.array([b"ab", None], kind),
            pa.array([b"ax"], kind),
        )
        for kind in (pa.binary(), pa.large_binary(), pa.binary(2))
    },
    **{
        f"{kind}": Case(
            IN_SET,
            {"value_set": ["a", "b"]},
            pa.array(["a", None, "b"], pa.string()).cast(kind),
            pa.array(["c"], pa.string()).cast(kind),
        )
        for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
    },
}


def config(kind: str, kwargs: dict[str, Any], source: Path, **more: Any) -> DatasetConfig:
    spec = {"type": kind, "kwargs": {"column": "a", **kwargs}}
    values = {"name": "x", "source": str(source), "format": "parquet", "expectations": [spec]}
    return DatasetConfig.model_validate(values | more)


def on_pandas(case: Case, values: pa.Array, folder: Path) -> bool:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"a": values}), path)
    return validate_dataset([path], config(case.kind, case.kwargs, folder), now=NOW).success


def all_on_pandas(cases: list[Case], table: pa.Table, folder: Path) -> list[bool]:
    path = folder / "all.parquet"
    pq.write_table(table, path)
    specs = [
        {"type": case.kind, "kwargs": {"column": column, **case.kwargs}}
        for case, column in zip(cases, table.column_names, strict=True)
    ]
    asked = config(IN_SET, {}, folder, expectations=specs)
    report = validate_dataset([path], asked, now=NOW)
    assert report.dataset_failures == () and report.files[0].expectations == len(cases)
    failed = {failure.index for failure in report.failures}
    return [index not in failed for index in range(len(cases))]


def all_in_an_executor(cases: list[Case], table: pa.Table, folder: Path) -> list[bool]:
    path = folder / "all.parquet"
    pq.write_table(table, path)
    checks = [
        Check(index, case.kind, {"column": column, **case.kwargs}, "critical", (column,), False)
        for index, (case, column) in enumerate(zip(cases, table.column_names, strict=True))
    ]
    found = judge_on_pandas(pd.read_parquet(path), checks)
    assert not any(
        isinstance(one, dict) and one.get("raised_exception")
        for each in found.values()
        if each is not None
        for one in (each["exception_info"] or {}).values()
    )
    return [found[index] is None for index in range(len(cases))]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[bool, bool]]]:
    """By the name of each case, whether its good and its bad data pass, as each judge finds.

    Columns of as many rows are judged together, since a judgment costs more than its columns do.
    """
    folder = tmp_path_factory.mktemp("judged")
    found: dict[str, dict[str, list[bool]]] = {name: {"good": [], "bad": []} for name in CASES}
    for side, passes in product(("good", "bad"), (all_on_pandas, all_in_an_executor)):
        by_rows = defaultdict(list)
        for name, case in CASES.items():
            by_rows[len(getattr(case, side))].append(name)
        for names in by_rows.values():
            cases = [CASES[name] for name in names]
            columns = {f"c{at}": getattr(case, side) for at, case in enumerate(cases)}
            for name, passed in zip(names, passes(cases, pa.table(columns), folder), strict=True):
                found[name][side].append(passed)
    return {name: list(zip(of["good"], of["bad"], strict=True)) for name, of in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_good_data_passes_and_its_reverse_does_not(
    name: str, verdicts: dict[str, list[tuple[bool, bool]]]
) -> None:
    assert verdicts[name] == [(True, False)] * 2, "on pandas here, and in an executor"


@pytest.mark.parametrize(
    ("zone", "bound"), [(None, "2025-01-01T00:00:00Z"), (None, "5"), ("UTC", 0)]
)
def test_a_bound_that_is_no_time_of_the_column_is_refused(
    zone: str | None, bound: Any, tmp_path: Path
) -> None:
    case = Case(BETWEEN, {"min_value": bound}, times("us", zone), times("us", zone))
    assert not on_pandas(case, case.good, tmp_path)


@pytest.mark.parametrize("kind", [IN_SET, NOT_IN_SET, CONTAINS])
@pytest.mark.parametrize("member", ["2026-01-03T00:00:00Z", T.replace(tzinfo=datetime.UTC)])
def test_a_zone_in_a_set_is_refused_if_the_column_has_none(
    kind: str, member: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": times("us")}), path)
    asked = config(
        kind,
        {"value_set": ["2026-01-01", member]},
        tmp_path,
        expectations=[
            {"type": kind, "kwargs": {"column": "a", "value_set": ["2026-01-01", member]}},
            {"type": IN_SET, "kwargs": {"column": "a", "value_set": ISO}},
        ],
    )
    [failure] = validate_dataset([path], asked, now=NOW).failures
    assert failure.index == 0 and "has a time zone" in failure.message
    checks = [
        Check(at, spec.type, spec.kwargs, "critical", ("a",), False)
        for at, spec in enumerate(asked.expectations)
    ]
    found = judge_on_pandas(pd.read_parquet(path), checks)
    assert found[1] is None and found[0] is not None
    assert "has a time zone" in str(found[0]["exception_info"])


@pytest.mark.parametrize(
    "texts", [["2026-01-01", "soon"], ["2026-01-01T00:00:00+01:00", "2026-01-01T00:00:00+02:00"]]
)
def test_texts_that_are_not_all_times_are_refused(texts: list[str], tmp_path: Path) -> None:
    values = pa.array(texts)
    case = Case(BETWEEN, {"min_value": "2025-01-01"}, values, values)
    assert not on_pandas(case, values, tmp_path)


def test_what_is_not_of_the_column_is_in_no_set(tmp_path: Path) -> None:
    for values in (times("us"), decimals(pa.decimal128(4, 1), "1.5"), pa.array([5])):
        case = Case(IN_SET, {"value_set": ["5th", True, None, [1]]}, values, values)
        assert not on_pandas(case, values, tmp_path)


def test_categories_and_arrow_types_of_pandas(tmp_path: Path) -> None:
    values = pd.Series(pd.to_datetime(["2026-01-01", None]))
    for dtype in ("category", "timestamp[us][pyarrow]"):
        pd.DataFrame({"a": values.astype(dtype)}).to_parquet(tmp_path / "a.parquet")
        for member, success in (("2026-01-01", True), ("2026-01-02", False)):
            found = validate_dataset(
                [tmp_path / "a.parquet"], config(IN_SET, {"value_set": [member]}, tmp_path), now=NOW
            )
            assert found.success is success


def test_pairs_are_compared_as_each_column_of_them(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"a": times("us"), "b": decimals(pa.decimal128(4, 2), "0.1", "0.2")}), path
    )
    kind = "expect_column_pair_values_to_be_in_set"
    pairs = [["2026-01-01", 0.1], ["2026-01-02", 0.2]]
    for some, success in ((pairs, True), (pairs[:1], False)):
        spec = {"type": kind, "kwargs": {"column_A": "a", "column_B": "b", "value_pairs_set": some}}
        asked = config(IN_SET, {}, tmp_path, expectations=[spec])
        assert validate_dataset([path], asked, now=NOW).success is success
