"""What a Parquet file says of itself in its footer: nothing of its rows is read."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .layout import CSV_OPTIONS, add_partition, index_columns, with_index, with_nulls
from .reading import ReadError, Source, open_object
from .request import S3Object

UNREADABLE = (OSError, EOFError, ValueError, zlib.error, pa.ArrowException)
"""What readers raise for a file that is none of its kind; pandas raises ValueErrors, a .gz that is
cut off an EOFError.
"""


@dataclass(frozen=True)
class Surveyed:
    """A file before its rows are read. `unreadable` says why it can't be; then nothing else counts.

    `valued` are the columns, of those that are asked about, that hold a value for certain.
    """

    unreadable: str | None
    rows: int = 0
    row_groups: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    """The columns that pandas makes its index of."""
    arrow: str | None = None
    valued: frozenset[str] = frozenset()
    key_nulls: tuple[bool, ...] = ()
    """Of each key column, whether it may hold a null."""


def read_schema(arrow: str) -> pa.Schema:
    """The schema that `Surveyed.arrow` holds as text."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(arrow)))


def first_line(error: BaseException) -> str:
    """Of an error's text, as a report shows it."""
    return (str(error) or type(error).__name__).splitlines()[0]


def survey(
    source: Source, item: S3Object, asked: Collection[str], key: Collection[str]
) -> Surveyed:
    """Look at an object's footer. Raises ReadError."""
    try:
        with pq.ParquetFile(open_object(source, item)) as file:
            return _describe(file, asked, key)
    except ReadError:
        raise
    except UNREADABLE as error:
        return Surveyed(first_line(error))


def _describe(file: pq.ParquetFile, asked: Collection[str], key: Collection[str]) -> Surveyed:
    schema, metadata = file.schema_arrow, file.metadata
    empty = schema.empty_table().to_pandas()
    columns, index = tuple(map(str, empty.columns)), tuple(index_columns(empty))
    groups = tuple(metadata.row_group(number).num_rows for number in range(file.num_row_groups))
    valued, nullable = set(), set()
    for number in range(file.num_row_groups):
        group = metadata.row_group(number)
        for position in range(group.num_columns):
            chunk = group.column(position)
            facts = chunk.statistics
            name = chunk.path_in_schema
            if name in asked and facts is not None and facts.has_min_max:
                valued.add(name)
            if name in key and not (facts and facts.has_null_count and facts.null_count == 0):
                nullable.add(name)
    plain = base64.b64encode(schema.remove_metadata().serialize()).decode()
    nulls = tuple(name in nullable for name in key)
    rows = metadata.num_rows
    return Surveyed(None, rows, groups, columns, index, plain, frozenset(valued), nulls)


def read_csv(source: Source, item: S3Object) -> Any:
    """A CSV file as pandas reads it. Raises ReadError, UNREADABLE."""
    compression = "gzip" if item.key.endswith(".gz") else None
    source_file = open_object(source, item, in_order=True)
    return with_nulls(pd.read_csv(source_file, compression=compression, **CSV_OPTIONS))


def read_columns(
    source: Source,
    item: S3Object,
    is_parquet: bool,
    columns: Sequence[str],
    partition: Mapping[str, Any],
) -> Any:
    """Some columns of a file as pandas reads them, or of its partition, which has none of the
    file's. Raises ReadError, UNREADABLE.
    """
    if is_parquet:
        own = [name for name in columns if name not in partition]
        frame = with_index(pd.read_parquet(open_object(source, item), columns=own))
    else:
        frame = read_csv(source, item)
    return add_partition(frame, partition, columns)
