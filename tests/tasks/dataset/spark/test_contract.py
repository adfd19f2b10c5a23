"""What a Spark job is asked, and the report that its verdict becomes."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import pyarrow as pa
import pytest

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.tasks.dataset.remote.objects import RemoteDataset, RemoteObject
from nodesweep.tasks.dataset.spark.contract import report_of, request_document
from nodesweep.tasks.dataset.validation_report import InvalidExpectations
from nodesweep.tasks.errors import DatasetRefused
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


def test_expectations_that_cannot_be_used_are_refused_before_a_job_starts() -> None:
    wrong = section(expectations=[{"type": "expect_column_values_to_be_betwen"}])
    with pytest.raises(InvalidExpectations, match="no such expectation; nearest"):
        request_document(wrong, dataset("a.parquet"))


def test_a_report_has_every_sentence_that_pandas_would_have() -> None:
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
    assert [failure.message for failure in report.failures] == [
        "column 'day' is date32[day] in a.parquet and string in c.parquet;"
        " write it with one type in every file",
        "unique_columns (id): 1 of 2 rows repeat another row's values, e.g. 7 (in a.parquet)",
        "column 'day': 1 of 2 rows not at least 2026-01-01, e.g. 2025-12-31 (file a.parquet)",
        "b.parquet can't be read as parquet: no footer",
        "Great Expectations gave no result for expect_table_row_count_to_equal (file c.parquet)",
        "unique_columns names 'id', not in c.parquet; its columns: day, other",
    ]
    assert [failure.severity for failure in report.warnings] == ["warning"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("deleted", r"s3://bucket/raw/a\.parquet was deleted while the dataset was read"),
        ("replaced", r"s3://bucket/raw/a\.parquet was replaced while the dataset was read"),
        ("forbidden", r"s3://bucket/raw/a\.parquet can't be read \(denied\); allow s3:GetObject"),
        ("other", "the Spark job could not judge the dataset: denied"),
    ],
)
def test_what_the_program_could_not_read_is_named(kind: str, message: str) -> None:
    found = dataset("a.parquet")
    error = {"kind": kind, "key": "raw/a.parquet", "message": "denied"}
    with pytest.raises(DatasetRefused, match=message):
        report_of(verdict(found, [], error=error), section(), found, NOW)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "its format is 'list', and 1 is understood"),
        ({"format": 2}, "its format is 2, and 1 is understood"),
        ({"format": 1, "request": "0" * 64}, "it answers another request"),
        (verdict(dataset("a.parquet"), []), "ValueError: zip"),
        (verdict(dataset("a.parquet"), [{"schema": 3}]), "IndexError"),
    ],
)
def test_a_verdict_that_is_no_answer_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(DatasetRefused, match=f"verdict can't be used: {message}.*run again"):
        report_of(answer, section(), dataset("a.parquet"), NOW)


def test_the_digest_is_of_the_data_and_of_its_checks() -> None:
    digests = {
        request_document(one, of)["digest"]
        for one in (section(), section(unique_columns=[]))
        for of in (dataset("a.parquet"), dataset("b.parquet"))
    }
    assert len(digests) == 4
