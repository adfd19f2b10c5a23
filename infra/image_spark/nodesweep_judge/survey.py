"""Reads Parquet files' footers without the rows, and files as pandas reads them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from . import layout
from .layout import add_partition, empty_frame, index_columns, with_index
from .reading import ReadError, Source, open_object
from .request import S3Object

UNREADABLE = (
    *(OSError, EOFError, ValueError, zlib.error, pa.ArrowException),
    *(LookupError, OverflowError, TypeError),
)
"""Errors that readers raise for a damaged file, a different file type, or values pandas can't hold.

pandas raises ValueErrors, a LookupError for an unknown time zone or incomplete metadata, and an
OverflowError for a date outside the years 1 to 9999; a truncated .gz raises an EOFError.
"""


@dataclass(frozen=True)
class Surveyed:
    """A file as its footer describes it.

    `unreadable` is the reason it can't be read; the other fields are then meaningless. `valued` are
    the requested columns that are certain to hold a value.
    """

    unreadable: str | None
    rows: int = 0
    row_groups: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    """Columns that pandas turns into its index."""
    arrow: str | None = None
    valued: frozenset[str] = frozenset()


def read_schema(arrow: str) -> pa.Schema:
    """Return the schema that `Surveyed.arrow` holds as text."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(arrow)))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, as a report shows it."""
    text, name = str(error), type(error).__name__
    if isinstance(error, LookupError):  # its text is only what is missing
        text = f"{name}: {text}"
    return (text or name).splitlines()[0]


def survey(source: Source, item: S3Object, asked: Collection[str]) -> Surveyed:
    """Read an object's footer.

    Raises:
        ReadError: The object was deleted or replaced, or access is denied.
    """
    try:
        with pq.ParquetFile(open_object(source, item)) as file:
            return _describe(file, asked)
    except ReadError:
        raise
    except UNREADABLE as error:
        return Surveyed(first_line(error))


def _describe(file: pq.ParquetFile, asked: Collection[str]) -> Surveyed:
    schema, metadata = file.schema_arrow, file.metadata
    empty = empty_frame(schema)
    columns, index = tuple(empty.columns), tuple(index_columns(empty))
    groups = tuple(metadata.row_group(number).num_rows for number in range(file.num_row_groups))
    valued = set()
    for number in range(file.num_row_groups):
        group = metadata.row_group(number)
        for position in range(group.num_columns):
            chunk = group.column(position)
            facts = chunk.statistics
            name = chunk.path_in_schema
            if name in asked and facts is not None and facts.has_min_max:
                valued.add(name)
    plain = base64.b64encode(schema.remove_metadata().serialize()).decode()
    return Surveyed(None, metadata.num_rows, groups, columns, index, plain, frozenset(valued))


def read_csv(source: Source, item: S3Object) -> Any:
    """Return a CSV file as pandas reads it.

    Raises:
        ReadError: The object was deleted or replaced, or access is denied.
        ValueError: The file is damaged; any other error in UNREADABLE means the same.
    """
    return layout.read_csv(open_object(source, item, in_order=True), _compression(item))


def _compression(item: S3Object) -> str | None:
    return "gzip" if item.key.endswith(".gz") else None


def read_columns(
    source: Source, item: S3Object, columns: Sequence[str], partition: Mapping[str, Any]
) -> Any:
    """Return columns of a Parquet file as pandas reads them, or of its partition.

    Raises:
        ReadError: The object was deleted or replaced, or access is denied.
        ValueError: The file is damaged; any other error in UNREADABLE means the same.
    """
    own = [name for name in columns if name not in partition]
    frame = with_index(pd.read_parquet(open_object(source, item), columns=own))
    return add_partition(frame, partition, columns)


def read_keys(
    source: Source,
    item: S3Object,
    is_parquet: bool,
    columns: Sequence[str],
    partition: Mapping[str, Any],
) -> Any:
    """Return columns of a file, or of its partition, with exact integers.

    Raises:
        ReadError: The object was deleted or replaced, or access is denied.
        ValueError: The file is damaged; any other error in UNREADABLE means the same.
    """
    own = [name for name in columns if name not in partition]

    def read_text(names: list[str]) -> pd.DataFrame:
        file = open_object(source, item, in_order=True)
        return layout.read_csv_text(file, _compression(item), names)

    if is_parquet:
        frame = layout.parquet_keys(open_object(source, item), own)
    else:
        frame = layout.csv_keys(read_csv(source, item)[own], read_text)
    return add_partition(frame, partition, columns)
