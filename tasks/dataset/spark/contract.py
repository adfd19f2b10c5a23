"""Build the request to a Spark validation job, and the report from its verdict.

    request = request_document(config.dataset, dataset)  # the job's input request.json
    report = report_of(verdict, config.dataset, dataset, now)  # from its output verdict.json

The job runs infra/image_spark/nodesweep_judge. The report's messages come from the functions that a
local validation uses (tasks/dataset/findings.py), so both engines report alike.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from typing import Any

from nodesweep.configs.dataset import DatasetConfig, ExpectationConfig
from nodesweep.errors import DatasetRefused
from nodesweep.infra.image_spark.nodesweep_judge.layout import partitions_of
from nodesweep.scaling import names
from nodesweep.tasks.dataset.findings import Repeats, dataset_report, file_report, unreadable_report
from nodesweep.tasks.dataset.judging.columns import OF_THE_SCHEMA, named_columns
from nodesweep.tasks.dataset.judging.tables import ColumnTypes
from nodesweep.tasks.dataset.remote.objects import RemoteDataset
from nodesweep.tasks.dataset.remote.reading import refusal
from nodesweep.tasks.dataset.validation_report import (
    FileReport,
    InvalidExpectations,
    ValidationReport,
)

FORMAT = 1
READING_ERRORS = ("deleted", "replaced", "forbidden")
"""Kinds of errors in a verdict that concern a single object."""


def request_document(section: DatasetConfig, dataset: RemoteDataset) -> dict[str, Any]:
    """Return the request to the job's program as JSON types.

    Raises:
        InvalidExpectations: the suite is unusable.
    """
    from nodesweep.tasks.dataset.validation import build_expectations

    build_expectations(section.expectations)
    return _request(section, dataset)


def _request(section: DatasetConfig, dataset: RemoteDataset) -> dict[str, Any]:
    document = {
        "format": FORMAT,
        "bucket": dataset.bucket,
        "objects": [
            {
                "key": item.key,
                "name": dataset.name_of(item),
                "size_bytes": item.size_bytes,
                "etag": item.etag,
                "version_id": item.version,
            }
            for item in dataset.objects
        ],
        "data_format": section.format,
        "expectations": [_describe_expectation(spec) for spec in section.expectations],
        "unique_columns": list(section.unique_columns),
    }
    return document | {"digest": names.canonical_digest(document)}


def _describe_expectation(spec: ExpectationConfig) -> dict[str, Any]:
    """Return an expectation for the request.

    `columns` lists the columns to read: none if the number of rows is enough, null if the
    expectation can use any. `of_the_schema` is True if a table without rows is enough.
    """
    columns = named_columns(spec)
    return {
        "type": spec.type,
        "kwargs": {name: _plain(value) for name, value in spec.kwargs.items()},
        "severity": spec.severity,
        "columns": None if columns is None else list(columns),
        "of_the_schema": spec.type in OF_THE_SCHEMA,
    }


def _plain(value: Any) -> Any:
    """Convert a value to JSON types, with dates and times as {"$date": …} and {"$datetime": …}."""
    if isinstance(value, datetime.datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, datetime.date):
        return {"$date": value.isoformat()}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    return value


def report_of(
    verdict: Mapping[str, Any],
    section: DatasetConfig,
    dataset: RemoteDataset,
    now: datetime.datetime,
) -> ValidationReport:
    """Return the report that pandas would have produced for the same data.

    Raises:
        DatasetRefused: an object is unreadable, or the verdict is unusable or for a different
            request.
        InvalidExpectations: an expectation is unusable in Spark.
    """
    _check_verdict(verdict, section, dataset)
    if error := verdict.get("error"):
        raise _refused(error, dataset)
    try:
        return _report(verdict, section, dataset, now)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _unusable(f"it is malformed ({type(error).__name__}: {error})") from error


def _check_verdict(
    verdict: Mapping[str, Any], section: DatasetConfig, dataset: RemoteDataset
) -> None:
    if not isinstance(verdict, Mapping) or verdict.get("format") != FORMAT:
        found = verdict.get("format") if isinstance(verdict, Mapping) else type(verdict).__name__
        raise _unusable(f"its format is {found!r}, but this version of nodesweep reads {FORMAT}")
    if verdict.get("request") != _request(section, dataset)["digest"]:
        raise _unusable("it belongs to a different request: the data or its checks have changed")


def _unusable(why: str) -> DatasetRefused:
    return DatasetRefused(f"the Spark job's verdict can't be used: {why}; run again")


def _refused(error: Mapping[str, Any], dataset: RemoteDataset) -> DatasetRefused:
    kind, message = error.get("kind"), str(error.get("message") or "no reason given")
    if kind in READING_ERRORS:
        return refusal(kind, dataset.bucket, str(error.get("key")), message)
    if kind == "expectations":
        return InvalidExpectations(f"the Spark job can't use the expectations: {message}")
    return DatasetRefused(f"the Spark job could not validate the dataset: {message}")


def _report(
    verdict: Mapping[str, Any],
    section: DatasetConfig,
    dataset: RemoteDataset,
    now: datetime.datetime,
) -> ValidationReport:
    schemas = [_schema(one) for one in verdict["schemas"]]
    suite = range(len(section.expectations))
    reports: list[FileReport] = []
    types = ColumnTypes()
    file_names = [dataset.name_of(item) for item in dataset.objects]
    partitions = partitions_of(file_names)
    for name, partition, found in zip(file_names, partitions, verdict["files"], strict=True):
        if found["unreadable"] is not None:
            reports.append(unreadable_report(section, name, found["unreadable"]))
            continue
        own, index, its_types = schemas[found["schema"]]
        columns = list(dict.fromkeys([*own, *index, *partition]))
        types.add(name, its_types)
        judged = set(suite) - set(found["unjudged"])
        failed = {
            int(index): (one["result"], one["exception_info"])
            for index, one in found["failed"].items()
        }
        reports.append(file_report(section, name, int(found["rows"]), columns, judged, failed))
    modified = {dataset.name_of(item): item.modified.timestamp() for item in dataset.objects}
    repeats = _repeats(verdict["repeats"])
    return dataset_report(section, reports, types, repeats, modified, now)


def _schema(
    described: Mapping[str, Any],
) -> tuple[list[str], list[str], dict[str, tuple[str, str]]]:
    """Return a file's columns, pandas index and types; a CSV file has no types."""
    import pyarrow as pa

    from nodesweep.tasks.dataset.judging.proof import column_types

    columns = [str(column) for column in described["columns"]]
    index = [str(column) for column in described.get("index", ())]
    if described["arrow"] is None:
        return columns, index, {}
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(described["arrow"])))
    return columns, index, column_types(schema)


def _repeats(found: Mapping[str, Any] | None) -> Repeats | None:
    if found is None:
        return None
    return Repeats(
        int(found["surplus"]), int(found["rows"]), tuple(found["examples"]), tuple(found["files"])
    )
