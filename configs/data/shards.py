"""Write a dataset's tables as Parquet shards named part-0.parquet, part-1.parquet and so on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_shards(directory: Path, tables: Iterable[pa.Table]) -> list[Path]:
    """Write one file per table, each atomically, and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for shard, table in enumerate(tables):
        path = directory / f"part-{shard}.parquet"
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{path.name}.")
        os.close(handle)
        try:
            pq.write_table(table, temporary, compression="zstd")
            # mkstemp creates the file as 0600, which other users of a clone could not read
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        paths.append(path)
    return paths
