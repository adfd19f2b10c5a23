"""Small archives in CIFAR-10's published binary format: a .tar.gz of labels and images."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

FOLDER = "cifar-10-batches-bin"
BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))


def write_archive(path: Path, members: Mapping[str, bytes], folder: str = FOLDER) -> Path:
    """Write the members in one folder, as in the published archive."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def small_batches(rows: int, seed: int = 0) -> tuple[np.ndarray, dict[str, bytes]]:
    """Return (training records: label and image; archive members): five batches and a test batch.

    Classes differ in brightness, with noise, so that a model can learn them.
    """
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(5 * rows) % 10)
    images = labels[:, None] * 22 + random.integers(0, 20, (5 * rows, 3072))
    records = np.hstack([labels[:, None], images]).astype(np.uint8)
    members = {
        name: part.tobytes() for name, part in zip(BATCHES, np.split(records, 5), strict=True)
    }
    members["test_batch.bin"] = records[:rows].tobytes()
    members["batches.meta.txt"] = b"airplane\n"
    return records, members
