"""The request to a Spark job, and the report made of its verdict."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import pyarrow as pa
import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.errors import DatasetRefused
from nodesweep.tasks.dataset.remote.objects import RemoteDataset, RemoteObject
from nodesweep.tasks.dataset.spark.contract import report_of, request_document
from nodesweep.tasks.dataset.validation_report import InvalidExpectations
from tests.tasks.dataset.test_files import dataset_at

NOW = datetime.datetime(2026, 11, 24, 12, 0, tzinfo=datetime.UTC)
SINCE = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "day", "min_value": datetime.date(2026, 1, 1)},
    "severity": "warning",
}
EXISTS = {"type": "expect_column_to_exist", "kwargs": {"column": "day"}}
COUNT = {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 2}}


def section(**more: Any) -> DatasetConfig:
    more = {"expectations": [SINCE, EXISTS, COUNT], "unique_columns": ["id"]} | more
    return dataset_at("s3://bucket/raw", **more)


def dataset(*names: str) -> RemoteDataset:
    objects = [RemoteObject(f"raw/{name}", 9, f'"{name}"', None, NOW) for name in names]
    return RemoteDataset("bucket", "raw/", objects)


def schema(**types: pa.DataType) -> dict[str, Any]:
    arrow = base64.b64encode(pa.schema(types).serialize()).decode()
    return {"columns": list(types), "arrow": arrow}


def verdict(of: RemoteDataset, files: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    plain = {"rows": 2, "schema": 0, "unreadable": None, "failed": {}, "unjudged": []}
    found = {
        "format": 1,
        "request": request_document(section(), of)["digest"],
        "schemas": [schema(day=pa.date32(), id=pa.int64())],
        "files": [plain | file for file in files],
        "repeats": None,
    }
    return json.loads(json.dumps(found | more))


def test_the_request_is_json_and_says_what_to_read() -> None:
    request = request_document(section(), dataset("a.parquet"))
    assert json.loads(json.dumps(request)) == request
    assert request["objects"] == [
        {
            "key": "raw/a.parquet",
            "name": "a.parquet",
            "size_bytes": 9,
            "etag": '"a.parquet"',
            "version_id": None,
        }
    ]
    since, exists, count = request["expectations"]
    assert since == {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "day", "min_value": {"$date": "2026-01-01"}},
        "severity": "warning",
        "columns": ["day"],
        "of_the_schema": False,
    }
    assert (exists["of_the_schema"], count["columns"]) == (True, [])


def test_expectations_that_cannot_be_used_are_refused_before_a_job_starts(
    snapshot: SnapshotAssertion,
) -> None:
    wrong = section(expectations=[{"type": "expect_column_values_to_be_betwen"}])
    with pytest.raises(InvalidExpectations) as refused:
        request_document(wrong, dataset("a.parquet"))
    assert str(refused.value) == snapshot


def test_a_report_has_every_sentence_that_pandas_would_have(snapshot: SnapshotAssertion) -> None:
    found = dataset("a.parquet", "b.parquet", "c.parquet")
    late = {"unexpected_count": 1, "unexpected_percent": 50.0}
    late |= {"partial_unexpected_list": ["2025-12-31"]}
    answer = verdict(
        found,
        [
            {"failed": {"0": {"result": late, "exception_info": None}}},
            {"schema": None, "rows": None, "unreadable": "no footer"},
            {"schema": 1, "unjudged": [2]},
        ],
        schemas=[
            schema(day=pa.date32(), id=pa.int64()),
            schema(day=pa.string(), other=pa.int64()),
        ],
        repeats={"surplus": 1, "rows": 2, "examples": ["7"], "files": ["a.parquet"]},
    )
    report = report_of(answer, section(), found, NOW)
    assert not report.success and report.rows == 4
    assert [file.expectations for file in report.files] == [3, 0, 2]
    assert [failure.message for failure in report.failures] == snapshot
    assert [failure.severity for failure in report.warnings] == ["warning"]


@pytest.mark.parametrize(
    "kind",
    [
        "deleted",
        "replaced",
        "forbidden",
        "other",
    ],
)
def test_what_the_program_could_not_read_is_named(kind: str, snapshot: SnapshotAssertion) -> None:
    found = dataset("a.parquet")
    error = {"kind": kind, "key": "raw/a.parquet", "message": "denied"}
    with pytest.raises(DatasetRefused) as refused:
        report_of(verdict(found, [], error=error), section(), found, NOW)
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"format": 2},
        {"format": 1, "request": "0" * 64},
        verdict(dataset("a.parquet"), []),
        verdict(dataset("a.parquet"), [{"schema": 3}]),
    ],
)
def test_a_verdict_that_is_no_answer_is_refused(answer: Any, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(DatasetRefused) as refused:
        report_of(answer, section(), dataset("a.parquet"), NOW)
    assert str(refused.value) == snapshot


def test_the_digest_is_of_the_data_and_of_its_checks() -> None:
    digests = {
        request_document(one, of)["digest"]
        for one in (section(), section(unique_columns=[]))
        for of in (dataset("a.parquet"), dataset("b.parquet"))
    }
    assert len(digests) == 4
