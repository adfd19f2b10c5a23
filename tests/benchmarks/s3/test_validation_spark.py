"""The benchmark of validation on Spark: the faults that it plants, and its ratios."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from benchmarks.s3.validation_spark import plant_faults, ratios, section
from benchmarks.validation import write_data
from nodesweep.tasks.dataset.validation import validate_dataset


def test_planted_faults_are_what_pandas_reports(tmp_path: Path) -> None:
    write_data(tmp_path, rows=600, files=2)
    files = sorted(tmp_path.iterdir())
    good = section(600, faults=False)
    assert validate_dataset(files, good, now=datetime.now(UTC)).success
    plant_faults(files[-1])
    report = validate_dataset(files, section(600, faults=True), now=datetime.now(UTC))
    assert {failure.column for failure in report.problems} == {
        "narrow_0",
        "split",
        "double_1",
        "id",
    }
    assert all(failure.unexpected_count == 1 for failure in report.problems)


def test_ratios_are_to_pandas_and_to_the_first_number_of_nodes() -> None:
    spark = {1: {"judging_seconds": 40.0}, 4: {"judging_seconds": 10.0}}
    found = ratios({"pandas": {"wall_seconds": 4.0}, "spark": spark})
    assert found == {"to_pandas": {1: 10.0, 4: 2.5}, "to_one_node": {1: 1.0, 4: 4.0}}
