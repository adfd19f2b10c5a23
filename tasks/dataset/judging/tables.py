"""A dataset's files as tables of which no more is read than is asked for.

tables = read_tables(files, True, suite)  # in the order of the files, several at a time

A file lies on this machine or in S3 (tasks/dataset/remote/reading.py); what it is opened as is
either its path or a file object that reads it where it lies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.expectations.expectation import Expectation

    from tasks.dataset.judging.proof import Seen


REMOTE_FILES_AT_ONCE = 8
"""Reading them is waiting; each holds READ_BUFFER_BYTES of a column (judging/proof.py)."""


@dataclass(frozen=True)
class TableFile:
    """A file to be read as a table. `modified` is in unix seconds; each call of `open` gives its
    path, or a new file object.
    """

    name: str
    modified: float
    open: Callable[[], Any]
    is_remote: bool = False


def local_files(paths: Sequence[Path]) -> Iterator[TableFile]:
    """Files of this machine, named below the folder that they have in common."""
    root = Path(os.path.commonpath([path.parent for path in paths]))
    for path in paths:
        # a Path made of a path is that path
        opened = partial(Path, path)
        yield TableFile(path.relative_to(root).as_posix(), path.stat().st_mtime, opened)


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

    def __init__(self, file: TableFile) -> None:
        import pandas as pd

        self._frame = _reading(pd.read_csv, file.open())
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

    def __init__(self, file: TableFile, seen: Seen) -> None:
        self._file = file
        self.without_rows = seen.columns
        self.rows = seen.rows
        self.columns = list(seen.columns.columns)
        self.proven = seen.proven
        self.types = seen.types

    def read(self, columns: Sequence[str]) -> pd.DataFrame:
        import pandas as pd

        return _reading(pd.read_parquet, self._file.open(), columns=list(columns))


def read_tables(
    files: Sequence[TableFile], is_parquet: bool, suite: Sequence[Expectation]
) -> Iterator[Table | Unreadable]:
    """Each file's table, or why it can't be read. Parquet files are looked at side by side, as many
    as this machine has processors, of those in S3 REMOTE_FILES_AT_ONCE; CSV files one after
    another.
    """
    if not is_parquet:
        for file in files:
            try:
                yield CsvTable(file)
            except Unreadable as error:
                yield error
        return

    from tasks.dataset.judging.proof import look_at

    def look(file: TableFile) -> Table | Unreadable:
        try:
            return ParquetTable(file, _reading(look_at, file.open(), suite))
        except Unreadable as error:
            return error

    is_remote = any(file.is_remote for file in files)
    at_once = REMOTE_FILES_AT_ONCE if is_remote else os.cpu_count() or 1
    with ThreadPoolExecutor(min(len(files), at_once)) as pool:
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

    def add(self, file: str, types: Mapping[str, tuple[str, str]]) -> None:
        """Take in a file's (Table.types)."""
        for column, (what, name) in types.items():
            before, its_name, its_file = self._first.setdefault(column, (what, name, file))
            if before != what and column not in self.changed:
                self.changed[column] = (
                    f"column {column!r} is {its_name} in {its_file} and {name} in {file};"
                    " write it with one type in every file"
                )
