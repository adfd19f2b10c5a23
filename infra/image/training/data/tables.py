"""Tables on disk as arrays: one process per node decodes them, and every rank maps them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as pads

from training.errors import UserError
from training.files import write_text_atomically

SUFFIXES = {"parquet": (".parquet", ".pq"), "csv": (".csv", ".csv.gz")}
_PIXEL = re.compile(r"pixel_(\d+)")


@dataclass(frozen=True)
class Table:
    """Rows of features in the sample's shape, and class numbers from 0.

    `features` is memory-mapped so that a node's ranks share one copy. It is uint8 if all columns
    are, which keeps images at a quarter of the size, otherwise float32.
    """

    features: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    classes: int

    @property
    def is_image(self) -> bool:
        """True if a row has the shape (channel, row, column)."""
        return self.features.ndim == 4


def prepare_table(source: Path, table_format: str, label_column: str, prepared: Path) -> None:
    """Decode the tables under `source` into arrays under `prepared`, then write description.json.

    Raises:
        UserError: The tables are missing, unreadable, empty, or have unsuitable columns.
    """
    dataset = _open(source, table_format)
    if label_column not in dataset.schema.names:
        raise UserError(
            f"--label-column {label_column!r} is not in the table under {source}; its columns"
            f" include {', '.join(dataset.schema.names[:20])}"
        )
    columns = _feature_columns(dataset.schema, label_column)
    rows = dataset.count_rows()
    if rows == 0:
        raise UserError(f"the tables under {source} have no rows")
    prepared.mkdir(parents=True, exist_ok=True)
    kinds = [dataset.schema.field(name).type for name in columns]
    shape = (rows, kinds[0].byte_width if _holds_images(kinds[0]) else len(columns))
    compact = all(kind == pa.uint8() or _holds_images(kind) for kind in kinds)
    features = np.lib.format.open_memmap(
        prepared / "features.npy", "w+", np.uint8 if compact else np.float32, shape
    )
    labels, at = [], 0
    for batch in dataset.to_batches(columns=[*columns, label_column], fragment_readahead=1):
        block = features[at : at + batch.num_rows]
        if _holds_images(kinds[0]):
            block[:] = _images(batch.column(columns[0]), columns[0])
        else:
            for index, name in enumerate(columns):
                block[:, index] = _values(batch.column(name), name)
        labels.append(_values(batch.column(label_column), label_column))
        at += batch.num_rows
    features.flush()
    names, numbers = np.unique(np.concatenate(labels), return_inverse=True)
    np.save(prepared / "labels.npy", numbers.astype(np.int64))
    is_image = _holds_images(kinds[0]) or all(_PIXEL.fullmatch(name) for name in columns)
    description = {"is_image": is_image, "classes": [str(name) for name in names]}
    write_text_atomically(prepared / "description.json", json.dumps(description))


def load_table(prepared: Path, image_channels: int) -> Table:
    """Map the arrays of `prepare_table`; images get the shape (channel, row, column)."""
    description = json.loads((prepared / "description.json").read_text(encoding="utf-8"))
    features = np.load(prepared / "features.npy", mmap_mode="r")
    labels = np.load(prepared / "labels.npy")
    if description["is_image"]:
        features = features.reshape(len(features), *_image_shape(features.shape[1], image_channels))
    return Table(features, labels, len(description["classes"]))


def _image_shape(pixels: int, channels: int) -> tuple[int, int, int]:
    side = round((pixels / channels) ** 0.5)
    if channels * side * side != pixels:
        raise UserError(
            f"{pixels} pixels don't form a square image with --image-channels {channels}"
        )
    return channels, side, side


def is_hidden(name: str) -> bool:
    """Return True if a part of the path begins with '.', or with '_' and has no '='.

    pyarrow, pandas, and Spark skip such paths as unfinished writes and markers; `_year=2026` is a
    partition.
    """
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in parts)


def _open(source: Path, table_format: str) -> pads.Dataset:
    suffixes = SUFFIXES[table_format]
    tables = [path for path in source.rglob("*") if path.is_file() and path.name.endswith(suffixes)]
    files = sorted(
        str(path) for path in tables if not is_hidden(path.relative_to(source).as_posix())
    )
    if left_out := len(tables) - len(files):
        print(
            f"left out {left_out} hidden files under {source} (a part of the path starts with '_'"
            " or '.')"
        )
    if not files:
        state = "has no" if source.is_dir() else "does not exist: no"
        raise UserError(
            f"--data {source} {state} {' or '.join(suffixes)} files;"
            f" is --format {table_format} right?"
        )
    try:
        return pads.dataset(files, format=table_format)
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"the {table_format} tables under {source} can't be read: {error}"
        ) from error


def _feature_columns(schema: pa.Schema, label_column: str) -> list[str]:
    """Return every column except the label, pixel_* columns in numeric order.

    Raises:
        UserError: A column is not numeric, and is not a single column of images either.
    """
    columns = [name for name in schema.names if name != label_column]
    if len(columns) == 1 and _holds_images(schema.field(columns[0]).type):
        return columns
    for name in columns:
        kind = schema.field(name).type
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            raise UserError(
                f"column {name!r} has type {kind}; features must be numbers, or a single column of "
                "images (uint8 pixels as fixed-size binary); encode the column, or remove it"
            )
    if not columns:
        raise UserError(f"the table has no column other than the label {label_column!r}")
    if all(_PIXEL.fullmatch(name) for name in columns):
        columns.sort(key=lambda name: int(name.removeprefix("pixel_")))
    return columns


def _holds_images(kind: pa.DataType) -> bool:
    return pa.types.is_fixed_size_binary(kind)


def _images(column: pa.Array, name: str) -> npt.NDArray[np.uint8]:
    """Return a fixed-size binary column as (rows, pixels), without a copy."""
    _refuse_nulls(column, name)
    width = column.type.byte_width
    pixels = np.frombuffer(
        column.buffers()[1], np.uint8, len(column) * width, column.offset * width
    )
    return pixels.reshape(len(column), width)


def _values(column: pa.Array, name: str) -> npt.NDArray[Any]:
    _refuse_nulls(column, name)
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f" and (odd := int(np.count_nonzero(~np.isfinite(values)))):
        raise UserError(
            f"column {name!r} contains {odd} NaN or infinite values in a block of {len(values)}"
            " rows: fill them"
        )
    return values


def _refuse_nulls(column: pa.Array, name: str) -> None:
    if column.null_count:
        raise UserError(
            f"column {name!r} contains {column.null_count} nulls in a block of {len(column)} rows:"
            " fill them"
        )
