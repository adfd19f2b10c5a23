"""Find rows that repeat another row's values in some columns, across files, in bounded memory.

    rows = RepeatedRows(["user", "day"], max_bytes=1 << 30)
    rows.add("a.parquet", lambda: read("a.parquet"))  # each call reads the columns again
    rows.find()  # the number of repeated rows, with examples and files; None if all are unique

Columns of up to a quarter of `max_bytes` are held in memory for pandas' duplicated(), which copies
them. Above that, each row is held as an 8-byte hash. Beyond `max_bytes`, hashes are spilled to
disk. Rows whose hash repeats are read again and compared by value, so collisions are harmless.
"""

from __future__ import annotations

import numbers
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from nodesweep.infra.image_spark.nodesweep_judge.layout import joined_keys

Hashes = npt.NDArray[np.uint64]
EXAMPLES_KEPT = 5
FILES_NAMED = 5
_FILE = "nodesweep file name"
"""Columns added to the rows; the spaces avoid clashes with real columns."""
_POSITION = "nodesweep row"
_AGAIN = "nodesweep more than once in its file"
_PARTITIONS = 256
_NOTHING = np.uint64(0x6E6F7468696E6721)
_NUMBERS: tuple[type[Any], ...] = (numbers.Number, np.bool_)
_STEP = 1 << 20
"""Number of Python objects to hash at a time."""


@dataclass(frozen=True)
class Repeats:
    """Rows that repeat an earlier row's values: `surplus` of all `rows`, with examples."""

    surplus: int
    rows: int
    examples: tuple[tuple[Any, ...], ...]
    files: tuple[str, ...]


