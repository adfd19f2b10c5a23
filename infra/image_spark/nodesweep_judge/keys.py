"""Uses a Spark aggregation to find rows whose key occurs more than once across all files.

No node holds all keys. Keys are equal where pandas finds them equal: nulls equal each other, NaN is
null, and integers compare with floats as floats. Columns whose types have nothing in common are
compared as text prefixed by the type's name, so they are never equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from .layout import joined_keys
from .proving import Slice, as_rows, batches_of, from_rows, slices_of
from .reading import Source
from .request import JudgeError, Request, S3Object
from .survey import Surveyed, read_keys, read_schema

MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARACTERS = 80
KEYS_PER_PARTITION = 1_000_000
_EXACT = Context(prec=1100)
"""Enough digits to represent any float64 exactly."""
_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True)
class KeyType:
    """Spark type of a key column over all files; `arrow` is None for text prefixed by its type."""

    sql: str
    arrow: pa.DataType | None

    def convert(self, values: pa.Array) -> pa.Array:
        """Return a column's values converted to the common type of its key column."""
        if types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if types.is_string_view(values.type):
            values = pc.cast(values, pa.string())
        if types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        if self.arrow is None:
            name = _family(values.type)
            texts = [
                None if one is None else f"{name} {_canonical(one)}" for one in values.to_pylist()
            ]
            return pa.array(texts, pa.string())
        if types.is_timestamp(self.arrow):
            if types.is_null(values.type):
                return pa.nulls(len(values), pa.int64())
            return pc.cast(pc.cast(values, self.arrow), pa.int64())
        return pc.cast(values, self.arrow, safe=not types.is_floating(self.arrow))

    @property
    def sent(self) -> pa.DataType:
        """Arrow type of the values that convert() returns."""
        if self.arrow is None:
            return pa.string()
        return pa.int64() if types.is_timestamp(self.arrow) else self.arrow


def _family(kind: pa.DataType) -> str:
    """Return a name shared by the types whose values may equal each other."""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return "bytes" if is_bytes or types.is_fixed_size_binary(kind) else str(kind)


def _canonical(value: Any) -> str:
    """Return a string that equal values share: 1, 1.0, and 1.00 are one number."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            exact = Decimal(value)
            return f"{exact.normalize(_EXACT):f}"
        except ArithmeticError:
            return repr(float(value))
    return repr(value)


def common_type(kinds: Iterable[pa.DataType]) -> KeyType:
    """Return the type in which values of these types are equal where pandas finds them equal."""
    plain = {kind.value_type if types.is_dictionary(kind) else kind for kind in kinds}
    plain = {pa.string() if types.is_string_view(kind) else kind for kind in plain}
    plain = {kind for kind in plain if not types.is_null(kind)}

    def all_are(*tests: Callable[[pa.DataType], bool]) -> bool:
        return bool(plain) and all(any(test(kind) for test in tests) for kind in plain)

    if all_are(types.is_integer):
        wide = pa.decimal128(20, 0)
        return (
            KeyType("decimal(20,0)", wide)
            if any(map(types.is_uint64, plain))
            else KeyType("bigint", pa.int64())
        )
    if all_are(types.is_integer, types.is_floating):
        return KeyType("double", pa.float64())
    if all_are(types.is_string, types.is_large_string):
        return KeyType("string", pa.string())
    if all_are(types.is_boolean):
        return KeyType("boolean", pa.bool_())
    if all_are(types.is_date32):
        return KeyType("date", pa.date32())
    if all_are(types.is_timestamp) and len({kind.tz is None for kind in plain}) == 1:
        unit = max((kind.unit for kind in plain), key=_UNITS.index)
        return KeyType("bigint", pa.timestamp(unit, next(iter(plain)).tz))
    if len(plain) == 1 and all_are(types.is_decimal128):
        [kind] = plain
        return KeyType(f"decimal({kind.precision},{kind.scale})", kind)
    return KeyType("string", None)


def find_repeats(
    spark: Any,
    source: Source,
    request: Request,
    files: Mapping[S3Object, Surveyed],
    tasks_at_once: int,
) -> dict[str, Any] | None:
    """Return the number of rows that repeat a key, with examples; None if there are none.

    Args:
        spark: The session.
        source: The bucket.
        request: The request, which names the key columns.
        files: Files that have all key columns.
        tasks_at_once: Tasks that the cluster runs at a time.

    Raises:
        JudgeError: A key column has a nested type.
    """
    columns = list(request.unique_columns)
    if not columns or not files:
        return None
    from pyspark.sql import functions as F

    kinds = _key_types(request, files, columns)
    rows = sum(found.rows for found in files.values())
    # Spark's default is 200 partitions for a persisted result, however small.
    parts = max(2 * tasks_at_once, rows // KEYS_PER_PARTITION)
    spark.conf.set("spark.sql.shuffle.partitions", str(parts))
    frame = _frame(spark, source, request, files, kinds, tasks_at_once)
    names = [f"k{position}" for position in range(len(columns))]
    first = F.min(F.struct("file", "row")).alias("first")
    groups = frame.groupBy(*names).agg(F.count("*").alias("count"), first)
    repeated = groups.where("count > 1").persist()
    try:
        surplus = repeated.agg(F.sum(F.col("count") - 1)).first()[0]
        if not surplus:
            return None
        firsts = repeated.orderBy("first").limit(MAX_EXAMPLES).select("first.*").collect()
        again = repeated.select(*(F.col(name).alias(f"again_{name}") for name in names))
        same = [F.col(name).eqNullSafe(F.col(f"again_{name}")) for name in names]
        matched = frame.join(again, on=same, how="left_semi")
        indices = {row[0] for row in matched.select("file").distinct().collect()}
    finally:
        repeated.unpersist()
    positions = [(row["file"], row["row"]) for row in firsts]
    return {
        "surplus": int(surplus),
        "rows": rows,
        "examples": _shown(source, request, files, positions),
        "files": sorted(request.objects[index].name for index in indices)[:MAX_EXAMPLES],
    }


def _key_types(
    request: Request, files: Mapping[S3Object, Surveyed], columns: Sequence[str]
) -> list[KeyType]:
    """Return the common type of each key column.

    Raises:
        JudgeError: A column has a nested type, whose values can't be keys.
    """
    if not request.is_parquet:  # a CSV file's types are known only once it is read
        return [KeyType("string", None) for _ in columns]
    schemas = {arrow: read_schema(arrow) for arrow in {it.arrow for it in files.values()} if arrow}
    found = []
    for column in columns:
        kinds = set()
        for item, one in files.items():
            schema = schemas[str(one.arrow)]
            if column in schema.names:
                kinds.add(schema.field(column).type)
            else:
                kinds.add(pa.scalar(request.partitions[item.index][column]).type)
        for kind in kinds:
            if types.is_nested(kind):
                raise JudgeError(
                    "other",
                    f"unique_columns: {column!r} has type {kind}, whose values can't be keys:"
                    " remove the column from unique_columns",
                )
        found.append(common_type(kinds))
    return found


def _frame(
    spark: Any,
    source: Source,
    request: Request,
    files: Mapping[S3Object, Surveyed],
    kinds: Sequence[KeyType],
    tasks_at_once: int,
) -> Any:
    """Return every row's key as columns k0, k1, …, its file, and its row number in the file."""
    columns = list(request.unique_columns)
    is_parquet = request.is_parquet
    constants = {
        item.index: _constants(request, item, found, columns) for item, found in files.items()
    }
    if is_parquet:
        slices = [one for item, found in files.items() for one in slices_of(item, found)]
    else:
        slices = [Slice(item, (), 0) for item in files]
    names = [*(f"k{position}" for position in range(len(columns))), "file", "row"]
    sql = ", ".join(f"k{position} {kind.sql}" for position, kind in enumerate(kinds))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in from_rows(batches):
            row = one.first_row
            for batch in _key_batches(source, one, columns, is_parquet, constants[one.item.index]):
                values = [
                    kind.convert(batch.column(column))
                    for column, kind in zip(columns, kinds, strict=True)
                ]
                count = batch.num_rows
                values.append(pa.repeat(pa.scalar(one.item.index, pa.int32()), count))
                values.append(pa.array(range(row, row + count), pa.int64()))
                row += count
                yield pa.RecordBatch.from_arrays(values, names)

    rows = as_rows(spark, slices, tasks_at_once)
    return rows.mapInArrow(read, f"{sql}, file int, row bigint")


