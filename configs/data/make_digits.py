"""Make the shards of the digits dataset from scikit-learn's bundled copy.

    .venv/bin/python -m nodesweep.configs.data.make_digits  # writes digits/part-*.parquet

The 1,797 images of 8x8 pixels (0 to 16) and their labels become eight Parquet files. Rows are
ordered by a hash of the seed and the row number, so regenerated files always hold the same tables.
A random generator's stream can change with a NumPy release.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from nodesweep.configs.data.shards import write_shards

SHARDS = 8
SEED = 20260720
PIXELS = 64
DEFAULT_DIRECTORY = Path(__file__).with_name("digits")


def digits_tables() -> list[pa.Table]:
    """Return the shards in order; every shard holds all ten classes.

    Returns:
        Tables with the columns pixel_0 to pixel_63 and label, all uint8.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = sorted(
        range(len(labels)), key=lambda row: hashlib.sha256(f"{SEED}:{row}".encode()).digest()
    )
    return [
        _table(images[order[shard::SHARDS]], labels[order[shard::SHARDS]])
        for shard in range(SHARDS)
    ]


def _table(images: np.ndarray, labels: np.ndarray) -> pa.Table:
    columns = {
        f"pixel_{index}": pa.array(images[:, index].astype(np.uint8)) for index in range(PIXELS)
    }
    return pa.table({**columns, "label": pa.array(labels.astype(np.uint8))})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_DIRECTORY, help="directory of the shards"
    )
    for written in write_shards(parser.parse_args().output, digits_tables()):
        print(f"{written}  {written.stat().st_size} bytes")
