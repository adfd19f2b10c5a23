"""The comparison with Great Expectations on DuckDB: its random data, verdicts and counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import great_expectations_duckdb as program
from benchmarks import validation
from nodesweep.configs.dataset import ExpectationConfig
from nodesweep.configs.installed import _expectations as known_expectations
from nodesweep.configs.installed import expectation_problem


def test_every_expectation_that_a_config_may_name_is_drawn_or_left_out() -> None:
    assert program.DRAWS.keys() | program.LEFT_OUT == known_expectations()
    assert not program.DRAWS.keys() & program.LEFT_OUT
    checks = program.random_checks(Random(1))
    assert {check.type for check in checks} == program.DRAWS.keys()
    assert [check.type for check in checks if expectation_problem(check.type)] == []


def test_a_random_table_is_the_same_for_the_same_seed() -> None:
    first, second = (program.random_table(Random("1 0")) for _ in range(2))
    assert str(first.to_pydict()) == str(second.to_pydict()) and 1 <= first.num_rows <= 6
    assert first.column_names == list(program.columns())


CHECKS = (
    ExpectationConfig(
        type="expect_column_values_to_be_between",
        kwargs={"column": "narrow", "max_value": 9},
        severity="warning",
    ),
    ExpectationConfig(
        type="expect_column_values_to_be_in_set",
        kwargs={"column": "text", "value_set": ["test"]},
        severity="warning",
    ),
    ExpectationConfig(
        type="expect_column_mean_to_be_between",
        kwargs={"column": "text", "min_value": 0},
        severity="warning",
    ),
)
TABLE = pa.table({"narrow": pa.array([1, 9], pa.int32()), "text": ["test", "valid"]})


def test_verdicts_of_a_run_tell_broken_from_not_evaluated(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    found = program.verdicts_here(tmp_path / "a.parquet", CHECKS)
    assert found == [program.HOLDS, program.BROKEN, program.NOT_EVALUATED]


def test_differences_are_counted_with_their_values() -> None:
    here = [program.HOLDS, program.BROKEN, program.NOT_EVALUATED]
    found = program.differences(TABLE, CHECKS, here, [program.HOLDS] * 3)
    assert [one.expectation for one in found] == ["expect_column_values_to_be_in_set"]
    assert found[0].values == {"text": "string: ['test', 'valid']"}
    summary = program.summary_of(Counter(check.type for check in CHECKS[:2]), found)
    assert (summary["compared"], summary["differ"]) == (2, 1)
    assert summary["by_kind"] == {"broken here, holds on DuckDB": 1}
    [(kind, entry)] = summary["by_expectation"].items()
    assert (kind, entry["differ"], len(entry["examples"])) == (found[0].expectation, 1, 1)


def test_without_duckdb_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["great_expectations_duckdb"])
    monkeypatch.setattr(program, "PACKAGES", ("no_such_package",))
    assert program.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_each_way_judges_the_files_on_duckdb(tmp_path: Path) -> None:
    if missing := program.missing_packages():
        pytest.skip(f"{', '.join(missing)}: not installed; see {program.__name__}")
    pq.write_table(TABLE, tmp_path / "a.parquet")
    found = program.verdicts_on_duckdb(tmp_path / "a.parquet", CHECKS)
    assert found == [program.HOLDS, program.BROKEN, program.NOT_EVALUATED]
    (tmp_path / "data").mkdir()
    validation.write_data(tmp_path / "data", rows=600, files=2)
    files = sorted((tmp_path / "data").iterdir())
    for way in ("scan", "boolean_only", "summary"):
        (tmp_path / way).mkdir()
        assert program.prepare(way, files, tmp_path / way)()
