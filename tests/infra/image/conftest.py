"""The training program's own modules for the tests, and the digits as a program finds them."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

IMAGE = Path(__file__).resolve().parents[3] / "infra" / "image"
if str(IMAGE) not in sys.path:
    sys.path.insert(0, str(IMAGE))  # as in the image, where train.py's folder comes first


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's handwritten digits: 1,797 real 8x8 images, in two Parquet files."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    columns = {f"pixel_{i}": bunch.data[:, i].astype("int8") for i in range(64)}
    table = pa.table({**columns, "label": bunch.target})
    folder = tmp_path_factory.mktemp("digits")
    pq.write_table(table.slice(0, 1000), folder / "part-0.parquet")
    pq.write_table(table.slice(1000), folder / "part-1.parquet")
    return folder
