"""Datasets that both engines judge: types, nulls, and planted faults."""

from __future__ import annotations

import datetime
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from nodesweep.configs.dataset import DatasetConfig, ExpectationConfig

BUCKET = "judged"
BETWEEN = "expect_column_values_to_be_between"
NOT_NULL = "expect_column_values_to_not_be_null"
IN_SET = "expect_column_values_to_be_in_set"
LENGTHS = "expect_column_value_lengths_to_be_between"
NAN = float("nan")
TIME = datetime.datetime(2026, 1, 1)


def check(kind: str, severity: str = "critical", **kwargs: Any) -> ExpectationConfig:
    """Return an expectation's config."""
    return ExpectationConfig.model_validate({"type": kind, "kwargs": kwargs, "severity": severity})


@dataclass(frozen=True)
class Case:
    """A dataset's files by name, and its checks."""

    files: Mapping[str, bytes]
    checks: Sequence[ExpectationConfig]
    kind: str = "parquet"
    unique_columns: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def put(self, s3: Any, prefix: str) -> DatasetConfig:
        """Upload the files below a prefix and return the dataset's config."""
        for name, body in self.files.items():
            s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=body)
        return DatasetConfig(
            name="judged",
            source=f"s3://{BUCKET}/{prefix}",
            format=self.kind,
            expectations=tuple(self.checks),
            unique_columns=self.unique_columns,
            **self.more,
        )


def parquet(rows_per_group: int | None = None, **columns: Any) -> bytes:
    """Return a Parquet file with these columns."""
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=rows_per_group)
    return out.getvalue()