class RepeatedRows:
    """A search for rows that repeat across files, in bounded memory."""

    def __init__(self, columns: Sequence[str], max_bytes: int) -> None:
        self._columns, self._max_bytes = list(columns), max_bytes
        self._max_held_bytes = max_bytes // 4
        self._rows = 0
        self._files: list[tuple[str, Callable[[], pd.DataFrame]]] = []
        self._heads: list[pd.DataFrame] = []
        """The first row of each file; together they give each column its type over all files."""
        self._held: list[pd.DataFrame] | None = []
        self._held_bytes = 0
        self._most_compared = 1
        """The number of rows that fit into the allowed memory."""
        self._hashes = SortedHashes(max_bytes)
        self._rounded: list[str] = []

    def add(self, file: str, read: Callable[[], pd.DataFrame]) -> None:
        """Add the rows of a file; errors raised by `read` propagate."""
        frame = read()
        if frame.empty:
            return  # the types of an empty CSV file mean nothing: all are object
        self._rows += len(frame)
        self._files.append((file, read))
        self._heads.append(frame.iloc[:1].copy())
        if self._held is not None:
            self._held.append(frame)
            self._held_bytes += int(frame.memory_usage(index=False, deep=True).sum())
            if self._held_bytes > self._max_held_bytes:
                self._most_compared = max(1, self._max_held_bytes * self._rows // self._held_bytes)
                for held in self._held:
                    self._hashes.add(row_hashes(held))
                self._held = None
        else:
            self._hashes.add(row_hashes(frame))

    def find(self) -> Repeats | None:
        """Return the repeated rows, or None if all rows are unique."""
        if not self._files:
            return None
        if self._held is not None:
            frames = [
                frame.assign(**{_FILE: file})
                for (file, _), frame in zip(self._files, self._held, strict=True)
            ]
            rows = joined_keys(frames)
            repeated = rows[rows.duplicated(subset=self._columns, keep=False)]
            surplus = int(rows.duplicated(subset=self._columns).sum())
            return self._found(surplus, repeated, set(repeated[_FILE]))
        self._rounded = self._find_rounded()
        if self._rounded:  # the hashes so far are of exact integers
            self._hashes = SortedHashes(self._max_bytes)
            for _, read in self._files:
                self._hashes.add(row_hashes(read(), self._rounded))
        surplus, firsts, files = 0, [], set[str]()
        for wanted in self._hashes.repeated(self._most_compared):
            its_surplus, its_rows = self._compare(wanted)
            surplus += its_surplus
            files |= set(its_rows[_FILE])
            firsts.append(its_rows.drop_duplicates(subset=self._columns).head(EXAMPLES_KEPT))
        if not surplus:
            return None
        return self._found(surplus, pd.concat(firsts).sort_values(_POSITION), files)

    def _find_rounded(self) -> list[str]:
        """Return the columns of integers that are compared as floats, like those of other files."""
        kinds = joined_keys(self._heads).dtypes
        return [
            name
            for name in self._columns
            if pd.api.types.is_float_dtype(kinds[name])
            and any(pd.api.types.is_integer_dtype(head[name].dtype) for head in self._heads)
        ]

    def _compare(self, wanted: Hashes) -> tuple[int, pd.DataFrame]:
        """Compare the rows with these hashes by value.

        Returns:
            The number of rows that repeat an earlier one, and the first occurrence of every
            repeated row in each file.
        """
        firsts, count, position = [], 0, 0
        for file, read in self._files:
            frame = read()
            at = np.flatnonzero(_is_in(row_hashes(frame, self._rounded), wanted))
            some = frame.iloc[at]
            some = some.assign(**{_FILE: file, _POSITION: at + position, _AGAIN: False})
            some[_AGAIN] = some.duplicated(subset=self._columns, keep=False)
            firsts.append(some[~some.duplicated(subset=self._columns)])
            count += len(some)
            position += len(frame)
        heads = sum(map(len, self._heads))
        rows = joined_keys([*self._heads, *firsts]).iloc[heads:]
        is_alone = ~rows.duplicated(subset=self._columns, keep=False) & ~rows[_AGAIN].astype(bool)
        distinct = int((~rows.duplicated(subset=self._columns)).sum())
        return count - distinct, rows[~is_alone]

    def _found(self, surplus: int, repeated: pd.DataFrame, files: set[str]) -> Repeats | None:
        if not surplus:
            return None
        examples = repeated[self._columns].drop_duplicates().astype(object).to_numpy()
        return Repeats(
            surplus,
            self._rows,
            tuple(tuple(example) for example in examples[:EXAMPLES_KEPT]),
            tuple(sorted(files)[:FILES_NAMED]),
        )


def row_hashes(frame: pd.DataFrame, rounded: Collection[str] = ()) -> Hashes:
    """Return a hash of each row; rows equal in pandas have the same hash, regardless of type.

    Integers in the columns `rounded` are compared as floats.
    """
    mixed = np.zeros(len(frame), dtype=np.uint64)
    for name in frame.columns:
        column = frame[name].astype("Float64") if name in rounded else frame[name]
        mixed = _mixed(mixed ^ _column_hashes(column))
    return mixed


def _mixed(values: Hashes) -> Hashes:
    """Mix the bits so that each depends on all others (the last steps of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _column_hashes(column: pd.Series) -> Hashes:
    """Return a hash of each value; equal numbers of any types have the same hash."""
    kind = column.dtype
    if pd.api.types.is_numeric_dtype(kind):
        if pd.api.types.is_complex_dtype(kind):
            column = pd.Series(np.real(column.to_numpy()))
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        bits = (values + 0.0).view(np.uint64)  # + 0.0 turns -0.0 into 0.0
        is_large = _is_large(values)
        if is_large.any():
            large = column[is_large].to_numpy(dtype=np.int64)
            bits[is_large] = large.view(np.uint64)
        return np.where(np.isnan(values), _NOTHING, bits)
    found = np.empty(len(column), dtype=np.uint64)
    for begin in range(0, len(column), _STEP):
        some = column.iloc[begin : begin + _STEP]
        is_null = some.isna().to_numpy(dtype=bool)
        hashes = [
            hash(value) if type(value) is str else _value_hash(value)
            for value in some.astype(object).to_numpy()
        ]
        values = np.array(hashes, dtype=np.int64).view(np.uint64)
        found[begin : begin + len(some)] = np.where(is_null, _NOTHING, values)
    return found


def _is_large(values: Any) -> Any:
    """Return True for floats, or roundings of integers, that are hashed as 64-bit integers."""
    return (abs(values) >= 2.0**53) & (abs(values) < 2.0**63)


def _value_hash(value: Any) -> int:
    if isinstance(value, _NUMBERS):
        try:
            real = float(value.real) + 0.0
        except OverflowError:
            return hash(value)
        return int(value.real) if _is_large(real) else int(np.float64(real).view(np.int64))
    try:
        return hash(value)
    except TypeError:  # not hashable, such as a list; the comparison by value decides
        return 0


def _is_in(hashes: Hashes, wanted: Hashes) -> npt.NDArray[np.bool_]:
    """Return a mask of the hashes that are among the sorted `wanted`."""
    at = np.searchsorted(wanted, hashes)
    at[at == len(wanted)] = 0
    return wanted[at] == hashes


class SortedHashes:
    """Hashes, spilled to disk beyond `max_bytes`, in one file per value of their first byte."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._some: list[Hashes] = []
        self._bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, hashes: Hashes) -> None:
        """Add hashes, and write them to disk if they exceed the limit."""
        self._some.append(hashes)
        self._bytes += hashes.nbytes
        if self._bytes > self._max_bytes:
            self._spill()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="nodesweep-rows-")
        hashes = np.sort(np.concatenate(self._some))
        self._some, self._bytes = [], 0
        first_bits = np.arange(1, _PARTITIONS, dtype=np.uint64) << np.uint64(56)
        ends = [*np.searchsorted(hashes, first_bits), len(hashes)]
        begin = 0
        for number, end in enumerate(ends):
            if end > begin:
                with (Path(self._folder.name) / str(number)).open("ab") as file:
                    hashes[begin:end].tofile(file)
            begin = end

    def repeated(self, max_rows: int) -> Iterator[Hashes]:
        """Yield the hashes that occur more than once, sorted.

        Each array covers at most `max_rows` rows, but at least one hash. Nothing can be added
        afterwards.
        """
        waiting: list[Hashes] = []
        rows = 0
        for hashes in self._partitions():
            found, counts = np.unique(hashes, return_counts=True)
            is_repeated = counts > 1
            found, counts = found[is_repeated], counts[is_repeated]
            while len(found):
                fit = int(np.searchsorted(np.cumsum(counts), max_rows - rows, side="right"))
                if not fit and not rows:
                    fit = 1
                waiting.append(found[:fit])
                rows += int(counts[:fit].sum())
                found, counts = found[fit:], counts[fit:]
                if len(found):
                    yield np.concatenate(waiting)
                    waiting, rows = [], 0
        if rows:
            yield np.concatenate(waiting)

    def _partitions(self) -> Iterator[Hashes]:
        if self._folder is None:
            yield np.concatenate(self._some)
            return
        if self._some:
            self._spill()
        with self._folder as folder:
            for number in range(_PARTITIONS):
                path = Path(folder) / str(number)
                if path.exists():
                    yield np.fromfile(path, dtype=np.uint64)
