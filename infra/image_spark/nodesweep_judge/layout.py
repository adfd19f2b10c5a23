"""Finds a table's columns, including partition folders and pandas' index, and CSV nulls.

    partitions_of(["year=2025/a.parquet", "year=2026/b.csv"])  # [{"year": 2025}, {"year": 2026}]

Columns in folder names (Hive, Spark) or in pandas' index are found by name; expectations about the
table's columns as a whole, such as their number, do not count them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:  # they take half a second to import
    import pandas as pd
    import pyarrow as pa

_TYPES = frozenset(
    {"expect_column_values_to_be_of_type", "expect_column_values_to_be_in_type_list"}
)
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
CSV_OPTIONS: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
"""Options of pandas.read_csv(); csv_column() handles the words for null."""
_NULL_WORDS = frozenset(
    {
        *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
        *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    }
)
_FORMS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    (r"[+-]?[0-9]{1,18}", int),
    (r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", float),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", datetime.date.fromisoformat),
)
_TRUTHS: dict[Any, bool] = {
    **dict.fromkeys((True, "True", "TRUE", "true"), True),
    **dict.fromkeys((False, "False", "FALSE", "false"), False),
}


def holds_by_names(
    check: tuple[str, Mapping[str, Any]],
    named: Sequence[Any] | None,
    columns: Sequence[str],
    rows: int,
    has_types: bool,
) -> bool:
    """Return True if a check holds because of column names and number of rows alone.

    A file without rows violates no check about all values of a column, such as their mean, and none
    about its type if the file has no types.

    Args:
        check: (type, kwargs).
        named: The columns that the check names.
        columns: The names of all columns.
        rows: The number of rows.
        has_types: False for CSV files.
    """
    from great_expectations.expectations.expectation import ColumnAggregateExpectation
    from great_expectations.expectations.registry import get_expectation_impl

    kind, kwargs = check
    if not named or not set(named) <= set(columns):
        return False
    if kind == "expect_column_to_exist":
        return set(kwargs) == {"column"}
    if rows:
        return False
    if kind in _TYPES:
        return not has_types
    return issubclass(get_expectation_impl(kind), ColumnAggregateExpectation)


def partitions_of(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return {column: value} from each file's folder names, as in `year=2025/part.parquet`.

    A column has integers, floats or dates if every value parses as that type, otherwise strings.
    """
    texts = [
        {
            unquote(column): None if value == HIVE_NULL else unquote(value)
            for folder in name.split("/")[:-1]
            for column, separator, value in [folder.partition("=")]
            if separator and column
        }
        for name in names
    ]
    converters = {
        column: _converter([value for one in texts if (value := one.get(column)) is not None])
        for column in {column for one in texts for column in one}
    }
    return [
        {
            column: None if value is None else converters[column](value)
            for column, value in one.items()
        }
        for one in texts
    ]


def _converter(values: Sequence[str]) -> Callable[[str], Any]:
    for pattern, convert in _FORMS:
        try:
            if values and all(re.fullmatch(pattern, value) for value in values):
                for value in values:
                    convert(value)
                return convert
        except ValueError:  # 2026-02-30
            continue
    return str


def add_partition(
    frame: pd.DataFrame, partition: Mapping[str, Any], columns: Sequence[str]
) -> pd.DataFrame:
    """Return these columns of the frame and of its partition, in this order."""
    import pandas as pd

    constant = {name: value for name, value in partition.items() if name not in frame.columns}
    added = {
        name: pd.Series([value] * len(frame), index=frame.index)
        for name, value in constant.items()
        if name in columns
    }
    return (frame.assign(**added) if added else frame)[list(columns)]


def index_columns(frame: pd.DataFrame) -> list[str]:
    """Return the file's columns that pandas uses as its index."""
    import pandas as pd

    if isinstance(frame.index, pd.RangeIndex):  # not in the file
        return []
    names = [name for name in frame.index.names if isinstance(name, str)]
    return [name for name in names if name not in frame.columns]


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a Parquet file's frame with the file's names, which pandas may restore as numbers."""
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


def empty_frame(schema: pa.Schema) -> pd.DataFrame:
    """Return a Parquet file's columns without rows, as pandas names and types them.

    Raises:
        ValueError: A column's time zone is unknown. pyarrow's own error depends on what is
         installed, and can ask for a package that would not help.
    """
    for column in schema:
        if zone := getattr(column.type, "tz", None):
            try:
                column.type.to_pandas_dtype()
            except Exception as error:
                what = f"column {column.name!r} has the unknown time zone {zone!r}"
                raise ValueError(what) from error
    return named(schema.empty_table().to_pandas())


def with_index(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a Parquet file's frame with its index as columns, after the others."""
    frame = named(frame)
    names = index_columns(frame)
    if not names:
        return frame
    columns = list(frame.columns)
    return frame.reset_index(level=names)[[*columns, *names]]


