"""Repeated rows are found with any limit on memory, and are the same as pandas finds."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodesweep.tasks.dataset.judging import repeats
from nodesweep.tasks.dataset.judging.repeats import RepeatedRows, Repeats, SortedHashes, row_hashes

HELD = 1 << 30
VALUES = {
    "int64": st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1]),
    "float64": st.sampled_from([0.0, -0.0, 1.0, 1.5, float(2**53), np.nan, np.inf, 2.0**63]),
    "float32": st.sampled_from([0.0, 1.0, 1.5, np.nan]),
    "bool": st.booleans(),
    "Int64": st.none() | st.integers(-2, 2) | st.sampled_from([2**53, 2**53 + 1]),
    "str": st.none() | st.sampled_from(["", "1", "a", "b"]),
    "category": st.sampled_from(["a", "b"]),
    "datetime64[ns]": st.sampled_from([pd.Timestamp(2026, 1, day) for day in (1, 2)] + [pd.NaT]),
    "object": st.sampled_from(
        [
            *(1, 1.0, True, "1", "a", None, np.nan, b"a", Decimal(1), datetime.date(2026, 1, 1)),
            *(2**53 + 1, 2.0**53),
        ]
    ),
}


@st.composite
def columns(draw: st.DrawFn, rows: int) -> pd.Series:
    kind = draw(st.sampled_from(sorted(VALUES)))
    values = draw(st.lists(VALUES[kind], min_size=rows, max_size=rows))
    return pd.Series(values, dtype=kind)


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    rows = draw(st.integers(0, 6))
    return pd.DataFrame({name: draw(columns(rows)) for name in ("a", "b")})


def found(files: Sequence[pd.DataFrame], max_bytes: int) -> Repeats | None:
    rows = RepeatedRows(["a", "b"], max_bytes)
    for number, frame in enumerate(files):
        rows.add(f"{number}.csv", partial(frame.copy))
    return rows.find()


@settings(max_examples=60, deadline=None)
@given(st.lists(frames(), min_size=1, max_size=4), st.sampled_from([0, 100, 400]))
def test_what_is_found_is_the_same_in_little_memory(
    files: list[pd.DataFrame], max_bytes: int
) -> None:
    plain, bounded = found(files, HELD), found(files, max_bytes)
    if plain is None or bounded is None:
        assert plain == bounded
        return
    assert (bounded.surplus, bounded.rows, bounded.files) == (
        plain.surplus,
        plain.rows,
        plain.files,
    )
    assert [tuple(map(str, key)) for key in bounded.examples] == [
        tuple(map(str, key)) for key in plain.examples
    ]


def numbered(*numbers: int) -> pd.DataFrame:
    return pd.DataFrame({"a": numbers, "b": ["x"] * len(numbers)})


@pytest.mark.parametrize("max_bytes", [HELD, 8, 0])
def test_examples_are_the_first_ones_and_files_are_named(max_bytes: int) -> None:
    files = [numbered(*range(100, 90, -1)), numbered(*range(10)), numbered(*range(91, 98), 3)]
    repeated = found(files, max_bytes)
    assert repeated is not None
    assert (repeated.surplus, repeated.rows) == (8, 28)
    assert [key[0] for key in repeated.examples] == [97, 96, 95, 94, 93]
    assert repeated.files == ("0.csv", "1.csv", "2.csv")


@pytest.mark.parametrize("max_bytes", [HELD, 0])
def test_big_integers_are_compared_exactly_and_nulls_of_all_types_are_equal(max_bytes: int) -> None:
    ids = [[2**60, 2**60 + 1], [2**60 + 2, None]]
    files = [pd.DataFrame({"a": pd.array(some, "Int64"), "b": "x"}) for some in ids]
    assert found(files, max_bytes) is None
    texts = [pd.DataFrame({"a": ["u", None], "b": "x"}), pd.DataFrame({"a": [None], "b": "x"})]
    for other in texts:
        repeated = found([*files, other], max_bytes)
        assert repeated is not None and repeated.surplus == 1


def test_only_big_integers_among_floats_are_rounded() -> None:
    whole = pd.Series([2**60, 2**60 + 1])
    assert len(np.unique(row_hashes(whole.to_frame("a")))) == 2
    assert len(np.unique(row_hashes(whole.to_frame("a"), ["a"]))) == 1


def test_a_file_without_rows_does_not_change_how_values_are_shown() -> None:
    """Its columns are all objects, where pandas read it from CSV; Spark takes no part of it."""
    files = [pd.DataFrame({"a": [number], "b": ["x"]}) for number in (1, 1.0)]
    repeated = found([*files, pd.DataFrame({"a": [], "b": []}, dtype=object)], HELD)
    assert repeated is not None and isinstance(repeated.examples[0][0], float)


def test_rows_that_share_a_hash_by_chance_do_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "row_hashes", lambda frame, _=(): np.ones(len(frame), np.uint64))
    assert found([numbered(1, 2), numbered(3)], 0) is None
    repeated = found([numbered(1, 2), numbered(2)], 0)
    assert repeated is not None and repeated.surplus == 1
    assert [key[0] for key in repeated.examples] == [2]


@pytest.mark.parametrize("max_bytes", [HELD, 0])
def test_values_that_can_not_be_compared_are_said_to_be(max_bytes: int) -> None:
    lists = pd.DataFrame({"a": [[1], [1]], "b": [1, 1]})
    with pytest.raises(TypeError, match="unhashable"):
        found([lists], max_bytes)


def test_distinct_rows_have_distinct_hashes() -> None:
    frame = pd.DataFrame({"a": np.repeat(np.arange(300), 300), "b": np.tile(np.arange(300), 300)})
    assert len(np.unique(row_hashes(frame))) == 90_000


@pytest.mark.parametrize("max_bytes", [HELD, 80, 0])
@pytest.mark.parametrize("max_rows", [1, 7, 10_000])
def test_repeated_hashes_come_sorted_and_a_few_at_a_time(max_bytes: int, max_rows: int) -> None:
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64 - 1, 500, dtype=np.uint64)
    again = hashes[:60]
    kept = SortedHashes(max_bytes)
    for some in np.array_split(np.concatenate([hashes, again, again[:5]]), 9):
        kept.add(some)
    parts: list[Any] = list(kept.repeated(max_rows))
    assert np.array_equal(np.concatenate(parts), np.sort(again))
    counts = {int(value): 3 if index < 5 else 2 for index, value in enumerate(again)}
    for part in parts:
        assert len(part) == 1 or sum(counts[int(value)] for value in part) <= max_rows


def test_nothing_added_and_nothing_repeated() -> None:
    assert RepeatedRows(["a"], 0).find() is None
    assert found([numbered(1, 2), numbered(3)], 0) is None
