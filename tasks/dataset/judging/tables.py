"""Open a dataset's files as tables that load only the requested columns.

    tables = read_tables(files, True, suite, max_bytes)  # in the order of `files`

A local file is opened by its path, an S3 object as a file object
(tasks/dataset/remote/reading.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nodesweep.infra.image_spark.nodesweep_judge.layout import (
    CSV_OPTIONS,
    add_partition,
    csv_column,
    csv_keys,
    csv_width,
    parquet_keys,
    partitions_of,
    read_csv,
    read_csv_text,
    with_index,
)

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.expectations.expectation import Expectation

    from nodesweep.tasks.dataset.judging.proof import InspectedFile
BYTES_PER_VALUE = 8
"""Estimated memory per value in bytes."""
_MOST_DEFLATED = 1032
"""Maximum unpacked bytes per byte of a .gz file (zlib's "Technical Details": 1032:1)."""
REMOTE_FILES_AT_ONCE = 8
"""Remote files read in parallel; each buffers READ_BUFFER_BYTES of a column (judging/proof.py)."""


@dataclass(frozen=True)
class TableFile:
    """A file to be read as a table.

    `modified` is in Unix seconds; `open` returns the file's path, or a new file object per call.
    """

    name: str
    modified: float
    open: Callable[[], Any]
    size_bytes: int
    is_remote: bool = False
    partition: Mapping[str, Any] = field(default_factory=dict)
    """Column values from the names of the folders below the source (nodesweep_judge/layout.py)."""

    @property
    def compression(self) -> str | None:
        """The compression's name in pandas, which cannot infer it from a nameless file object."""
        return "gzip" if self.name.endswith(".gz") else None

    @property
    def max_text_bytes(self) -> int:
        """The maximum size of a CSV file's text in bytes."""
        return self.size_bytes * (1 if self.compression is None else _MOST_DEFLATED)


def local_files(paths: Sequence[Path], source: Path | None = None) -> Iterator[TableFile]:
    """Yield files on this machine, with names relative to their common folder.

    Partitions are folders below `source`, or below the common folder if `source` is None.
    """
    root = Path(os.path.commonpath([path.parent for path in paths]))
    below = source if source is not None and root.is_relative_to(source) else root
    partitions = partitions_of([path.relative_to(below).as_posix() for path in paths])
    for path, partition in zip(paths, partitions, strict=True):
        # For a local file, `open` returns its path.
        opened, status = partial(Path, path), path.stat()
        name = path.relative_to(root).as_posix()
        yield TableFile(
            name, status.st_mtime, opened, status.st_size, is_remote=False, partition=partition
        )


class Unreadable(Exception):
    """A file can't be read in its format; the message is the first line of the reader's error."""


class Table(Protocol):
    """A file whose rows are read on request."""

    rows: int
    columns: list[str]
    hidden: list[str]
    """Further columns that can be read by name: pandas' index and the partition's columns."""
    proven: frozenset[int]
    """Positions in the suite of the expectations that the file provably meets."""
    types: dict[str, tuple[str, str]]
    """Each column's kind of values and type name; empty if the file has no types."""

    @property
    def without_rows(self) -> pd.DataFrame:
        """An empty frame with every column."""

    def read(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return all rows of the given columns.

        Raises:
            Unreadable: the reader cannot parse the file.
        """

    def read_keys(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return all rows of the given columns, as read() does, but integers are exact."""

    def frame_bytes(self, columns: Sequence[str]) -> int:
        """Return the bytes of memory that those columns take, estimated if unknown."""

    def forget_rows(self) -> None:
        """Free the memory; a later read() reads the file again."""


class SmallCsvTable:
    """A CSV file that stays in memory after it was read."""

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self._whole: pd.DataFrame | None = None
        whole = self._frame()
        self.rows = len(whole)
        self.columns = list(whole.columns)
        self.hidden = [name for name in file.partition if name not in self.columns]
        self.without_rows = whole.iloc[:0].copy()
        self.proven: frozenset[int] = frozenset()
        self.types: dict[str, tuple[str, str]] = {}

    def _frame(self) -> pd.DataFrame:
        if self._whole is None:
            self._whole = _call_reader(read_csv, self._file.open(), self._file.compression)
        return self._whole

    def read(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return all rows of the given columns."""
        return add_partition(self._frame(), self._file.partition, columns)

    def read_keys(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return all rows of the given columns; integers are exact."""
        return _exact(self.read(columns), self._file)

    def frame_bytes(self, columns: Sequence[str]) -> int:
        """Return the estimated bytes of memory that those columns take."""
        return self.rows * len(columns) * BYTES_PER_VALUE

    def forget_rows(self) -> None:
        """Free the memory; a later read() reads the file again."""
        self._whole = None


class LargeCsvTable:
    """A CSV file that is read in blocks, again for each request.

    pandas infers types from blocks of the same size, so columns get the same types.
    """

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self.rows = 0
        self._bytes_of: dict[str, int] = {}
        for block in self._blocks():
            if not self.rows:
                self.without_rows = block.iloc[:0].copy()
            self.rows += len(block)
            for name, count in block.memory_usage(index=False, deep=True).items():
                self._bytes_of[str(name)] = self._bytes_of.get(str(name), 0) + int(count)
        self.columns = list(self.without_rows.columns)
        self.hidden = [name for name in file.partition if name not in self.columns]
        self.proven: frozenset[int] = frozenset()
        self.types: dict[str, tuple[str, str]] = {}

    def _blocks(self) -> Iterator[pd.DataFrame]:
        import pandas as pd

        source, compression = self._file.open(), self._file.compression
        rows = rows_per_block(_call_reader(csv_width, source, compression))
        blocks = {"chunksize": rows, "compression": compression, **CSV_OPTIONS}
        with _call_reader(pd.read_csv, source, **blocks) as reader:
            while (block := _call_reader(next, reader, None)) is not None:
                yield block

    def read(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return all rows of the given columns."""
        import pandas as pd

        own = [name for name in columns if name in self.columns]
        if not own:
            frame = self.without_rows[[]].reindex(range(self.rows))
            return add_partition(frame, self._file.partition, columns)
        pieces: dict[str, list[pd.Series]] = {name: [] for name in own}
        for block in self._blocks():
            for name, its in pieces.items():
                its.append(block[name].copy())
        frame = pd.DataFrame({name: csv_column(_joined(its)) for name, its in pieces.items()})
        return add_partition(frame, self._file.partition, columns)

    def read_keys(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return all rows of the given columns; integers are exact."""
        return _exact(self.read(columns), self._file)

    def frame_bytes(self, columns: Sequence[str]) -> int:
        """Return the bytes of memory that those columns took in the first pass."""
        return sum(self._bytes_of.get(name, self.rows * BYTES_PER_VALUE) for name in columns)

    def forget_rows(self) -> None:
        """Do nothing: no rows are held in memory."""


def _exact(frame: pd.DataFrame, file: TableFile) -> pd.DataFrame:
    """Return columns of a CSV file, with exact integers."""

    def read_text(columns: list[str]) -> pd.DataFrame:
        text: pd.DataFrame = _call_reader(read_csv_text, file.open(), file.compression, columns)
        return text

    return csv_keys(frame, read_text)


def _joined(pieces: Sequence[pd.Series]) -> pd.Series:
    """Concatenate the blocks of a column as pandas would.

    Concatenating whole frames would lose the types of blocks without values. Strings with nulls
    stay strings.
    """
    import pandas as pd

    column = pd.concat(pieces)
    if column.dtype == object:
        return pd.Series(column.to_numpy(), index=column.index)
    return column


def rows_per_block(columns: int) -> int:
    """Return the number of CSV rows that pandas reads before it infers types.

    It is the largest power of two with fewer than 2**20 values (TextReader in
    pandas/_libs/parsers.pyx).
    """
    values = 2**20 // max(1, columns)
    rows = 1
    while rows * 2 < values:
        rows *= 2
    return rows


class ParquetTable:
    """A Parquet file that was inspected by inspect_file()."""

    def __init__(self, file: TableFile, seen: InspectedFile) -> None:
        self._file = file
        self.without_rows = seen.columns
        self.rows = seen.rows
        self._index = seen.index
        self.columns = list(seen.columns.columns)
        partition = [name for name in file.partition if name not in self.columns]
        self.hidden = list(dict.fromkeys([*seen.index, *partition]))
        self.proven = seen.proven
        self.types = seen.types

    def read(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return all rows of the given columns."""
        import pandas as pd

        own = self._own(columns)
        frame = with_index(_call_reader(pd.read_parquet, self._file.open(), columns=own))
        return add_partition(frame, self._file.partition, columns)

    def read_keys(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return all rows of the given columns; integers are exact."""
        frame = _call_reader(parquet_keys, self._file.open(), self._own(columns))
        return add_partition(frame, self._file.partition, columns)

    def _own(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name in self.columns or name in self._index]

    def frame_bytes(self, columns: Sequence[str]) -> int:
        """Return the estimated bytes of memory that those columns take."""
        return self.rows * len(columns) * BYTES_PER_VALUE

    def forget_rows(self) -> None:
        """Do nothing: no rows are held in memory."""


def read_tables(
    files: Sequence[TableFile], is_parquet: bool, suite: Sequence[Expectation], max_bytes: int
) -> Iterator[Table | Unreadable]:
    """Yield each file's table, or the error if it is unreadable.

    Parquet files are read in parallel: as many at once as this machine has processors, or
    REMOTE_FILES_AT_ONCE from S3. CSV files are read one after another, as a whole if that takes
    less than `max_bytes` of memory.
    """
    if not is_parquet:
        for file in files:
            # A value takes at least one byte of text.
            is_small = file.max_text_bytes * BYTES_PER_VALUE <= max_bytes
            try:
                yield SmallCsvTable(file) if is_small else LargeCsvTable(file)
            except Unreadable as error:
                yield error
        return

    from nodesweep.tasks.dataset.judging.proof import inspect_file

    def read(file: TableFile) -> Table | Unreadable:
        try:
            return ParquetTable(file, _call_reader(inspect_file, file.open(), suite))
        except Unreadable as error:
            return error

    is_remote = any(file.is_remote for file in files)
    at_once = REMOTE_FILES_AT_ONCE if is_remote else os.cpu_count() or 1
    with ThreadPoolExecutor(min(len(files), at_once)) as pool:
        yield from pool.map(read, files)


def _call_reader(read: Any, *arguments: Any, **named: Any) -> Any:
    """Call a reader, and convert its errors about a malformed file to Unreadable."""
    from nodesweep.infra.image_spark.nodesweep_judge.survey import UNREADABLE, first_line

    try:
        return read(*arguments, **named)
    except UNREADABLE as error:
        raise Unreadable(first_line(error)) from error


class ColumnTypes:
    """The column types seen so far, to find columns whose type differs between files."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, str, str]] = {}
        self.changed: dict[str, str] = {}
        """For each column whose type differs, a message that names two of the files."""

    def add(self, file: str, types: Mapping[str, tuple[str, str]]) -> None:
        """Add the types of a file (Table.types)."""
        for column, (kind, name) in types.items():
            before, its_name, its_file = self._first.setdefault(column, (kind, name, file))
            if before != kind and column not in self.changed:
                self.changed[column] = (
                    f"column {column!r} is {its_name} in {its_file} and {name} in {file};"
                    " use the same type in every file"
                )
