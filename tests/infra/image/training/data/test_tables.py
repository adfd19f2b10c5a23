from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from training.data.tables import Table, load_table, prepare_table
from training.errors import UserError


def prepare(tmp_path: Path, columns: dict[str, Any], channels: int = 1) -> Table:
    source = tmp_path / "in"
    source.mkdir()
    pq.write_table(pa.table(columns), source / "t.parquet")
    prepare_table(source, "parquet", "label", tmp_path / "prepared")
    return load_table(tmp_path / "prepared", channels)


def test_labels_become_class_numbers_whatever_their_type(tmp_path: Path) -> None:
    table = prepare(
        tmp_path, {"a": [1, 2, 3], "label": ["dog", "cat", "dog"], "b": [0.5, 0.25, 0.125]}
    )
    assert table.labels.tolist() == [1, 0, 1]
    assert table.features.tolist() == [[1, 0.5], [2, 0.25], [3, 0.125]]
    assert (table.classes, table.is_image) == (2, False)


def test_pixel_columns_become_images_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    columns: dict[str, Any] = {f"pixel_{i}": [i] for i in reversed(range(12))}
    table = prepare(tmp_path, {"label": [7], **columns}, channels=3)
    assert table.features.shape == (1, 3, 2, 2)
    assert table.features[0, 1].tolist() == [[4, 5], [6, 7]]


def test_a_table_of_bytes_stays_bytes(tmp_path: Path) -> None:
    columns = {f"pixel_{i}": pa.array([0, 255], pa.uint8()) for i in range(4)}
    table = prepare(tmp_path, {**columns, "label": [0, 1]})
    assert (table.features.dtype, table.features.shape) == (np.uint8, (2, 1, 2, 2))
    assert table.features.tolist() == [[[[0, 0], [0, 0]]], [[[255, 255], [255, 255]]]]


@pytest.mark.parametrize(
    "other", [pa.array([0.5], pa.float32()), pa.array([256], pa.int16()), pa.array([-1], pa.int8())]
)
def test_one_column_of_another_type_makes_them_floats(tmp_path: Path, other: pa.Array) -> None:
    table = prepare(tmp_path, {"a": pa.array([1], pa.uint8()), "b": other, "label": [0]})
    assert table.features.dtype == np.float32 and table.features.tolist() == [[1, other[0].as_py()]]


def images(*rows: bytes | None, width: int = 12) -> pa.Array:
    return pa.array(rows, pa.binary(width))


def test_a_column_of_fixed_size_binary_holds_images(tmp_path: Path) -> None:
    columns = {
        "label": pa.array(list(range(5)) * 40),
        "pixels": images(*[bytes(range(n, n + 12)) for n in range(200)]),
    }
    table = prepare(tmp_path, columns, channels=3)
    assert (table.features.dtype, table.features.shape, table.is_image) == (
        np.uint8,
        (200, 3, 2, 2),
        True,
    )
    assert table.features[7, 1].tolist() == [[11, 12], [13, 14]]
    assert isinstance(table.features, np.memmap), "the ranks of a node share it"


def test_both_forms_of_images_are_the_same_table(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (30, 12), dtype=np.uint8)
    made = []
    for name, columns in (
        ("one", {"pixels": images(*[row.tobytes() for row in rows])}),
        ("many", {f"pixel_{i}": rows[:, i] for i in range(12)}),
    ):
        (tmp_path / name).mkdir()
        made.append(prepare(tmp_path / name, {**columns, "label": list(range(30))}, channels=3))
    assert (
        np.array_equal(made[0].features, made[1].features)
        and made[0].features.dtype == made[1].features.dtype
    )


def test_csv_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,label\n1.5,0\n2.5,1\n")
    prepare_table(tmp_path, "csv", "label", tmp_path / "prepared")
    assert load_table(tmp_path / "prepared", 1).features.tolist() == [[1.5], [2.5]]


@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ({"a": [1]}, "--label-column 'label' .* a"),
        ({"a": ["x"], "label": [1]}, "'a' .*string"),
        ({"a": [1.0, None], "label": [1, 2]}, "'a' .*1 null"),
        ({"a": [1.0, float("nan")], "label": [1, 2]}, "'a' .*1 NaN"),
        ({"label": [1]}, "label"),
        (
            {"pixel_0": [1], "pixel_1": [1], "label": [1]},
            "^2 pixels .*--image-channels 1",
        ),
        (
            {"pixels": images(bytes(12)), "label": [1]},
            "12 pixels .*--image-channels 1",
        ),
        ({"pixels": images(bytes(12), None), "label": [1, 2]}, "'pixels' .*1 null"),
        (
            {"pixels": images(bytes(12)), "a": [1], "label": [1]},
            r"fixed_size_binary\[12\]",
        ),
        ({"a": pa.array([], pa.int64()), "label": pa.array([], pa.int64())}, " rows"),
    ],
)
def test_a_table_it_cannot_use_is_refused(
    tmp_path: Path, columns: dict[str, Any], fact: str
) -> None:
    with pytest.raises(UserError, match=fact):
        prepare(tmp_path, columns)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.parquet .*--format parquet"):
        prepare_table(tmp_path, "parquet", "label", tmp_path / "prepared")


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("not a table")
    with pytest.raises(UserError, match=str(tmp_path)):
        prepare_table(tmp_path, "parquet", "label", tmp_path / "prepared")
