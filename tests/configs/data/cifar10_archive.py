"""Small archives in CIFAR-10's published format: a .tar.gz of dictionaries pickled by Python 2."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

FOLDER = "cifar-10-batches-py"
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def python2_pickle(images: np.ndarray, labels: list[int], kind: str = "u1") -> bytes:
    """Return a pickle in protocol 2 as Python 2 wrote it, opcode by opcode.

    Python 3's pickle can't write Python 2's byte strings.
    """
    rows, pixels = images.shape
    data = images.tobytes()
    return b"".join(
        [
            b"\x80\x02}(",
            _text("batch_label"), _text("training batch 1 of 5"),
            _text("labels"), b"](", *[b"K" + bytes([label]) for label in labels], b"e",
            _text("data"),
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85", _text("b"),
            b"\x87R",
            b"(K\x01", b"J" + struct.pack("<i", rows), b"M" + struct.pack("<H", pixels), b"\x86",
            b"cnumpy\ndtype\n", _text(kind), b"K\x00K\x01\x87R",
            b"(K\x03", _text("|"), b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + struct.pack("<i", len(data)) + data, b"tb",
            b"u.",
        ]
    )  # fmt: skip


def write_archive(path: Path, members: Mapping[str, bytes], folder: str = FOLDER) -> Path:
    """Write the members in one folder, as in the published archive."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def small_batches(rows: int, seed: int = 0) -> tuple[np.ndarray, list[int], dict[str, bytes]]:
    """Return (training images, their labels, archive members): five batches and a test batch.

    Classes differ in brightness, with noise, so that a model can learn them.
    """
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(5 * rows) % 10)
    images = (labels[:, None] * 22 + random.integers(0, 20, (5 * rows, 3072))).astype(np.uint8)
    parts = zip(BATCHES, np.split(images, 5), np.split(labels, 5), strict=True)
    members = {
        name: python2_pickle(shard, [int(one) for one in numbers]) for name, shard, numbers in parts
    }
    members["test_batch"] = python2_pickle(images[:rows], [int(one) for one in labels[:rows]])
    members["batches.meta"] = b"\x80\x02}."
    return images, [int(one) for one in labels], members


def _text(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()
