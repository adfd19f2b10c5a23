"""A dataset's files as tables of which no more is read than is asked for.

tables = read_tables(files, True, suite)  # in the order of the files, several at a time
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.expectations.expectation import Expectation

    from tasks.dataset.judging.proof import Seen


class Unreadable(Exception):
    """The file can't be read as what it is said to be; the message is the reader's first line."""


class Table(Protocol):
    """One file: its rows are read when they are asked for."""

    rows: int
    columns: list[str]
    proven: frozenset[int]
    """Positions in the suite of what certainly holds in it."""
    types: dict[str, tuple[str, str]]
    """Of each column what its values are and its type's own name; empty where the file says no
    types.
    """

    @property
    def without_rows(self) -> pd.DataFrame:
        """Every column, and no row."""

    def read(self, columns: Sequence[str]) -> pd.DataFrame:
        """Some columns. Raises Unreadable."""


class CsvTable:
    """A CSV file, all of it in memory: the types of its columns are known at its end."""

    def __init__(self, path: Path) -> None:
        import pandas as pd

        self._frame = _reading(pd.read_csv, path)
        self.rows = len(self._frame)
        self.columns = list(self._frame.columns)
        self.proven: frozenset[int] = frozenset()
        self.types: dict[str, tuple[str, str]] = {}

    @property
    def without_rows(self) -> pd.DataFrame:
        return self._frame.iloc[:0]

    def read(self, columns: Sequence[str]) -> pd.DataFrame:
        return self._frame[list(columns)]


class ParquetTable:
    """A Parquet file after one pass that looked for what certainly holds."""

    def __init__(self, path: Path, seen: Seen) -> None:
        self._path = path
        self.without_rows = seen.columns
        self.rows = seen.rows
        self.columns = list(seen.columns.columns)
        self.proven = seen.proven
        self.types = seen.types

    def read(self, columns: Sequence[str]) -> pd.DataFrame:
        import pandas as pd

        return _reading(pd.read_parquet, self._path, columns=list(columns))


def read_tables(
    files: Sequence[Path], is_parquet: bool, suite: Sequence[Expectation]
) -> Iterator[Table | Unreadable]:
    """Each file's table, or why it can't be read. Parquet files are looked at side by side, as many
    as this machine has processors; CSV files one after another.
    """
    if not is_parquet:
        for path in files:
            try:
                yield CsvTable(path)
            except Unreadable as error:
                yield error
        return

    from tasks.dataset.judging.proof import look_at

    def look(path: Path) -> Table | Unreadable:
        try:
            return ParquetTable(path, _reading(look_at, path, suite))
        except Unreadable as error:
            return error

    with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1)) as pool:
        yield from pool.map(look, files)


def _reading(read: Any, *arguments: Any, **named: Any) -> Any:
    """Call a reader; what it raises for a file that is none of its kind becomes Unreadable."""
    import pyarrow as pa

    try:
        return read(*arguments, **named)
    except (OSError, ValueError, pa.ArrowException) as error:
        # pandas' parsing errors are ValueErrors
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise Unreadable(text) from error


class ColumnTypes:
    """What the columns of the files seen so far are, to find one that is something else later."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, str, str]] = {}
        self.changed: dict[str, str] = {}
        """Of each column that changes, a sentence that names both files."""

    def add(self, file: str, table: Table) -> None:
        for column, (what, name) in table.types.items():
            before, its_name, its_file = self._first.setdefault(column, (what, name, file))
            if before != what and column not in self.changed:
                self.changed[column] = (
                    f"column {column!r} is {its_name} in {its_file} and {name} in {file};"
                    " write it with one type in every file"
                )
