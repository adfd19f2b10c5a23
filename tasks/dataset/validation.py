"""Check a dataset's files against the config's expectations, before any money is spent.

    files = sorted(directory.glob("*.parquet"))
    report = validate_dataset(files, config.dataset, now=datetime.now(UTC))
    report.raise_if_failed()  # ValidationFailed lists every problem

Parquet files are first read in parallel to find the expectations that they provably meet
(judging/proof.py). Great Expectations evaluates the rest in one ephemeral context per file, since a
checkpoint over several files mixes their results. Checks across files (total rows, uniqueness, age)
are done here. An expectation that can't be evaluated counts as failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodesweep.configs.atomic import write_atomic
from nodesweep.configs.dataset import DatasetConfig, ExpectationConfig
from nodesweep.errors import DatasetRefused
from nodesweep.events import Meter
from nodesweep.infra.image_spark.nodesweep_judge.layout import holds_by_names
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.dataset.data_docs import render_data_docs
from nodesweep.tasks.dataset.findings import (
    Repeats,
    age_failures,
    dataset_report,
    file_report,
    unreadable_report,
)
from nodesweep.tasks.dataset.judging.columns import OF_THE_SCHEMA, named_columns, needed_columns
from nodesweep.tasks.dataset.judging.tables import (
    ColumnTypes,
    Table,
    TableFile,
    Unreadable,
    local_files,
    read_tables,
)
from nodesweep.tasks.dataset.validation_report import (
    FileReport,
    InvalidExpectations,
    NoFiles,
    ValidationReport,
)

# great_expectations takes 4 s to import and pandas 0.5 s; `nodesweep --help` must not pay for them.
if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.data_context import EphemeralDataContext
    from great_expectations.expectations.expectation import Expectation

    from nodesweep.tasks.dataset.judging.repeats import RepeatedRows

MAX_FRAME_BYTES = 1 << 30
"""Maximum memory in bytes for the columns that Great Expectations evaluates together.

The columns of a single expectation can take more. The unique columns of all files are held in
memory up to a quarter of it.
"""


def validate_dataset(
    files: Sequence[Path], dataset: DatasetConfig, *, now: datetime
) -> ValidationReport:
    """Validate local files; violations are reported, not raised.

    The age of the data is computed from the modification times of the files.

    Raises:
        InvalidExpectations: the suite is unusable.
        NoFiles: there are no files.
    """
    if not files:
        raise NoFiles(
            f"dataset {dataset.name!r}: no {dataset.pattern} files under {dataset.source};"
            " check the source"
        )
    return validate_tables(local_files(files, Path(dataset.source)), dataset, now=now)


def validate_tables(
    tables_at: Iterable[TableFile], dataset: DatasetConfig, *, now: datetime
) -> ValidationReport:
    """Validate one or more files, local or in S3.

    Raises:
        InvalidExpectations: the suite is unusable.
    """
    suite = build_expectations(dataset.expectations)  # raises before the first file is read
    files = list(tables_at)
    reports = []
    key = _key_of(dataset)
    meter = Meter(f"validation of {dataset.name}", len(files), "files", "dataset")
    tables = read_tables(files, dataset.format == "parquet", suite, MAX_FRAME_BYTES)
    types = ColumnTypes()
    for file, table in zip(files, tables, strict=True):
        if not isinstance(table, Unreadable):
            types.add(file.name, table.types)
        reports.append(_check_file(table, file.name, dataset, key))
        if not isinstance(table, Unreadable):
            table.forget_rows()
        meter.add()
    modified = {file.name: file.modified for file in files}
    return dataset_report(dataset, reports, types, _repeats(key), modified, now)


def build_expectations(specs: Sequence[ExpectationConfig]) -> list[Expectation]:
    """Return the expectation objects, numbered in `meta`.

    Each one is built by its class, because an ExpectationSuite silently drops unknown ones.

    Raises:
        InvalidExpectations: one or more expectations are unusable; the message lists all of them.
    """
    import great_expectations as gx  # noqa: F401  (registers the built-in expectations)
    from great_expectations.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.metadata_types import FailureSeverity
    from great_expectations.expectations.registry import get_expectation_impl

    if not specs:
        raise InvalidExpectations(
            "dataset.expectations: the list is empty, and an empty suite always passes; add at"
            " least one"
        )
    built, problems = [], []
    for index, spec in enumerate(specs):
        where = f"expectations[{index}] {spec.type}"
        try:
            expectation = get_expectation_impl(spec.type)
            built.append(
                expectation(
                    **spec.kwargs, severity=FailureSeverity(spec.severity), meta={"index": index}
                )
            )
        except ExpectationNotFoundError:
            problems.append(
                f"{where}: no such expectation; nearest: {', '.join(_nearest_types(spec.type))}"
            )
        except (TypeError, ValueError, OverflowError) as error:
            problems.append(f"{where}: {_explain_arguments(error)}")
    if problems:
        raise InvalidExpectations(
            "these expectations can't be used:\n" + "\n".join(f"  - {line}" for line in problems)
        )
    return built


def _nearest_types(unknown: str) -> list[str]:
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    known = list_registered_expectation_implementations()
    return difflib.get_close_matches(unknown, known, n=3, cutoff=0.0)


def _explain_arguments(error: Exception) -> str:
    """Return pydantic v1's error as `minn: extra fields not permitted; column: field required`."""
    details = error.errors() if hasattr(error, "errors") else []
    lines = [
        f"{'.'.join(map(str, item['loc']))}: {item['msg']}".removeprefix("__root__: ")
        for item in details
    ]
    return "; ".join(lines) or str(error)


