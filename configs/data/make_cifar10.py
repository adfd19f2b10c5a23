"""Make the dataset of the ResNet-18 example from a downloaded CIFAR-10 archive.

    python -m nodesweep.configs.data.make_cifar10 cifar-10-binary.tar.gz [OUTPUT]

The archive is "CIFAR-10 binary version" from the University of Toronto (Alex Krizhevsky, Learning
Multiple Layers of Features from Tiny Images, 2009). Its 50,000 training images become eight Parquet
files of 6,250 rows with the columns `pixels` (3,072 bytes: channel, row, column) and `label` (0 to
9); the test images are left out, because the training program holds back part of the table for
validation.
"""

from __future__ import annotations

import argparse
import gzip
import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nodesweep.configs.data.shards import write_shards

BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
PIXELS = 3 * 32 * 32
CLASSES = 10
SHARDS = 8
DEFAULT_DIRECTORY = Path("cifar10")
MAX_BATCH_BYTES = 64 << 20
"""Limit per batch; the published batches are 31 MB each."""


class BadArchive(Exception):
    """The file is not the binary version of the CIFAR-10 archive, or it is damaged."""


def read_archive(path: Path) -> npt.NDArray[np.uint8]:
    """Return the training records in batch order: one label byte and 3,072 image bytes each.

    Raises:
        BadArchive: The file is damaged or is a different archive.
    """
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if name in BATCHES and member.isreg() and member.size <= MAX_BATCH_BYTES:
                        stream = archive.extractfile(member)
                        assert stream is not None  # the member is a regular file
                        found[name] = stream.read()
            while packed.read(1 << 20):  # up to the end, where gzip verifies its checksum
                pass
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        raise BadArchive(f"is not a valid .tar.gz ({error}); download it again") from error
    if missing := [name for name in BATCHES if name not in found]:
        raise BadArchive(
            f"lacks {', '.join(missing)}; give the complete binary version of CIFAR-10,"
            " cifar-10-binary.tar.gz"
        )
    return np.concatenate([_records(name, found[name]) for name in BATCHES])


def _records(name: str, data: bytes) -> npt.NDArray[np.uint8]:
    if not data or len(data) % (1 + PIXELS):
        raise BadArchive(
            f"{name} has {len(data)} bytes; expected a multiple of {1 + PIXELS}: a label and an"
            " image. Download the archive again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + PIXELS)
    if records[:, 0].max() >= CLASSES:
        raise BadArchive(f"{name} has labels above {CLASSES - 1}; download the archive again")
    return records


def tables_of(records: npt.NDArray[np.uint8]) -> list[pa.Table]:
    """Return the shards in order; their row counts differ by at most one."""
    return [_table(shard) for shard in np.array_split(records, SHARDS)]


def _table(records: npt.NDArray[np.uint8]) -> pa.Table:
    data = pa.py_buffer(np.ascontiguousarray(records[:, 1:]))
    pixels = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PIXELS), len(records), [None, data])
    return pa.table({"pixels": pixels, "label": pa.array(records[:, 0])})


def main() -> None:
    """Convert the archive named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nodesweep.configs.data.make_cifar10",
        description="Convert CIFAR-10 to Parquet files.",
    )
    parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="cifar-10-binary.tar.gz")
    help = f"directory of the Parquet files (default: {DEFAULT_DIRECTORY})"
    parser.add_argument(
        "output", type=Path, metavar="OUTPUT", nargs="?", default=DEFAULT_DIRECTORY, help=help
    )
    arguments = parser.parse_args()
    try:
        paths = write_shards(arguments.output, tables_of(read_archive(arguments.archive)))
    except BadArchive as error:
        parser.error(f"{arguments.archive} {error}")
    except OSError as error:
        parser.error(f"{error.filename or arguments.archive}: {error.strerror or error}")
    for path in paths:
        print(f"{path}  {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