def csv_column(column: pd.Series) -> pd.Series:
    """Return the values of a column read with CSV_OPTIONS: nulls, booleans, numbers or text.

    In a text column, only an empty field is null (NA is a country). In a numeric or boolean column,
    so are pandas' words for null, as they are for pyarrow and thus for the shipped program. A
    column of only such words has no values.
    """
    import pandas as pd

    if column.dtype != object and not pd.api.types.is_string_dtype(column.dtype):
        return column
    is_null = column.isin(_NULL_WORDS)
    if not is_null.any():
        return column
    values = column.mask(is_null)
    found = set(values.dropna().unique())
    if found and all(isinstance(value, str | bool) and value in _TRUTHS for value in found):
        return values.map(_TRUTHS, na_action="ignore").astype(object)
    try:
        return pd.to_numeric(values)
    except (ValueError, TypeError):
        return column


def read_csv(source: Any, compression: str | None) -> pd.DataFrame:
    """Return a CSV file (a path, or an open file at its beginning) with its nulls (csv_column).

    Raises:
        ValueError: The file is damaged, or its rows have more fields than its header.
    """
    import pandas as pd

    csv_width(source, compression)
    return with_nulls(pd.read_csv(source, compression=compression, **CSV_OPTIONS))


def csv_width(source: Any, compression: str | None) -> int:
    """Return a CSV file's number of columns, and leave the file at its beginning.

    Raises:
        ValueError: The file is damaged, or its rows have more fields than its header.
    """
    import pandas as pd

    # With a header, pandas takes the first of too many fields for an index, and shifts the others.
    first = pd.read_csv(source, compression=compression, header=None, nrows=2)
    if hasattr(source, "seek"):
        source.seek(0)
    return len(first.columns)


def csv_keys(frame: pd.DataFrame, read_text: Callable[[list[str]], pd.DataFrame]) -> pd.DataFrame:
    """Return columns of a CSV file, with exact integers where nulls made them floats.

    Args:
        frame: The columns as read_csv() returns them.
        read_text: Returns columns of the file as strings.
    """
    import pandas as pd

    rounded = {
        str(name)
        for name, column in frame.items()
        if column.dtype.kind == "f" and column.isna().any()
    }
    if not rounded:
        return frame
    texts, exact = read_text(sorted(rounded)), {}
    for name in rounded:
        text = texts[name]
        numbers = pd.to_numeric(text[~text.isin(_NULL_WORDS)].dropna())  # not exact with nulls
        if numbers.empty or numbers.dtype.kind in "iu":
            kind = "UInt64" if numbers.dtype.kind == "u" else "Int64"
            exact[name] = numbers.astype(kind).reindex(text.index)
    return frame.assign(**exact)


def read_csv_text(source: Any, compression: str | None, columns: list[str]) -> pd.DataFrame:
    """Return columns of a CSV file as strings, without a value for empty fields."""
    import pandas as pd

    options = {"compression": compression, "usecols": columns, "dtype": str, **CSV_OPTIONS}
    return pd.read_csv(source, **options)


def parquet_keys(source: Any, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of a Parquet file, or of its index, with integers exact next to nulls."""
    import pandas as pd
    import pyarrow.parquet as pq
    import pyarrow.types as types

    def nullable(kind: pa.DataType) -> Any:
        if types.is_integer(kind):
            return pd.UInt64Dtype() if types.is_uint64(kind) else pd.Int64Dtype()
        return None

    with pq.ParquetFile(source) as file:
        table = file.read(columns=list(columns))
    for at, one in enumerate(table.schema):
        if types.is_dictionary(one.type):
            table = table.set_column(at, one.name, table[at].cast(one.type.value_type))
    return table.to_pandas(types_mapper=nullable, ignore_metadata=True)


def joined_keys(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all frames; where types differ, all nulls are None, and thus equal."""
    import pandas as pd

    rows = pd.concat(frames, ignore_index=True)
    for at, kind in enumerate(rows.dtypes):
        if pd.api.types.is_object_dtype(kind):
            column = rows.iloc[:, at]
            rows.isetitem(at, column.where(column.notna(), None))
    return rows


def with_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a CSV file's whole frame with its nulls (csv_column)."""
    changed = {}
    for name in frame.columns:
        column = frame[name]
        if (found := csv_column(column)) is not column:
            changed[name] = found
    return frame.assign(**changed) if changed else frame
