"""Write a dataset's tables as Parquet shards named part-0.parquet, part-1.parquet and so on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nodesweep.configs.atomic import SHARED, written_atomically


def write_shards(directory: Path, tables: Iterable[pa.Table]) -> list[Path]:
    """Write one file per table, each atomically, and return their paths."""
    paths = []
    for shard, table in enumerate(tables):
        path = directory / f"part-{shard}.parquet"
        with written_atomically(path, SHARED) as stream:
            pq.write_table(table, stream, compression="zstd")
        paths.append(path)
    return paths
