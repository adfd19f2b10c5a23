"""Has Spark prove, in one pass over the files of a schema, which expectations hold in each.

Executors read ranges of row groups and pass them to Spark as Arrow. Great Expectations' Spark
engine turns each expectation into a condition on a row, and one aggregation by file evaluates all
of them; its own pass-or-fail validation of such checks reads all data six times, once per round of
metrics. The extra column `spoiled` has a value where a file could not be read to its end: nothing
is proven of that file, and pandas reports it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .expectations import broken_by_file
from .reading import ReadError, Source, open_object
from .request import Check, S3Object
from .rules import Proof, Transport
from .survey import UNREADABLE, Surveyed

ROWS_PER_SLICE = 1_000_000
"""Approximate number of rows that one task reads at a time; row groups are never split."""
ROWS_PER_BATCH = 65_536
BUFFER_BYTES = 4 << 20
SPOILED, FILE = "spoiled", "file"
_UNSPOILED = Check(
    -1, "expect_column_values_to_be_null", {"column": SPOILED}, "critical", (), False
)


@dataclass(frozen=True)
class Slice:
    """Consecutive row groups of one object, and the number of rows that precede them."""

    item: S3Object
    row_groups: tuple[int, ...]
    first_row: int


def slices_of(item: S3Object, found: Surveyed) -> list[Slice]:
    """Return slices that cover all rows of a file."""
    slices: list[Slice] = []
    groups: list[int] = []
    first = begin = 0
    for number, rows in enumerate(found.row_groups):
        groups.append(number)
        first += rows
        if first - begin >= ROWS_PER_SLICE or number + 1 == len(found.row_groups):
            slices.append(Slice(item, tuple(groups), begin))
            groups, begin = [], first
    return slices


def as_rows(spark: Any, slices: Sequence[Slice], tasks_at_once: int) -> Any:
    """Return the slices as a DataFrame with one column of JSON, and a few slices per Spark task."""
    texts = [
        (json.dumps([*vars(one.item).values(), list(one.row_groups), one.first_row]),)
        for one in slices
    ]
    parts = max(1, min(len(texts), max(4 * tasks_at_once, len(texts) // 8)))
    return spark.createDataFrame(spark.sparkContext.parallelize(texts, parts), "slice string")


def from_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Slice]:
    """Yield the slices that an executor received."""
    for batch in batches:
        for text in batch.column(0).to_pylist():
            *item, groups, first_row = json.loads(text)
            yield Slice(S3Object(*item), tuple(groups), first_row)


def batches_of(source: Source, one: Slice, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice.

    Raises:
        ReadError: The object was deleted or replaced, or access is denied.
        OSError: The file is damaged; any other error in UNREADABLE means the same.
    """
    with pq.ParquetFile(open_object(source, one.item), buffer_size=BUFFER_BYTES) as file:
        yield from file.iter_batches(
            ROWS_PER_BATCH,
            row_groups=list(one.row_groups),
            columns=list(columns),
            use_threads=False,
        )


def prove(
    spark: Any,
    source: Source,
    files: Mapping[S3Object, Surveyed],
    proofs: Sequence[Proof],
    tasks_at_once: int,
) -> dict[S3Object, set[int]]:
    """Return the indices of the checks that hold, per file; the files must share one schema."""
    if not proofs:
        return {item: set() for item in files}
    slices = [one for item, found in files.items() for one in slices_of(item, found)]
    sent = {proof.transport.name: (proof.column, proof.transport) for proof in proofs}
    schema = ", ".join(f"{name} {each.sql_type}" for name, (_, each) in sent.items())
    frame = as_rows(spark, slices, tasks_at_once).mapInArrow(
        _reader(source, list(sent.values())), f"{schema}, {SPOILED} boolean, {FILE} int"
    )
    broken = broken_by_file(frame, FILE, [*(proof.asked for proof in proofs), _UNSPOILED])
    everything = {proof.check.index for proof in proofs}
    proven = {}
    for item in files:
        positions = broken[item.index]
        breaks = {
            proof.check.index for position, proof in enumerate(proofs) if position in positions
        }
        proven[item] = set() if len(proofs) in positions else everything - breaks
    return proven


def _reader(
    source: Source, sent: list[tuple[str, Transport]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    columns = sorted({column for column, _ in sent})
    names = [*(each.name for _, each in sent), SPOILED, FILE]
    types = [each.arrow_type for _, each in sent]
    conversions = [(column, each.convert) for column, each in sent]

    def batch_of(values: list[pa.Array], spoiled: pa.Array, one: Slice) -> pa.RecordBatch:
        file = pa.repeat(pa.scalar(one.item.index, pa.int32()), len(spoiled))
        return pa.RecordBatch.from_arrays([*values, spoiled, file], names)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in from_rows(batches):
            try:
                for batch in batches_of(source, one, columns):
                    batch.validate(full=True)  # pandas can't read invalid UTF-8
                    values = [convert(batch.column(name)) for name, convert in conversions]
                    yield batch_of(values, pa.nulls(batch.num_rows, pa.bool_()), one)
            except ReadError:
                raise
            except UNREADABLE:
                yield batch_of([pa.nulls(1, kind) for kind in types], pa.array([True]), one)

    return read