def _written(frame: pd.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.to_parquet(out)
    return out.getvalue()


def csv(**columns: Any) -> bytes:
    """Return a CSV file with these columns."""
    return pd.DataFrame(columns).to_csv(index=False).encode()


def typed(shift: int = 0, **changes: Any) -> dict[str, Any]:
    """Return four valid rows of every type; `changes` replace columns."""
    times = [TIME + datetime.timedelta(seconds=step + shift) for step in range(4)]
    columns = {
        "whole": pa.array([1 + shift, 2, 3, 4], pa.int64()),
        "small": pa.array([1, 2, 3, 4], pa.int8()),
        "unsigned": pa.array([1, 2, 3, 4], pa.uint32()),
        "single": pa.array([0.1, 0.2, 0.3, 1.0], pa.float32()),
        "double": pa.array([0.1, 0.2, NAN, None], pa.float64()),
        "decimal": pa.array([Decimal("0.10"), Decimal("1.00"), None, Decimal("0.50")]),
        "text": pa.array(["train", "test", "äö", "train"]),
        "flag": pa.array([True, False, True, None]),
        "day": pa.array([time.date() for time in times]),
        "micros": pa.array(times, pa.timestamp("us")),
        "nanos": pa.array(times, pa.timestamp("ns")),
        "zoned": pa.array(times, pa.timestamp("us", "UTC")),
        "labels": pa.array(["a", "b", "a", None]).dictionary_encode(),
        "lists": pa.array([[1], [2, 3], None, []]),
    }
    return columns | changes


TYPED_CHECKS = (
    check(BETWEEN, column="whole", min_value=0, max_value=9),
    check(BETWEEN, column="small", min_value=1, max_value=4),
    check(BETWEEN, column="unsigned", min_value=0, max_value=4, strict_min=True),
    check(BETWEEN, column="single", min_value=0.1, max_value=1),
    check(BETWEEN, column="double", min_value=0.1, max_value=0.2),
    check(BETWEEN, column="decimal", min_value=0.1, max_value=1),
    check(BETWEEN, column="day", min_value=datetime.date(2026, 1, 1)),
    check(BETWEEN, column="micros", min_value=TIME, max_value="2026-02-01T00:00:00"),
    check(BETWEEN, column="nanos", min_value=TIME),
    check(BETWEEN, column="zoned", min_value=TIME),
    check(BETWEEN, column="text", min_value=0),
    *(check(NOT_NULL, column=name, severity="warning") for name in typed()),
    check(NOT_NULL, column="double", mostly=0.5),
    check(IN_SET, column="text", value_set=["train", "test", "äö"]),
    check(IN_SET, column="whole", value_set=[1, 2, 3, 4, 5]),
    check(IN_SET, column="flag", value_set=[True, False]),
    check(IN_SET, column="labels", value_set=["a", "b"]),
    check(IN_SET, column="single", value_set=[0.1, 0.2, 0.3, 1.0]),
    check("expect_column_values_to_not_be_in_set", column="text", value_set=["none", "test"]),
    check(LENGTHS, column="text", min_value=2, max_value=5),
    check(LENGTHS, column="whole", min_value=1),
    check("expect_column_values_to_be_null", column="lists", mostly=0.25),
    check("expect_column_values_to_be_of_type", column="whole", type_="int64"),
    check("expect_column_values_to_be_of_type", column="text", type_="str"),
    check("expect_column_values_to_match_regex", column="text", regex="^[tä]"),
    check("expect_column_mean_to_be_between", column="whole", min_value=2, max_value=3),
    check("expect_column_min_to_be_between", column="single", min_value=0, max_value=0.2),
    check("expect_column_values_to_be_unique", column="whole", mostly=0.9),
    check("expect_column_stdev_to_be_between", column="double", min_value=0, max_value=1),
    check(
        "expect_column_pair_values_a_to_be_greater_than_b",
        column_A="whole",
        column_B="small",
        or_equal=True,
    ),
    check("expect_compound_columns_to_be_unique", column_list=["text", "small"]),
    check("expect_table_row_count_to_equal", value=4),
    check("expect_table_row_count_to_be_between", min_value=1, max_value=9),
    check("expect_table_column_count_to_equal", value=14),
    check("expect_column_to_exist", column="absent"),
    check(BETWEEN, column="absent", min_value=0),
    check(
        BETWEEN, column="whole", min_value=0, row_condition="small > 2", condition_parser="pandas"
    ),
)

MIXED_A = {
    "day": pa.array([TIME.date()]),
    "time": pa.array([TIME], pa.timestamp("ms")),
    "zoned": pa.array([TIME], pa.timestamp("us", "UTC")),
    "money": pa.array([Decimal("0.10")], pa.decimal128(10, 2)),
    "single": pa.array([0.1], pa.float32()),
    "bytes": pa.array([b"x"], pa.binary()),
    "view": pa.array(["x"], pa.string_view()),
    "lists": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
}
MIXED_B = {
    "day": pa.array([TIME.date()]),
    "time": pa.array([TIME], pa.timestamp("ns")),
    "zoned": pa.array([TIME], pa.timestamp("ns", "Europe/Berlin")),
    "money": pa.array([Decimal("0.2")], pa.decimal128(12, 1)),
    "single": pa.array([0.1], pa.float32()),
    "bytes": pa.array([b"y"], pa.large_binary()),
    "view": pa.array(["y"], pa.large_string()),
    "lists": pa.array([[1.0]], pa.large_list(pa.float64())),
}
"""The same values in types of another width, unit, or encoding."""
MIXED_BAD = {
    "day": pa.array([datetime.date(2026, 1, 3)]),
    "time": pa.array([TIME + datetime.timedelta(days=9)], pa.timestamp("us")),
    "zoned": pa.array([TIME - datetime.timedelta(hours=2)], pa.timestamp("us", "Europe/Berlin")),
    "money": pa.array([Decimal("0.201")], pa.decimal128(20, 3)),
    "single": pa.array([0.70001], pa.float32()),
    "bytes": pa.array([b"z"], pa.binary()),
    "view": pa.array(["z"]),
    "lists": pa.array([None], pa.list_(pa.float32())),
}
INDEXED = _written(pd.DataFrame({"v": [1, 2]}, index=pd.Index([10, 20], name="id")))

SPREAD = parquet(None, a=pa.array([5], pa.int64()), b=pa.array([1.5]))
_NO_FOOTER = parquet(None, a=[1], b=[1.0])[:-4] + b"gone"
_DAMAGED = bytearray(parquet(None, a=pa.array(range(9_000)), b=pa.array([0.5] * 9_000)))
_DAMAGED[20:3000] = bytes(2980)
_LONG_AGO = datetime.datetime(999, 12, 28, 1, 2, 3, 4)
"""A different day in the Julian calendar of Java's timestamps."""
_MICROSECOND = datetime.timedelta(microseconds=1)
ONE_CHECK = (check(BETWEEN, column="a", min_value=0, max_value=9),)

CASES: dict[str, Case] = {
    "types": Case(
        {"a.parquet": parquet(2, **typed()), "b.parquet": parquet(None, **typed(shift=1))},
        TYPED_CHECKS,
    ),
    "faults": Case(
        {
            "good.parquet": parquet(None, **typed()),
            "sub/bad.parquet": parquet(
                1,
                **typed(
                    whole=pa.array([1, 99, None, -7], pa.int64()),
                    single=pa.array([0.05, 2.0, NAN, None], pa.float32()),
                    decimal=pa.array([Decimal("7.25")] * 4),
                    text=pa.array(["oops", None, "a text that is much too long " * 9, "train"]),
                    micros=pa.array([TIME - datetime.timedelta(days=1)] * 4, pa.timestamp("us")),
                    day=pa.array([datetime.date(2025, 12, 31)] * 4),
                ),
            ),
        },
        TYPED_CHECKS,
        more={"min_rows": 9, "max_age_days": 1},
    ),
    "no values": Case(
        {
            "full.parquet": parquet(None, **typed()),
            "null.parquet": parquet(
                None, **{name: pa.nulls(3, column.type) for name, column in typed().items()}
            ),
            "nan.parquet": parquet(None, **typed(single=pa.array([NAN] * 4, pa.float32()))),
            "empty.parquet": parquet(
                None, **{name: column.slice(0, 0) for name, column in typed().items()}
            ),
        },
        TYPED_CHECKS,
    ),
    "only empty": Case({"e.parquet": parquet(None, a=pa.array([], pa.int64()))}, ONE_CHECK),
    "broken files": Case(
        {
            **{f"good-{number}.parquet": SPREAD for number in range(5)},
            "truncated.parquet": _NO_FOOTER,
            "nothing.parquet": b"",
            "damaged.parquet": bytes(_DAMAGED),
            "zone.parquet": parquet(None, a=[1], t=pa.array([0], pa.timestamp("us", "GMT+8"))),
        },
        (*ONE_CHECK, check(NOT_NULL, column="b")),
        unique_columns=("a",),
    ),
    "types change": Case(
        {
            "a.parquet": SPREAD,
            "b.parquet": parquet(None, a=pa.array(["7"]), b=pa.array([2.5])),
            "c.parquet": parquet(None, a=pa.array([7], pa.int32())),
        },
        (*ONE_CHECK, check(NOT_NULL, column="b")),
        unique_columns=("a", "b"),
    ),
    "big numbers": Case(
        {"a.parquet": parquet(None, a=pa.array([2**53 + 1, 2**62, 5], pa.int64()))},
        (
            check(BETWEEN, column="a", max_value=2**53),
            check(BETWEEN, column="a", max_value=2**62),
            check(IN_SET, column="a", value_set=[2**53, 2**62, 5]),
        ),
    ),
    "far bounds": Case(
        {
            "a.parquet": parquet(
                None,
                a=pa.array([-(2**63), 2**63 - 1], pa.int64()),
                t=pa.array([_LONG_AGO, _LONG_AGO], pa.timestamp("us")),
                s=pa.array([0.1, -3e38], pa.float32()),
            )
        },
        (
            check(BETWEEN, column="a", min_value=-(2**63), max_value=2**63 - 1),
            check(BETWEEN, column="a", min_value=-(2**70), max_value=2**70),
            check(BETWEEN, column="a", min_value=-(2**63), max_value=2**63 - 2),
            check(BETWEEN, column="t", min_value=_LONG_AGO, max_value=_LONG_AGO),
            check(BETWEEN, column="t", min_value=_LONG_AGO + _MICROSECOND),
            check(BETWEEN, column="t", max_value=_LONG_AGO + datetime.timedelta(days=5)),
            check(BETWEEN, column="t", min_value=_LONG_AGO + datetime.timedelta(days=2)),
            check(BETWEEN, column="s", min_value=-(10**39), max_value=1e300),
            check(BETWEEN, column="s", min_value=-(10**38)),
        ),
    ),
    "csv": Case(
        {
            "a.csv": csv(a=[1, 2, None, 11], b=["x", "y", "", "zz"], c=[1.5, 2.5, 3.5, 4.5]),
            "b.csv": csv(a=[3, 4], b=["x", "x"], c=[1, 2]),
            "empty.csv": b"",
            "headed.csv": b"a,b,c\n",
            "packed.csv.gz": gzip.compress(csv(a=[5, 12], b=["x", None], c=[0.5, 1.0]), mtime=0),
            "cut.csv.gz": gzip.compress(csv(a=[5] * 99, b=["x"] * 99, c=[0.5] * 99), mtime=0)[:-9],
            "text.csv.gz": b"a,b,c\n",
            "comma.csv": b"a,b,c\n5,x,1,\n6,y,2,\n",
            "_temporary/0/a.csv": csv(a=[99], b=["never judged"], c=[1.0]),
        },
        (
            *ONE_CHECK,
            check(NOT_NULL, column="b"),
            check("expect_column_values_to_be_of_type", column="c", type_="float64"),
            check("expect_table_column_count_to_equal", value=3),
            check("expect_table_row_count_to_equal", value=4),
            check(IN_SET, column="d", value_set=[1]),
        ),
        kind="csv",
        unique_columns=("c",),
    ),
    "keys": Case(
        {
            "a.parquet": parquet(
                2,
                a=pa.array([1, 2, 2, None, 4], pa.int64()),
                b=pa.array([0.5, 0.5, 0.5, NAN, -0.0]),
                s=pa.array(["x", "y", "y", None, "w"]),
            ),
            "b.parquet": parquet(
                None,
                a=pa.array([9, 4, 1], pa.int64()),
                b=pa.array([None, 0.0, 0.5]),
                s=pa.array(["q", "w", "x"]),
            ),
            "no-key.parquet": parquet(None, a=[3]),
            "once.parquet": parquet(None, a=[1], b=[0.5], s=["other"]),
        },
        ONE_CHECK,
        unique_columns=("a", "b", "s"),
    ),
    "unique keys": Case(
        {"a.parquet": parquet(None, a=[1, 2, 3]), "b.parquet": parquet(None, a=[4, 5])},
        ONE_CHECK,
        unique_columns=("a",),
    ),
    "compared": Case(
        {
            "a.parquet": parquet(None, **MIXED_A),
            "b.parquet": parquet(None, **MIXED_B),
            "bad.parquet": parquet(None, **MIXED_BAD),
            "empty.parquet": parquet(None, **{k: v.slice(0, 0) for k, v in MIXED_A.items()}),
        },
        (
            check(BETWEEN, column="day", min_value="2026-01-01", max_value="2026-01-02"),
            check(BETWEEN, column="time", min_value="2026-01-01", max_value="2026-01-02"),
            check(BETWEEN, column="zoned", min_value="2026-01-01T00:00:00Z"),
            check(BETWEEN, column="money", min_value=0.1, max_value=0.2),
            check(BETWEEN, column="single", min_value=0.1, max_value=0.7),
            check(IN_SET, column="time", value_set=["2026-01-01T00:00:00"]),
            check(IN_SET, column="money", value_set=[0.1, "0.2"]),
            check(IN_SET, column="bytes", value_set=["x", "y"]),
            check(IN_SET, column="view", value_set=["x", "y"]),
            check(IN_SET, column="single", value_set=[0.1]),
            check(NOT_NULL, column="lists"),
            check("expect_column_max_to_be_between", column="money", max_value=0.2),
            check("expect_column_max_to_be_between", column="time", max_value="2026-01-02"),
            check("expect_column_mean_to_be_between", column="single", max_value=1),
            check("expect_column_median_to_be_between", column="money", max_value=1),
            check("expect_column_mean_to_be_between", column="absent", max_value=1),
        ),
        unique_columns=("money", "view"),
    ),
    "index and partitions": Case(
        {
            "year=2025/zone=DE/a.parquet": INDEXED,
            "year=2026/zone=NA/b.parquet": INDEXED,
            "year=2027/zone=__HIVE_DEFAULT_PARTITION__/c.parquet": INDEXED,
            "d.parquet": INDEXED,
        },
        (
            check("expect_column_to_exist", column="year"),
            check("expect_column_to_exist", column="id"),
            check(NOT_NULL, column="zone"),
            check(NOT_NULL, column="id"),
            check(BETWEEN, column="year", min_value=2025, max_value=2026),
            check(IN_SET, column="zone", value_set=["DE", "NA"]),
            check(BETWEEN, column="id", max_value=19),
            check("expect_column_max_to_be_between", column="year", max_value=2026),
            check("expect_table_column_count_to_equal", value=1),
            check(
                BETWEEN,
                column="v",
                max_value=1,
                row_condition="year > 2025",
                condition_parser="pandas",
            ),
        ),
        unique_columns=("id", "year"),
    ),
    "partitions of csv": Case(
        {
            "day=2026-11-01/a.csv": b"country,label\nNA,1\nDE,NA\n",
            "day=2026-11-02/b.csv": b"country,label\n,1\nDE,2\n",
            "day=2026-11-03/c.csv": b"country,label\n",
        },
        (
            check(NOT_NULL, column="country"),
            check(NOT_NULL, column="label"),
            check(IN_SET, column="country", value_set=["NA", "DE"]),
            check(BETWEEN, column="day", max_value="2026-11-01"),
            check("expect_column_mean_to_be_between", column="label", max_value=5),
            check("expect_column_values_to_be_of_type", column="label", type_="float64"),
        ),
        kind="csv",
        unique_columns=("country", "day"),
    ),
    **{
        f"big keys of {kind}": Case(
            {f"a.{kind}": write(a=[2**60, None]), f"b.{kind}": write(a=[2**60 + 1, 2**60])},
            ONE_CHECK,
            kind=kind,
            unique_columns=("a",),
        )
        for kind, write in (
            ("parquet", lambda a: parquet(None, a=pa.array(a, pa.int64()))),
            ("csv", lambda a: csv(a=pd.array(a, "Int64"), b=1)),
        )
    },
    "numbers as names": Case(
        {"a.parquet": _written(pd.DataFrame({0: [1, 2], 1: [3, 3]}))},
        (check(NOT_NULL, column="0"), check(BETWEEN, column="1", max_value=2)),
        unique_columns=("0",),
    ),
    "times as keys": Case(
        {
            "a.parquet": parquet(None, a=[1, 2], t=pa.array([TIME, TIME], pa.timestamp("us"))),
            "b.parquet": parquet(None, a=[3], t=pa.array([TIME], pa.timestamp("us"))),
        },
        ONE_CHECK,
        unique_columns=("t",),
    ),
}
