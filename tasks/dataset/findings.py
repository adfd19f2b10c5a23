"""Build a validation report from the findings of a local validation or a Spark job.

See tasks/dataset/validation.py and tasks/dataset/spark/contract.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.tasks.dataset.judging.tables import ColumnTypes
from nodesweep.tasks.dataset.validation_messages import columns_of, describe
from nodesweep.tasks.dataset.validation_report import Failure, FileReport, ValidationReport

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class Repeats:
    """Rows that repeat an earlier key: `surplus` of all `rows`, with example keys and files."""

    surplus: int
    rows: int
    examples: tuple[str, ...]
    files: tuple[str, ...]


def dataset_report(
    dataset: DatasetConfig,
    reports: Sequence[FileReport],
    types: ColumnTypes,
    repeats: Repeats | str | None,
    modified: Mapping[str, float],
    now: datetime,
) -> ValidationReport:
    """Return the report on the dataset and each of its files.

    Args:
        dataset: the config's dataset section.
        reports: the report on each file.
        types: the types of each column.
        repeats: the repeated keys, None if there are none, or the reason why they are unknown.
        modified: modification time by file name, in Unix seconds.
        now: the time of the check.
    """
    rows = sum(report.rows or 0 for report in reports)
    over_all = (
        _row_total_failures(dataset, rows)
        if any(report.rows is not None for report in reports)
        else []
    )
    over_all += [
        _failure("column_types", None, message, column=column)
        for column, message in types.changed.items()
    ]
    if repeats is not None:
        over_all.append(_repeats_failure(dataset, repeats))
    over_all += age_failures(dataset, modified, now)
    return ValidationReport(
        dataset=dataset.name,
        validated_at=now,
        suite=dataset.expectations,
        success=not over_all and all(report.success for report in reports),
        rows=rows,
        files=tuple(reports),
        dataset_failures=tuple(over_all),
    )


def unreadable_report(dataset: DatasetConfig, name: str, reason: str) -> FileReport:
    """Return the report on an unreadable file."""
    failure = _failure("readable", name, f"{name} can't be read as {dataset.format}: {reason}")
    return FileReport(file=name, rows=None, success=False, expectations=0, failures=(failure,))


def file_report(
    dataset: DatasetConfig,
    name: str,
    rows: int,
    columns: Sequence[str],
    judged: Collection[int],
    failed: Mapping[int, tuple[object, Mapping[str, Any] | None]],
) -> FileReport:
    """Return the report on a file.

    Args:
        dataset: the config's dataset section.
        name: the file's name.
        rows: number of rows in the file.
        columns: names of the file's columns.
        judged: positions in the suite of the evaluated expectations.
        failed: details and exception info from Great Expectations by position of the failure.
    """
    failures = [
        _from_details(details, raised, dataset, index, name, rows, columns)
        for index, (details, raised) in sorted(failed.items())
    ]
    for index in sorted(set(range(len(dataset.expectations))) - set(judged)):
        kind = dataset.expectations[index].type
        failures.append(
            _failure(kind, name, f"Great Expectations returned no result for {kind} (file {name})")
        )
    missing = [column for column in dataset.unique_columns if column not in columns]
    if missing:
        message = (
            f"unique_columns: {', '.join(map(repr, missing))} not found in {name};"
            f" {columns_of(columns, dataset.format == 'csv')}"
        )
        failures.append(_failure("unique_columns", name, message, column=", ".join(missing)))
    return FileReport(
        file=name,
        rows=rows,
        success=all(failure.severity != "critical" for failure in failures),
        expectations=len(judged),
        failures=tuple(failures),
    )


def _from_details(
    found: object,
    exception_info: Mapping[str, Any] | None,
    dataset: DatasetConfig,
    index: int,
    file: str,
    rows: int,
    columns: Sequence[str],
) -> Failure:
    """Return the failure of one expectation, as described by Great Expectations.

    An expectation that could not be evaluated is critical regardless of its severity, because
    nothing was checked.
    """
    spec, is_csv = dataset.expectations[index], dataset.format == "csv"
    details = _json_mapping(found)
    raised = _raised_message(exception_info)
    finding = describe(
        spec, details, rows=rows, file=file, raised=raised, columns=columns, is_csv=is_csv
    )
    return Failure(
        expectation=spec.type,
        index=index,
        column=finding.column,
        severity="critical" if raised else spec.severity,
        file=file,
        unexpected_count=details.get("unexpected_count"),
        unexpected_percent=details.get(
            "unexpected_percent_total", details.get("unexpected_percent")
        ),
        examples=finding.examples,
        message=finding.message,
    )


def _json_mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _raised_message(exception_info: Mapping[str, Any] | None) -> str | None:
    """Return the message of a result's exception, or None if it has none.

    The info is flat in some versions of Great Expectations, and has an entry per metric in others.
    """
    info = exception_info or {}
    for entry in [info, *(value for value in info.values() if isinstance(value, Mapping))]:
        if entry.get("raised_exception"):
            return str(entry.get("exception_message") or "no reason given")
    return None


def _row_total_failures(dataset: DatasetConfig, rows: int) -> list[Failure]:
    failures = []
    if rows == 0:
        failures.append(
            _failure("rows", None, "no file has any rows; there is nothing to train on")
        )
    if dataset.min_rows is not None and rows < dataset.min_rows:
        failures.append(
            _failure(
                "min_rows",
                None,
                f"{rows} rows across all files, but min_rows is {dataset.min_rows}",
            )
        )
    if dataset.max_rows is not None and rows > dataset.max_rows:
        failures.append(
            _failure(
                "max_rows",
                None,
                f"{rows} rows across all files, but max_rows is {dataset.max_rows}",
            )
        )
    return failures


def _repeats_failure(dataset: DatasetConfig, found: Repeats | str) -> Failure:
    columns = list(dataset.unique_columns)
    if isinstance(found, str):
        return _failure(
            "unique_columns", None, f"unique_columns: {found}", column=", ".join(columns)
        )
    shown = ", ".join(columns[:3]) + (f" and {len(columns) - 3} more" if len(columns) > 3 else "")
    message = (
        f"unique_columns ({shown}): {found.surplus} of {found.rows} rows repeat another row's"
        f" values, e.g. {'; '.join(found.examples)} (in {', '.join(found.files)})"
    )
    failure = _failure("unique_columns", None, message, column=", ".join(columns))
    update = {
        "unexpected_count": found.surplus,
        "unexpected_percent": 100 * found.surplus / found.rows,
        "examples": found.examples,
    }
    return failure.model_copy(update=update)


def age_failures(
    dataset: DatasetConfig, modified: Mapping[str, float], now: datetime
) -> list[Failure]:
    """Return a failure if even the newest file is older than max_age_days."""
    if dataset.max_age_days is None:
        return []
    newest = max(modified, key=lambda name: modified[name])
    modified_at = datetime.fromtimestamp(modified[newest], UTC)
    age_days = (now - modified_at).total_seconds() / SECONDS_PER_DAY
    if age_days <= dataset.max_age_days:
        return []
    message = (
        f"the newest file, {newest}, was modified {modified_at:%Y-%m-%d %H:%M} UTC, {age_days:.1f}"
        f" days ago, but max_age_days is {dataset.max_age_days:g}. Refresh the data or raise the"
        " limit"
    )
    return [_failure("max_age_days", None, message)]


def _failure(
    expectation: str, file: str | None, message: str, column: str | None = None
) -> Failure:
    return Failure(
        expectation=expectation, column=column, severity="critical", file=file, message=message
    )
