"""Make the dataset of the ResNet-18 example from a downloaded CIFAR-10 archive.

    python -m nodesweep.configs.data.make_cifar10 cifar-10-python.tar.gz [OUTPUT]

The archive is "CIFAR-10 python version" from the University of Toronto (Alex Krizhevsky, Learning
Multiple Layers of Features from Tiny Images, 2009). Its 50,000 training images become eight Parquet
files of 6,250 rows with the columns `pixels` (3,072 bytes: channel, row, column) and `label` (0 to
9); the test images are left out, because the training program holds back part of the table for
validation.

The archive contains pickles, which can run arbitrary code when loaded. Here every name that a batch
needs maps to a function below, and any other name is rejected.
"""

from __future__ import annotations

import argparse
import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nodesweep.configs.data.shards import write_shards

BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
PIXELS = 3 * 32 * 32
CLASSES = 10
SHARDS = 8
DEFAULT_DIRECTORY = Path("cifar10")
MAX_BATCH_BYTES = 64 << 20
"""Limit per batch; the published batches are 31 MB each."""
MAX_ARCHIVE_BYTES = 512 << 20
"""Limit on the uncompressed size; the published archive has 186 MB."""

_OTHER_ARCHIVES = {
    "cifar-100-python": "that of CIFAR-100",
    "cifar-100-binary": "that of CIFAR-100",
    "cifar-100-matlab": "that of CIFAR-100",
    "cifar-10-batches-bin": "the binary version",
    "cifar-10-batches-mat": "the Matlab version",
}


class BadArchive(Exception):
    """The file is not the Python version of the CIFAR-10 archive, or it is damaged."""


