"""The parts of the program that judges with Spark, tested without Spark."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError, ResponseStreamingError

from nodesweep.infra.image_spark.nodesweep_judge import proving, range_file, reading
from nodesweep.infra.image_spark.nodesweep_judge.expectations import build, judge_on_pandas
from nodesweep.infra.image_spark.nodesweep_judge.judging import row_count_holds
from nodesweep.infra.image_spark.nodesweep_judge.keys import common_type
from nodesweep.infra.image_spark.nodesweep_judge.reading import (
    ObjectFile,
    ReadError,
    Source,
    find_read_error,
)
from nodesweep.infra.image_spark.nodesweep_judge.request import (
    Check,
    JudgeError,
    S3Object,
    read_request,
)
from nodesweep.infra.image_spark.nodesweep_judge.rules import Proof, proof_of
from nodesweep.infra.image_spark.nodesweep_judge.survey import survey
from tests.infra.image_spark.judged_data import (
    BETWEEN,
    BUCKET,
    IN_SET,
    LENGTHS,
    NAN,
    NOT_NULL,
    TIME,
    parquet,
    typed,
)

SCHEMA = pa.table(typed()).schema
SOURCE = Source(BUCKET, "us-east-1", None)


def check(kind: str, **kwargs: Any) -> Check:
    column = kwargs.get("column")
    return Check(0, kind, kwargs, "critical", (column,) if column else (), False)


def proof(kind: str, **kwargs: Any) -> Proof | None:
    one = check(kind, **kwargs)
    [expectation] = build([one])
    return proof_of(one, expectation, SCHEMA)


@pytest.mark.parametrize(
    ("kind", "kwargs", "sql_type"),
    [
        (BETWEEN, {"column": "whole", "min_value": 0}, "bigint"),
        (BETWEEN, {"column": "unsigned", "max_value": 4.5, "mostly": 0.9}, "bigint"),
        (BETWEEN, {"column": "single", "min_value": 0, "strict_min": True}, "float"),
        (BETWEEN, {"column": "micros", "min_value": TIME}, "timestamp_ntz"),
        (LENGTHS, {"column": "text", "max_value": 5}, "string"),
        (IN_SET, {"column": "text", "value_set": ["a"]}, "string"),
        (NOT_NULL, {"column": "double"}, "double"),
        (NOT_NULL, {"column": "decimal"}, "boolean"),
        (NOT_NULL, {"column": "nanos"}, "boolean"),
    ],
)
def test_what_spark_finds_as_pandas_does_is_proven(
    kind: str, kwargs: dict[str, Any], sql_type: str
) -> None:
    found = proof(kind, **kwargs)
    assert found is not None and found.transport.sql_type == sql_type
    assert "mostly" not in found.asked.kwargs
    assert found.asked.kwargs["column"] == found.transport.name


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        (BETWEEN, {"column": "decimal", "min_value": 0}),
        (BETWEEN, {"column": "nanos", "min_value": TIME}),
        (BETWEEN, {"column": "zoned", "min_value": TIME}),
        (BETWEEN, {"column": "micros", "min_value": datetime.datetime(1582, 10, 4)}),
        (BETWEEN, {"column": "micros", "min_value": datetime.date(2026, 1, 1)}),
        (BETWEEN, {"column": "day", "min_value": datetime.date(2026, 1, 1)}),
        (BETWEEN, {"column": "text", "min_value": 0}),
        (BETWEEN, {"column": "flag", "min_value": 0}),
        (BETWEEN, {"column": "absent", "min_value": 0}),
        (IN_SET, {"column": "whole", "value_set": [1, "2"]}),
        (IN_SET, {"column": "whole", "value_set": [2**53 + 1]}),
        (IN_SET, {"column": "single", "value_set": [0.5]}),
        (IN_SET, {"column": "labels", "value_set": ["a"]}),
        (IN_SET, {"column": "text", "value_set": ["a"] * 1001}),
        (LENGTHS, {"column": "whole", "min_value": 1}),
        (NOT_NULL, {"column": "lists"}),
        (NOT_NULL, {"column": "whole", "row_condition": "small > 1", "condition_parser": "pandas"}),
        ("expect_column_mean_to_be_between", {"column": "whole", "min_value": 0}),
    ],
)
def test_what_spark_may_find_otherwise_is_left_to_pandas(kind: str, kwargs: dict[str, Any]) -> None:
    assert proof(kind, **kwargs) is None


def test_nan_goes_to_spark_as_the_null_that_it_is_to_pandas() -> None:
    found = proof(NOT_NULL, column="single")
    assert found is not None
    sent = found.transport.convert(pa.array([1.0, NAN, None], pa.float32()))
    assert sent.to_pylist() == [1.0, None, None] and sent.type == found.transport.arrow_type
    present = proof(NOT_NULL, column="decimal")
    assert present is not None
    assert present.transport.convert(pa.array(["x", None])).to_pylist() == [True, None]


@pytest.mark.parametrize(
    ("kwargs", "rows", "holds"),
    [
        ({"value": 3}, 3, True),
        ({"value": 4}, 3, False),
        ({"min_value": 1, "max_value": 3}, 3, True),
        ({"max_value": 2}, 3, False),
        ({}, 3, False),
        ({"min_value": "1"}, 3, False),
        ({"min_value": 1, "row_condition": "a > 1"}, 3, False),
    ],
)
def test_a_number_of_rows_is_answered_by_the_footer(
    kwargs: dict[str, Any], rows: int, holds: bool
) -> None:
    assert row_count_holds(check("expect_table_row_count_to_be_between", **kwargs), rows) is holds


def test_an_expectation_that_cannot_be_used_is_named() -> None:
    with pytest.raises(JudgeError, match=r"expectations\[0\] expect_nothing") as refused:
        build([check("expect_nothing")])
    assert refused.value.kind == "expectations"
    with pytest.raises(JudgeError, match=r"format 7, .* format 1: "):
        read_request({"format": 7})


def test_no_traceback_leaves_the_node() -> None:
    frame = pd.DataFrame({"a": ["x"]})
    found = judge_on_pandas(frame, [check(BETWEEN, column="a", min_value=0)])[0]
    assert found is not None
    assert "Traceback" not in str(found) and "raised_exception': True" in str(found)


@pytest.mark.parametrize(
    ("kinds", "sql"),
    [
        ([pa.int8(), pa.int64()], "bigint"),
        ([pa.int8(), pa.uint64()], "decimal(20,0)"),
        ([pa.int32(), pa.float32()], "double"),
        ([pa.string(), pa.dictionary(pa.int8(), pa.string())], "string"),
        ([pa.timestamp("s"), pa.timestamp("us")], "bigint"),
        ([pa.decimal128(5, 2)], "decimal(5,2)"),
        ([pa.bool_(), pa.null()], "boolean"),
        ([pa.date32()], "date"),
    ],
)
def test_keys_of_alike_types_are_compared_in_one(kinds: list[pa.DataType], sql: str) -> None:
    found = common_type(kinds)
    assert found.sql == sql and found.arrow is not None
    for kind in kinds:
        assert found.convert(pa.nulls(2, kind)).null_count == 2
        assert found.convert(pa.nulls(2, kind)).type == found.sent


def test_keys_that_have_nothing_in_common_are_never_equal() -> None:
    found = common_type([pa.int64(), pa.string()])
    assert found.convert(pa.array([7])).to_pylist() == ["number 7"]
    assert found.convert(pa.array(["7", None])).to_pylist() == ["text '7'", None]


@pytest.mark.parametrize(
    "values",
    [
        [pa.array([Decimal("0.10")]), pa.array([Decimal("0.1")]), pa.array([Decimal("0.100")])],
        [pa.array([Decimal("2.00")]), pa.array([2], pa.int8()), pa.array([2.0], pa.float32())],
        [pa.array([b"x"], pa.binary()), pa.array([b"x"], pa.large_binary())],
        [pa.array(["x"], pa.string_view()), pa.array(["x"]), pa.array(["x"]).dictionary_encode()],
    ],
)
def test_keys_that_differ_in_width_alone_are_equal(values: list[pa.Array]) -> None:
    found = common_type([one.type for one in values])
    assert len({found.convert(one)[0].as_py() for one in values}) == 1
    assert all(found.convert(one).type == found.sent for one in values)


def put(s3: Any, body: bytes) -> S3Object:
    answer = s3.put_object(Bucket=BUCKET, Key="x.parquet", Body=body)
    return S3Object(0, "x.parquet", "x.parquet", len(body), answer["ETag"])


@pytest.mark.parametrize("whole_bytes", [0, 100])
def test_an_object_reads_and_seeks_as_a_file_does(
    s3: Any, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(range_file, "WHOLE_BYTES", whole_bytes)
    body = bytes(range(100))
    ours, theirs = ObjectFile(SOURCE, put(s3, body)), io.BytesIO(body)
    assert ours.readable() and ours.seekable()
    for offset, whence, count in [(5, 0, 10), (-10, 2, 4), (3, 1, -1), (0, 0, 200), (300, 0, 1)]:
        assert ours.seek(offset, whence) == theirs.seek(offset, whence)
        assert ours.read(count) == theirs.read(count)
        assert ours.tell() == theirs.tell() or offset == 300


def test_what_can_no_longer_be_read_is_named_to_the_driver(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = put(s3, b"before")
    s3.put_object(Bucket=BUCKET, Key=item.key, Body=b"after!")
    with pytest.raises(ReadError) as replaced:
        ObjectFile(SOURCE, item).read()
    s3.delete_object(Bucket=BUCKET, Key=item.key)
    with pytest.raises(ReadError) as deleted:
        ObjectFile(SOURCE, item).read()

    def refuse(**_: Any) -> Any:
        answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(answer, "GetObject")

    item = put(s3, b"before")
    client = reading._client(SOURCE.region, SOURCE.endpoint_url, reading.os.getpid())
    monkeypatch.setattr(client, "get_object", refuse)
    with pytest.raises(ReadError) as forbidden:
        ObjectFile(SOURCE, item).read()
    found = [
        find_read_error(f"Job aborted:\n {one.value}\n at java")
        for one in (replaced, deleted, forbidden)
    ]
    assert [one and one["kind"] for one in found] == ["replaced", "deleted", "forbidden"]
    assert {one and one["key"] for one in found} == {"x.parquet"}
    assert find_read_error("nothing of ours") is None


def test_a_body_that_breaks_off_is_asked_for_again(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = put(s3, b"all of it")
    client = reading._client(SOURCE.region, SOURCE.endpoint_url, reading.os.getpid())
    get_object, asked = client.get_object, []
    monkeypatch.setattr(reading.time, "sleep", lambda _: None)

    def break_off(**request: Any) -> Any:
        asked.append(request["Range"])
        if len(asked) < 3:
            raise ResponseStreamingError(error="reset")
        return get_object(**request)

    monkeypatch.setattr(client, "get_object", break_off)
    assert ObjectFile(SOURCE, item).read() == b"all of it"
    assert asked == ["bytes=0-8"] * 3
    monkeypatch.setattr(reading, "ATTEMPTS", 1)
    asked.clear()
    with pytest.raises(RuntimeError, match=r"s3://judged/x\.parquet: .*reset"):
        ObjectFile(SOURCE, item).read()


def test_a_footer_tells_rows_types_and_which_columns_have_values(s3: Any) -> None:
    item = put(s3, parquet(2, a=[1, None, 3], b=pa.nulls(3, pa.string()), c=[NAN] * 3))
    found = survey(SOURCE, item, {"a", "b", "c"})
    assert (found.rows, found.row_groups, found.columns) == (3, (2, 1), ("a", "b", "c"))
    assert found.valued == {"a"}
    broken = survey(SOURCE, put(s3, b"PAR1"), ())
    assert broken.unreadable and broken.columns == ()


def test_slices_never_cut_a_row_group_and_know_their_first_row(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "ROWS_PER_SLICE", 3)
    out = io.BytesIO()
    pq.write_table(pa.table({"a": range(7)}), out, row_group_size=2)
    item = put(s3, out.getvalue())
    slices = proving.slices_of(item, survey(SOURCE, item, ()))
    assert [(one.row_groups, one.first_row) for one in slices] == [((0, 1), 0), ((2, 3), 4)]
    read = [batch.column(0).to_pylist() for batch in proving.batches_of(SOURCE, slices[1], ["a"])]
    assert [value for batch in read for value in batch] == [4, 5, 6]