def _key_of(dataset: DatasetConfig) -> RepeatedRows | None:
    """Return the search for repeated rows, or None if no columns have to be unique."""
    from nodesweep.tasks.dataset.judging.repeats import RepeatedRows

    columns = dataset.unique_columns
    return RepeatedRows(columns, MAX_FRAME_BYTES) if columns else None


def _check_file(
    table: Table | Unreadable, name: str, dataset: DatasetConfig, key: RepeatedRows | None
) -> FileReport:
    """Return the file's report, and add its key columns to `key`."""
    try:
        if isinstance(table, Unreadable):
            raise table
        results = _judge(table, dataset)
        columns = [*table.columns, *table.hidden]
        if key is not None and set(dataset.unique_columns) <= set(columns):
            key.add(name, partial(table.read_keys, dataset.unique_columns))
    except Unreadable as error:
        return unreadable_report(dataset, name, str(error))
    failed = {
        index: (result.to_json_dict()["result"], result.exception_info)
        for index, result in results.items()
        if not result.success
    }
    judged = table.proven | _certain(table, dataset) | set(results)
    return file_report(dataset, name, table.rows, columns, judged, failed)


def _certain(table: Table, dataset: DatasetConfig) -> set[int]:
    """Return the positions of expectations that column names and the number of rows alone prove."""
    columns, has_types = [*table.columns, *table.hidden], dataset.format == "parquet"
    return {
        index
        for index, spec in enumerate(dataset.expectations)
        if holds_by_names(
            (spec.type, spec.kwargs), named_columns(spec), columns, table.rows, has_types
        )
    }


def _judge(table: Table, dataset: DatasetConfig) -> dict[int, ExpectationValidationResult]:
    """Return Great Expectations' results for unproven expectations, by position in the suite."""
    specs = dataset.expectations
    certain = table.proven | _certain(table, dataset)
    left = [index for index in range(len(specs)) if index not in certain]
    of_schema = [index for index in left if specs[index].type in OF_THE_SCHEMA]
    of_rows = [index for index in left if specs[index].type not in OF_THE_SCHEMA]
    results = _run_some(table.without_rows, specs, of_schema)
    for group in _groups(table, specs, of_rows):
        results |= _run_some(table.read(_needed(table, specs, group)), specs, group)
    return results


def _groups(table: Table, specs: Sequence[ExpectationConfig], chosen: list[int]) -> list[list[int]]:
    """Group the positions so that each group's columns fit into MAX_FRAME_BYTES, if possible."""
    groups: list[list[int]] = []
    for index in chosen:
        if groups and _frame_bytes(table, specs, [*groups[-1], index]) <= MAX_FRAME_BYTES:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _frame_bytes(table: Table, specs: Sequence[ExpectationConfig], chosen: list[int]) -> int:
    return table.frame_bytes(_needed(table, specs, chosen))