def read_archive(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the training images (3,072 bytes each) and their labels, in batch order.

    Raises:
        BadArchive: The file is a different archive, or damaged.
    """
    members = _read_members(path)
    batches = [_read_batch(name, members[name]) for name in BATCHES]
    return np.concatenate([images for images, _ in batches]), np.concatenate(
        [labels for _, labels in batches]
    )


def tables_of(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> list[pa.Table]:
    """Return the shards in order; their numbers of rows differ by at most one."""
    shards = zip(np.array_split(images, SHARDS), np.array_split(labels, SHARDS), strict=True)
    return [_table(shard, shard_labels) for shard, shard_labels in shards]


def _table(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> pa.Table:
    data = pa.py_buffer(np.ascontiguousarray(images))
    pixels = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PIXELS), len(images), [None, data])
    return pa.table({"pixels": pixels, "label": pa.array(labels)})


class _Bounded(io.RawIOBase):
    """A stream that raises BadArchive beyond a size, since a small file can unpack to any size."""

    def __init__(self, stream: gzip.GzipFile, max_bytes: int) -> None:
        self._stream, self._left = stream, max_bytes

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise BadArchive(
                f"unpacks to more than {MAX_ARCHIVE_BYTES >> 20} MiB; CIFAR-10's has 186 MB"
            )
        return data


def _read_members(path: Path) -> dict[str, bytes]:
    """Read the training batches into memory by name; no archive member is written to disk."""
    found: dict[str, bytes] = {}
    seen: list[str] = []
    try:
        with gzip.open(path) as packed:
            unpacked = _Bounded(packed, MAX_ARCHIVE_BYTES)
            with tarfile.open(fileobj=unpacked, mode="r|") as archive:
                for member in archive:
                    seen.append(member.name)
                    name = PurePosixPath(member.name).name
                    if name in BATCHES and member.isreg():
                        found[name] = _read_member(archive, member)
            while unpacked.read(1 << 20):  # to the end, where gzip's checksum reveals damage
                pass
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        if isinstance(error, gzip.BadGzipFile) and not seen:
            raise BadArchive(
                "is not a gzip file; give cifar-10-python.tar.gz as it was downloaded"
            ) from error
        raise BadArchive(f"is damaged or cut short ({error}); download it again") from error
    missing = [name for name in BATCHES if name not in found]
    if missing:
        raise BadArchive(_describe_missing(missing, seen))
    return found


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > MAX_BATCH_BYTES:
        raise BadArchive(f"{member.name} has {member.size} bytes; a batch has 31 MB")
    stream = archive.extractfile(member)
    assert stream is not None  # the member is a regular file
    return stream.read()


def _describe_missing(missing: list[str], seen: list[str]) -> str:
    for folder, version in _OTHER_ARCHIVES.items():
        if any(folder in PurePosixPath(name).parts for name in seen):
            return f"is {version}; give the Python version of CIFAR-10, cifar-10-python.tar.gz"
    held = ", ".join(repr(name) for name in seen[:5]) or "nothing"
    return f"lacks {', '.join(missing)}; it contains {held}. Give cifar-10-python.tar.gz, complete"


class _ArrayKind:
    """Replacement for numpy.dtype while a batch is unpickled; keeps only its name."""

    def __init__(self, name: object = "", *_: object) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which single bytes do not have."""


class _PickledArray:
    """Replacement for numpy.ndarray: its pickled state, not yet checked."""

    shape: object = None
    kind: object = None
    is_fortran: object = None
    data: object = None

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, self.shape, self.kind, self.is_fortran, self.data = state


def _reconstruct(*_: object) -> _PickledArray:
    """Create an array whose state is set later, instead of NumPy's function of this name."""
    return _PickledArray()


def _encode(text: str, encoding: str) -> bytes:
    """Encode text instead of _codecs.encode, which Python 3 uses to pickle bytes for Python 2."""
    if encoding != "latin1":
        raise BadArchive(f"encodes text as {encoding!r}; pickled bytes are encoded as latin1")
    return text.encode("latin1")


_STAND_INS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): _ArrayKind,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return the replacement for a pickled name; reject all others."""
        if (module, name) not in _STAND_INS:
            raise BadArchive(
                f"refers to {module}.{name}, which no batch of images needs; it was not executed"
            )
        return _STAND_INS[module, name]


def _read_batch(name: str, data: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    try:
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except BadArchive as error:
        raise BadArchive(f"{name} {error}") from error
    except Exception as error:  # a damaged pickle can raise almost anything
        raise BadArchive(
            f"{name} can't be read ({type(error).__name__}: {error}); download the archive again"
        ) from error
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise BadArchive(
            f"{name} has no b'data' and b'labels'; is this the Python version of CIFAR-10?"
        )
    images = _images(name, batch[b"data"])
    labels = batch[b"labels"]
    if not isinstance(labels, list) or not all(
        type(label) is int and 0 <= label < CLASSES for label in labels
    ):
        raise BadArchive(f"{name}: its labels are not a list of numbers from 0 to {CLASSES - 1}")
    if len(labels) != len(images):
        raise BadArchive(f"{name} has {len(images)} images and {len(labels)} labels")
    return images, np.array(labels, np.uint8)


def _images(name: str, array: object) -> npt.NDArray[np.uint8]:
    if not isinstance(array, _PickledArray) or not isinstance(array.kind, _ArrayKind):
        raise BadArchive(f"{name}: its data is not an array")
    if array.kind.name not in ("u1", "uint8") or array.is_fortran:
        raise BadArchive(
            f"{name}: its data has type {array.kind.name!r}; images are bytes (u1), row by row"
        )
    data = array.data
    if (
        not isinstance(data, bytes)
        or not data
        or array.shape != (len(data) // PIXELS, PIXELS)
        or len(data) % PIXELS
    ):
        raise BadArchive(
            f"{name}: its data has the shape {array.shape}; images are rows of {PIXELS} bytes"
        )
    return np.frombuffer(data, np.uint8).reshape(-1, PIXELS)


def main() -> None:
    """Convert the archive named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nodesweep.configs.data.make_cifar10",
        description="CIFAR-10 as Parquet files",
    )
    parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="cifar-10-python.tar.gz")
    help = f"directory of the Parquet files (default: {DEFAULT_DIRECTORY})"
    parser.add_argument(
        "output", type=Path, metavar="OUTPUT", nargs="?", default=DEFAULT_DIRECTORY, help=help
    )
    arguments = parser.parse_args()
    try:
        paths = write_shards(arguments.output, tables_of(*read_archive(arguments.archive)))
    except BadArchive as error:
        parser.error(f"{arguments.archive} {error}")
    except OSError as error:
        parser.error(f"{error.filename or arguments.archive}: {error.strerror or error}")
    for path in paths:
        print(f"{path}  {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
