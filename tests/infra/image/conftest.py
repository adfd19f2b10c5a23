"""The training program's modules on sys.path, and the digits as its input."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.infra.image.training.processes import Trainings, warm_training
from tests.processes.warm_process import WarmProcess

IMAGE = Path(__file__).resolve().parents[3] / "infra" / "image"
if str(IMAGE) not in sys.path:
    sys.path.insert(0, str(IMAGE))  # as in the image, where train.py's folder comes first


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's handwritten digits: 1,797 real 8x8 images in two Parquet files."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    columns = {f"pixel_{i}": bunch.data[:, i].astype("int8") for i in range(64)}
    table = pa.table({**columns, "label": bunch.target})
    folder = tmp_path_factory.mktemp("digits")
    pq.write_table(table.slice(0, 1000), folder / "part-0.parquet")
    pq.write_table(table.slice(1000), folder / "part-1.parquet")
    return folder


@pytest.fixture(scope="session")
def warm(image_python: str) -> Iterator[WarmProcess]:
    """A process to fork training processes from."""
    with warm_training(image_python) as process:
        yield process


@pytest.fixture
def trainings(
    image_python: str, digits: Path, tmp_path: Path, warm: WarmProcess
) -> Iterator[Trainings]:
    """Training processes in the image's Python."""
    running = Trainings(image_python, digits, tmp_path, warm)
    yield running
    running.end()


@pytest.fixture
def trainings_here(tmp_path: Path) -> Iterator[Trainings]:
    """Processes in this Python, for programs that need no torch."""
    running = Trainings(sys.executable, tmp_path, tmp_path)
    yield running
    running.end()


@pytest.fixture
def young() -> Iterator[None]:
    """Keep new objects in the collector's generation 0, so that gc.collect(0) finds the dead ones.

    A full collection takes as long as everything that earlier tests have left: the cycles that it
    scans, and the finalizers that it runs.
    """
    gc.collect(0)
    gc.disable()
    yield
    gc.enable()
