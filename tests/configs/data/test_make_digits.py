"""The shipped digits shards are exactly those that their script creates."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nodesweep.configs.data.make_digits import DEFAULT_DIRECTORY, PIXELS, SHARDS, digits_tables
from nodesweep.configs.data.shards import write_shards


@pytest.fixture(scope="module")
def shipped() -> list[Path]:
    return sorted(DEFAULT_DIRECTORY.glob("part-*.parquet"))


def test_making_them_again_gives_the_shipped_tables(shipped: list[Path], tmp_path: Path) -> None:
    made = write_shards(tmp_path, digits_tables())
    assert [path.name for path in made] == [path.name for path in shipped]
    assert all(
        pq.read_table(new).equals(pq.read_table(old))
        for new, old in zip(made, shipped, strict=True)
    )
    assert sorted(tmp_path.iterdir()) == made, "no temporary file stays behind"


def test_shards_hold_every_image_once_and_every_class() -> None:
    tables = digits_tables()
    assert len(tables) == SHARDS and sum(table.num_rows for table in tables) == 1797
    assert all(set(table["label"].to_pylist()) == set(range(10)) for table in tables)
    images = {tuple(row.values()) for table in tables for row in table.to_pylist()}
    assert len(images) == 1797


def test_columns_are_bytes_in_range() -> None:
    table = digits_tables()[0]
    assert table.column_names == [f"pixel_{index}" for index in range(PIXELS)] + ["label"]
    assert {str(kind) for kind in table.schema.types} == {"uint8"}
    assert max(max(table[name].to_pylist()) for name in table.column_names[:-1]) == 16


def test_shards_stay_small(shipped: list[Path]) -> None:
    assert sum(path.stat().st_size for path in shipped) < 400_000