def _constants(
    request: Request, item: S3Object, found: Surveyed, columns: Sequence[str]
) -> dict[str, Any]:
    """Return key columns' values that come from the object's partition, not from the object."""
    partition, own = request.partitions[item.index], {*found.columns, *found.index}
    return {name: partition[name] for name in columns if name in partition and name not in own}


def _key_batches(
    source: Source,
    one: Slice,
    columns: list[str],
    is_parquet: bool,
    constants: Mapping[str, Any],
) -> Iterator[pa.RecordBatch]:
    if is_parquet:
        own = [name for name in columns if name not in constants]
        for batch in batches_of(source, one, own):
            arrays = [
                pa.repeat(pa.scalar(constants[name]), batch.num_rows)
                if name in constants
                else batch.column(name)
                for name in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, columns)
        return
    frame = read_keys(source, one.item, False, columns, constants)
    arrays = [_csv_texts(frame[column]) for column in columns]
    yield pa.RecordBatch.from_arrays(arrays, columns)


def _csv_texts(values: pd.Series) -> pa.Array:
    """Return values as strings, with one form per number, since pandas finds 1 equal to 1.0."""
    numbers = pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(
        values.dtype
    )
    texts = [
        None if pd.isna(value) else f"number {_exact(value)}" if numbers else repr(value)
        for value in values
    ]
    return pa.array(texts, pa.string())


def _exact(value: Any) -> str:
    number = float(value)
    return str(int(value)) if number.is_integer() else repr(number)


def _shown(
    source: Source,
    request: Request,
    files: Mapping[S3Object, Surveyed],
    positions: Sequence[tuple[int, int]],
) -> list[str]:
    """Return the keys of these rows as they would look if all files were one DataFrame.

    There, an integer column becomes float if it is float in any file.
    """
    columns = list(request.unique_columns)
    alike: dict[Any, S3Object] = {}
    for item, found in files.items():
        alike.setdefault(found.arrow or item, item)
    wanted = {request.objects[index] for index, _ in positions}
    frames = {
        item: read_keys(
            source,
            item,
            request.is_parquet,
            columns,
            _constants(request, item, files[item], columns),
        )
        for item in {*alike.values(), *wanted}
        if files[item].rows
    }
    parts = [frame.iloc[:1] for frame in frames.values()]
    parts += [frames[request.objects[index]].iloc[[row]] for index, row in positions]
    rows = joined_keys(parts).iloc[-len(positions) :].astype(object).to_numpy()
    return [", ".join(str(value) for value in key)[:MAX_EXAMPLE_CHARACTERS] for key in rows]