def _needed(table: Table, specs: Sequence[ExpectationConfig], chosen: Sequence[int]) -> list[str]:
    """Return the columns that the chosen positions need, in the file's order."""
    columns = [*table.columns, *table.hidden]
    needed = {column for index in chosen for column in needed_columns(specs[index], columns)}
    return [column for column in columns if column in needed]


def _run_some(
    frame: pd.DataFrame, specs: Sequence[ExpectationConfig], chosen: Sequence[int]
) -> dict[int, ExpectationValidationResult]:
    """Return the results of the expectations at the `chosen` indices, by index."""
    from great_expectations.core import ExpectationValidationResult

    from nodesweep.infra.image_spark.nodesweep_judge.comparing import refused

    checks = [(specs[index].type, specs[index].kwargs) for index in chosen]
    found = {
        chosen[position]: ExpectationValidationResult(success=False, exception_info=info, result={})
        for position, info in refused(frame, checks).items()
    }
    left = [index for index in chosen if index not in found]
    if not left:
        return found
    results = _run_expectations(frame, [specs[index] for index in left])
    return found | {left[index]: result for index, result in results.items()}


def _run_expectations(
    frame: pd.DataFrame, specs: Sequence[ExpectationConfig]
) -> dict[int, ExpectationValidationResult]:
    """Return the results by index in `specs`, because Great Expectations changes their order."""
    import great_expectations as gx

    from nodesweep.infra.image_spark.nodesweep_judge.comparing import comparable
    from nodesweep.tasks.dataset.judging.between import use_vectorised_between

    use_vectorised_between()
    frame, every = comparable(frame, [(spec.type, spec.kwargs) for spec in specs])
    specs = [
        spec.model_copy(update={"kwargs": kwargs})
        for spec, kwargs in zip(specs, every, strict=True)
    ]
    asset = ephemeral_context().data_sources.add_pandas("files").add_dataframe_asset("file")
    suite = gx.ExpectationSuite(name="expectations", expectations=build_expectations(specs))
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    # A batch does not store results, and stored quantiles would not be valid JSON.
    outcome = batch.validate(
        suite, result_format={"result_format": "SUMMARY", "partial_unexpected_count": 100}
    )
    configured = [(result.expectation_config, result) for result in outcome.results]
    return {
        config.meta["index"]: result
        for config, result in configured
        if config is not None and config.meta
    }


def ephemeral_context() -> EphemeralDataContext:
    """Return a Great Expectations context without files, pages or progress bars."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    quiet = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        progress_bars=ProgressBarsConfig(globally=False),
    )
    return gx.get_context(mode="ephemeral", project_config=quiet)


def _repeats(key: RepeatedRows | None) -> Repeats | str | None:
    """Return the rows with a repeated key across all files, or the reason why they are unknown."""
    try:
        found = key.find() if key is not None else None
    except Unreadable as error:
        return f"a file could not be read a second time: {error}"
    except TypeError as error:
        return f"their values can't be compared: {error}"
    if found is None:
        return None
    examples = tuple(", ".join(map(str, values))[:80] for values in found.examples)
    return Repeats(found.surplus, found.rows, examples, found.files)


def check_age(dataset: DatasetConfig, modified: Mapping[str, float]) -> None:
    """Check the age of files that are not tables.

    `modified` maps file names to modification times in Unix seconds.

    Raises:
        DatasetRefused: even the newest file is too old.
    """
    for failure in age_failures(dataset, modified, datetime.now(UTC)):
        raise DatasetRefused(f"dataset {dataset.name!r}: {failure.message}")


def store_data_docs(store: Store, sweep: str, report: ValidationReport, folder: Path) -> str:
    """Write the Data Docs page to `folder` and next to the sweep's report; return its link."""
    page = render_data_docs(report).encode()
    write_atomic(folder / names.DATA_DOCS, page)
    key = names.report_key(store.prefix, sweep, names.DATA_DOCS)
    store.put(key, page)
    return store.link(key)


def validate_files(dataset: DatasetConfig, files: Sequence[Path]) -> ValidationReport:
    """Validate the dataset's local files against its expectations."""
    return validate_dataset(files, dataset, now=datetime.now(UTC))
