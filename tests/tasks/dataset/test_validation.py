"""Each way in which a dataset can violate its expectations is found, and reported with column, rows
and file."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.data.make_digits import DEFAULT_DIRECTORY
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.errors import DatasetRefused
from nodesweep.launch.store import Store
from nodesweep.tasks.dataset.data_docs import render_data_docs
from nodesweep.tasks.dataset.validation import store_data_docs, validate_dataset
from nodesweep.tasks.dataset.validation_report import (
    InvalidExpectations,
    NoFiles,
    ValidationFailed,
    ValidationReport,
)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
LABEL = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "label", "min_value": 0, "max_value": 9},
}
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "label"}}
IN_SET = {
    "type": "expect_column_values_to_be_in_set",
    "kwargs": {"column": "split", "value_set": ["train", "test"]},
}


def config(*expectations: dict[str, Any], **changes: Any) -> DatasetConfig:
    changes = {"expectations": expectations or (LABEL,), **changes}
    return DatasetConfig(**{"name": "digits", "source": "data", "format": "parquet", **changes})


def check(files: list[Path], *expectations: dict[str, Any], **changes: Any) -> ValidationReport:
    return validate_dataset(files, config(*expectations, **changes), now=NOW)


def table(path: Path, **columns: list[Any]) -> Path:
    pd.DataFrame(columns).to_parquet(path)
    return path


@pytest.fixture
def digits(tmp_path: Path) -> list[Path]:
    return [
        Path(shutil.copy(DEFAULT_DIRECTORY / f"part-{part}.parquet", tmp_path)) for part in range(2)
    ]


@pytest.fixture
def broken(digits: list[Path]) -> list[Path]:
    """A dataset whose second shard has three labels that are not digits."""
    frame = pd.read_parquet(digits[1])
    frame["label"] = frame["label"].where(~frame.index.isin([3, 5, 8]), [11, 12] * 112 + [11])
    frame.to_parquet(digits[1])
    return digits


def test_good_digits_pass(digits: list[Path]) -> None:
    count = {"type": "expect_table_column_count_to_equal", "kwargs": {"value": 65}}
    pixels = [f"pixel_{index}" for index in range(64)]
    report = check(
        digits, LABEL, NOT_NULL, count, min_rows=450, max_rows=450, unique_columns=pixels
    )
    report.raise_if_failed()
    assert (report.success, report.rows, report.failures) == (True, 450, ())
    assert [(file.file, file.rows, file.expectations) for file in report.files] == [
        ("part-0.parquet", 225, 3),
        ("part-1.parquet", 225, 3),
    ]


def test_out_of_range_says_column_rows_examples_and_file(
    broken: list[Path], snapshot: SnapshotAssertion
) -> None:
    (failure,) = check(broken).problems
    assert failure.message == snapshot
    assert (failure.column, failure.unexpected_count, failure.examples) == ("label", 3, (12, 11))
    assert failure.unexpected_percent == pytest.approx(100 * 3 / 225)


def test_every_problem_is_in_one_error(broken: list[Path], snapshot: SnapshotAssertion) -> None:
    report = check(broken, min_rows=500)
    with pytest.raises(ValidationFailed) as error:
        report.raise_if_failed()
    assert isinstance(error.value, DatasetRefused) and error.value.report is report
    assert str(error.value) == snapshot


def test_warning_is_reported_and_lets_the_run_go_on(broken: list[Path]) -> None:
    report = check(broken, {**LABEL, "severity": "warning"})
    report.raise_if_failed()
    assert report.success and not report.problems
    assert [warning.severity for warning in report.warnings] == ["warning"]


def test_null_and_wrong_set(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = table(
        tmp_path / "a.parquet", label=[1, None, 12, 3], split=["train", "test", "tset", "tset"]
    )
    messages = [failure.message for failure in check([file], LABEL, NOT_NULL, IN_SET).problems]
    assert messages == snapshot


def test_table_rules(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = table(tmp_path / "a.parquet", label=[1, 1], extra=[0, 0])
    columns = {
        "type": "expect_table_columns_to_match_set",
        "kwargs": {"column_set": ["label", "split"]},
    }
    rows = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 3}}
    mean = {
        "type": "expect_column_mean_to_be_between",
        "kwargs": {"column": "label", "max_value": 0.5},
    }
    pair = {
        "type": "expect_column_pair_values_to_be_equal",
        "kwargs": {"column_A": "label", "column_B": "extra", "mostly": 0.9},
    }
    messages = [failure.message for failure in check([file], columns, rows, mean, pair).problems]
    assert messages == snapshot


def test_strict_bounds_shares_and_digits_are_reported(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    file = table(tmp_path / "a.parquet", label=[None, 0, 9, 999999.9])
    kwargs: list[dict[str, Any]] = [
        {"min_value": 0, "max_value": 9, "strict_max": True},
        {"min_value": 0, "strict_min": True},
        {"max_value": 999999.8, "mostly": "0.9"},
        {"max_value": 0.1 + 0.2, "mostly": 0.9},
    ]
    specs = [{**LABEL, "kwargs": {"column": "label", **some}} for some in kwargs]
    null = {**NOT_NULL, "kwargs": {"column": "label", "mostly": 0.9}}
    messages = [failure.message for failure in check([file], *specs, null).problems]
    assert messages == snapshot


def test_missing_column_is_critical_even_as_a_warning(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    file = table(tmp_path / "a.parquet", label=[1])
    (failure,) = check([file], {**IN_SET, "severity": "warning"}).problems
    assert failure.message == snapshot


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("label,Split\n1,a\n", "',': label, Split"),
        (
            "label;split\n1;a\n",
            "'label;split'; ",
        ),
        ("label\tsplit\n", "'label\\tsplit'"),
    ],
)
def test_a_missing_column_names_those_that_are_there(tmp_path: Path, text: str, there: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    exists = {"type": "expect_column_to_exist", "kwargs": {"column": "split"}}
    for failure in check([path], IN_SET, exists, format="csv", unique_columns=["split"]).problems:
        assert failure.expectation == "rows" or there in failure.message, failure.message


def test_what_cannot_be_evaluated_fails(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = table(tmp_path / "a.parquet", split=["train"])
    regex = {
        "type": "expect_column_values_to_match_regex",
        "kwargs": {"column": "split", "regex": "("},
    }
    (failure,) = check([file], regex).problems
    assert failure.message == snapshot


def test_same_rows_in_two_files(digits: list[Path], snapshot: SnapshotAssertion) -> None:
    again = Path(shutil.copy(digits[0], digits[0].with_name("part-9.parquet")))
    (failure,) = check(
        [*digits, again], unique_columns=[f"pixel_{index}" for index in range(64)]
    ).problems
    assert failure.unexpected_count == 225 and failure.file is None
    assert "225 of 675" in failure.message
    assert failure.message == snapshot


def test_unique_column_that_is_not_there(digits: list[Path], snapshot: SnapshotAssertion) -> None:
    failures = check(digits, unique_columns=["id"]).problems
    assert [failure.file for failure in failures] == ["part-0.parquet", "part-1.parquet"]
    assert failures[0].message == snapshot


def test_too_many_rows(digits: list[Path], snapshot: SnapshotAssertion) -> None:
    (failure,) = check(digits, max_rows=100).problems
    assert failure.message == snapshot


@pytest.mark.parametrize(("age_days", "stale"), [(6.9, False), (7.5, True)])
def test_age_goes_by_the_newest_file(
    digits: list[Path], age_days: float, stale: bool, snapshot: SnapshotAssertion
) -> None:
    for path, age in zip(digits, (30.0, age_days), strict=True):
        modified = (NOW - timedelta(days=age)).timestamp()
        os.utime(path, (modified, modified))
    problems = check(digits, max_age_days=7).problems
    assert bool(problems) == stale
    if stale:
        assert problems[0].message == snapshot


def test_file_that_is_not_parquet(digits: list[Path]) -> None:
    digits[1].write_bytes(b"not parquet")
    report = check(digits)
    assert report.files[1].rows is None and report.rows == 225
    assert "part-1.parquet can't be" in report.problems[0].message
    page = render_data_docs(report)
    assert ">failed<" not in page and ">passed<" not in page


def test_truncated_file_among_many_is_named_and_the_others_are_judged(tmp_path: Path) -> None:
    files = [table(tmp_path / f"part-{part:02}.parquet", label=[1, 12]) for part in range(20)]
    files[7].write_bytes(files[7].read_bytes()[:-100])
    files[9].write_bytes(b"")
    report = check(files)
    assert [file.file for file in report.files if file.rows is None] == [
        "part-07.parquet",
        "part-09.parquet",
    ]
    messages = [failure.message for failure in report.problems]
    assert messages[7].startswith("part-07.parquet can't be")
    assert len(messages) == 20 and sum("1 of 2 rows" in text for text in messages) == 18


def test_damaged_rows_behind_a_whole_footer_are_named(tmp_path: Path) -> None:
    file = table(tmp_path / "a.parquet", label=list(range(5000)))
    content = bytearray(file.read_bytes())
    content[4:400] = b"\xff" * 396
    file.write_bytes(content)
    (failure,) = check([file]).problems
    assert failure.message.startswith("a.parquet ")


@pytest.mark.parametrize(
    "content",
    [
        pa.table({"label": [1], "t": pa.array([0], pa.timestamp("us", "GMT+8"))}),
        pa.table({"label": pa.array([2**31 - 1], pa.int32()).cast(pa.date32())}),
        pa.table({"label": [1]}).replace_schema_metadata({"pandas": "{}"}),
        pa.table({"label": [1]}).replace_schema_metadata({"pandas": "[]"}),
    ],
    ids=["time zone", "year", "metadata", "type of metadata"],
)
def test_a_table_that_pandas_cannot_hold_is_named(
    tmp_path: Path, content: pa.Table, snapshot: SnapshotAssertion
) -> None:
    pq.write_table(content, tmp_path / "a.parquet")
    (failure,) = check([tmp_path / "a.parquet"]).problems
    assert failure.expectation == "readable" and failure.message == snapshot


def test_text_that_is_not_utf8_is_unreadable_as_for_pandas(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"label": pa.array([b"\xff"]).view(pa.string())}), tmp_path / "a.parquet"
    )
    (failure,) = check([tmp_path / "a.parquet"], NOT_NULL).problems
    assert failure.expectation == "readable"


def test_a_time_that_python_cannot_hold_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": pa.array([2**40], pa.timestamp("s"))}), file)
    since = {**LABEL, "kwargs": {"column": "label", "min_value": "2026-01-01"}}
    until = {**LABEL, "kwargs": {"column": "label", "max_value": "2026-01-01"}}
    assert [failure.index for failure in check([file], since, until).problems] == [1]


def test_column_that_changes_its_type_between_files(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    files = [
        table(tmp_path / "a.parquet", label=[1], split=["x"], note=[None]),
        table(tmp_path / "b.parquet", label=[1.5], split=["x"], note=["y"]),
        table(tmp_path / "c.parquet", label=["1"], split=["x"], note=["y"]),
        table(tmp_path / "d.parquet", label=["1"], split=["x"], note=["y"]),
    ]
    (failure,) = check(files, NOT_NULL).problems
    assert (failure.expectation, failure.column, failure.file) == ("column_types", "label", None)
    assert failure.message == snapshot


def test_csv_in_folders(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.csv").write_text("label\n1\n")
    (tmp_path / "b" / "part.csv").write_text("label\n10\n")
    report = check([tmp_path / "a" / "part.csv", tmp_path / "b" / "part.csv"], format="csv")
    assert [file.file for file in report.files] == ["a/part.csv", "b/part.csv"]
    assert [failure.file for failure in report.problems] == ["b/part.csv"]


def test_bad_expectations_are_refused_together_before_any_file_is_read(
    snapshot: SnapshotAssertion,
) -> None:
    typo = {"type": "expect_column_values_to_be_betwen", "kwargs": {}}
    wrong = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "label", "minimum": 0},
    }
    huge = {**LABEL, "kwargs": {"column": "label", "max_value": 10**400}}
    with pytest.raises(InvalidExpectations) as error:
        check([Path("/nowhere/a.parquet")], LABEL, typo, wrong, huge)
    text = str(error.value)
    assert text == snapshot
    assert "nearest: expect_column_values_to_be_between" in text
    assert "expectations[0]" not in text


def test_empty_suite_is_refused(digits: list[Path], snapshot: SnapshotAssertion) -> None:
    empty = config().model_copy(update={"expectations": ()})
    with pytest.raises(InvalidExpectations) as refused:
        validate_dataset(digits, empty, now=NOW)
    assert str(refused.value) == snapshot


def test_dataset_without_a_row_is_not_valid(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    files = [table(tmp_path / f"{name}.parquet", label=[]) for name in "ab"]
    exists = {"type": "expect_column_to_exist", "kwargs": {"column": "label"}}
    report = check(files, exists)
    assert not report.success
    assert [failure.message for failure in report.problems] == snapshot


def test_one_empty_file_among_others_is_allowed(tmp_path: Path) -> None:
    files = [table(tmp_path / "a.parquet", label=[]), table(tmp_path / "b.parquet", label=[1])]
    assert check(files, {"type": "expect_column_to_exist", "kwargs": {"column": "label"}}).success


def test_files_that_cannot_be_read_are_not_called_empty_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no table")
    assert [failure.expectation for failure in check([tmp_path / "a.parquet"]).problems] == [
        "readable"
    ]


def test_no_files_are_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(NoFiles) as refused:
        check([])
    assert str(refused.value) == snapshot


def test_report_survives_json(broken: list[Path]) -> None:
    report = check(broken)
    assert ValidationReport.model_validate_json(report.model_dump_json()) == report


def test_data_docs_say_it_all_and_load_nothing(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    file = table(tmp_path / "a.parquet", split=["train", evil], label=[1, 2])
    page = render_data_docs(check([file], IN_SET, LABEL, min_rows=3))
    assert "not valid" in page and "min_rows is 3" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and evil not in page
    assert page.count(">failed<") == 1 and page.count(">passed<") == 1
    assert not any(word in page for word in ("http:", "https:", "src=", "href=", "url(", "<script"))
    policy = (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src'
        " 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
    )
    assert page.index(policy) < page.index("<title>"), "before anything that it could allow"
    style = files("nodesweep.scaling.templates").joinpath("report.css").read_text().strip()
    assert style in page, "it looks as the report does"
    assert "1 file, 2 rows, 2 expectations per file" in page


def test_data_docs_are_kept_here_and_in_the_store(
    store: Store, digits: list[Path], tmp_path: Path
) -> None:
    folder, key = tmp_path / "reports", "nodesweep/sweeps/x/report/data-docs.html"
    assert store_data_docs(store, "x", check(digits), folder) == store.link(key)
    assert store.get(key) == (folder / "data-docs.html").read_bytes()
