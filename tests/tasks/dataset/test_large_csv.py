"""A large CSV file is judged block by block, with the same result as in memory."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.errors import DtypeWarning

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.tasks.dataset import validation
from nodesweep.tasks.dataset.judging.tables import (
    LargeCsvTable,
    SmallCsvTable,
    Table,
    TableFile,
    Unreadable,
    local_files,
    rows_per_block,
)
from nodesweep.tasks.dataset.validation import validate_dataset

REPOSITORY = Path(__file__).resolve().parents[3]
NOW = datetime(2026, 11, 24, tzinfo=UTC)
MEAN = "expect_column_mean_to_be_between"


def file_of(path: Path) -> TableFile:
    [file] = local_files([path])
    return file


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("in_s3", [False, True])
def test_columns_have_the_types_that_the_whole_file_has(tmp_path: Path, in_s3: bool) -> None:
    """Each column changes its type after the first block of rows for which pandas chooses types."""
    first, rows = rows_per_block(4), 150_000
    assert first < rows
    numbers = np.arange(rows)
    frame = pd.DataFrame(
        {
            "text": np.where(numbers < first, numbers.astype(str), "x"),
            "late": np.where(numbers < first, "", "x"),
            "float": np.where(numbers < first, numbers.astype(str), "1.5"),
            "truth": np.where(numbers < first, "True", ""),
        }
    )
    path = tmp_path / "a.csv"
    frame.to_csv(path, index=False)
    with path.open("rb") as stream, pytest.warns(DtypeWarning):
        whole = pd.read_csv(stream)
    assert {*map(type, whole["text"].iloc[[0, -1]])} == {int, str}, "pandas decides by block"

    def in_memory() -> io.BytesIO:
        return io.BytesIO(path.read_bytes())

    opened: Callable[[], object] = in_memory if in_s3 else partial(Path, path)
    table = LargeCsvTable(TableFile("a.csv", 0.0, opened, path.stat().st_size))
    assert (table.rows, table.columns) == (rows, list(whole.columns))
    pd.testing.assert_frame_equal(table.read(["float", "text"]), whole[["float", "text"]])
    pd.testing.assert_frame_equal(table.read(table.columns), whole)
    assert table.read([]).shape == (rows, 0)


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n",
        "a,b\n1,2\n",
        "a,a,b\n1,2,\n3,4,x\n",
        '"a\n1",b\n"x\ny",1\n',
    ],
)
def test_odd_files_are_read_as_they_are_whole(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "a.csv", text)
    table, whole = LargeCsvTable(file_of(path)), SmallCsvTable(file_of(path))
    assert (table.rows, table.columns) == (whole.rows, whole.columns)
    assert list(table.without_rows.columns) == table.columns
    if table.rows:
        pd.testing.assert_frame_equal(table.read(table.columns), whole.read(whole.columns))


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n1,2\n1,2,3,4\n", '"a,b\n1', "a,b\n1,2,\n3,4,\n", "a,b\n0,x,2\n1,y,4\n"],
)
def test_a_file_that_can_not_be_read_is_refused_in_the_same_words(
    tmp_path: Path, text: str
) -> None:
    said = []
    for kind in (SmallCsvTable, LargeCsvTable):
        with pytest.raises(Unreadable) as refused:
            kind(file_of(written(tmp_path / "a.csv", text)))
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_the_report_is_the_same_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "c"]
    table = pd.DataFrame(np.arange(60).reshape(20, 3) % 57, columns=names)
    for file in ("x.csv", "y.csv"):
        table.to_csv(tmp_path / file, index=False)
    config = DatasetConfig.model_validate(
        {
            "name": "d",
            "source": str(tmp_path),
            "format": "csv",
            "unique_columns": ["a"],
            "expectations": [
                {"type": MEAN, "kwargs": {"column": name, "max_value": limit}}
                for name, limit in {"a": 30, "b": 20, "c": 10}.items()
            ],
        }
    )
    asked: list[list[str]] = []
    read = LargeCsvTable.read

    def noted(self: LargeCsvTable, columns: Sequence[str]) -> pd.DataFrame:
        asked.append(list(columns))
        return read(self, columns)

    monkeypatch.setattr(LargeCsvTable, "read", noted)
    files = sorted(tmp_path.glob("*.csv"))
    plain = validate_dataset(files, config, now=NOW)
    assert asked == []
    monkeypatch.setattr(validation, "MAX_FRAME_BYTES", 2 * 20 * 8)
    assert validate_dataset(files, config, now=NOW) == plain
    assert asked[:3] == [["a", "b"], ["c"], ["a"]]
    assert {problem.column for problem in plain.problems} == {"a", "b", "c"}


def test_one_column_of_many_takes_a_fraction_of_the_memory(tmp_path: Path) -> None:
    """40 columns of 100,000 rows: 32 MB. A block of rows has 8 MB, a column less than one."""
    path = tmp_path / "a.csv"
    line = ",".join(map(str, range(40)))
    path.write_text(f"{','.join(f'c{n}' for n in range(40))}\n" + f"{line}\n" * 100_000)
    peaks = []
    for kind in (SmallCsvTable, LargeCsvTable):
        tracemalloc.start()
        table: Table = kind(file_of(path))
        assert table.read(["c7"])["c7"].eq(7).all()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    whole, blockwise = peaks
    assert whole > 32e6 and blockwise < 0.7 * whole


# Counts what its own process allocates once a small search has done the lazy imports; in the tests'
# process, other threads allocate too.
MEASURED = """
import json, sys, tracemalloc
from functools import partial
import numpy as np
import pandas as pd
from nodesweep.tasks.dataset.judging.repeats import RepeatedRows

def file(number):
    begin = number * 20_000
    key = np.arange(begin, begin + 20_000)
    return pd.DataFrame({"a": np.where(key % 100_000 == 7, 7, key), "b": key % 2})

def search(files, max_bytes):
    rows = RepeatedRows(["a", "b"], max_bytes)
    for number in range(files):
        rows.add(f"{number}.csv", partial(file, number))
    return rows.find()

search(6, 1 << 16)
tracemalloc.start()
found = search(64, int(sys.argv[1]))
peak = tracemalloc.get_traced_memory()[1]
examples = [[int(value) for value in row] for row in found.examples]
print(json.dumps([peak, found.surplus, found.rows, examples]))
"""


def test_keys_of_many_files_take_no_more_memory_than_they_may() -> None:
    """64 files of 20,000 rows: 20 MB of numbers, 10 of hashes, of which 1 MiB may be held."""
    max_bytes = 1 << 20
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(max_bytes)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak, surplus, rows, examples = json.loads(done.stdout)
    assert (surplus, rows, examples) == (12, 1_280_000, [[7, 1]])
    assert peak < 6 * max_bytes
