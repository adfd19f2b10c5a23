from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from training.errors import UserError
from training.tables import Table, load_table, prepare_table


def prepare(tmp_path: Path, columns: dict[str, Any], channels: int = 1) -> Table:
    source = tmp_path / "in"
    source.mkdir()
    pq.write_table(pa.table(columns), source / "t.parquet")
    prepare_table(source, "parquet", "label", tmp_path / "prepared")
    return load_table(tmp_path / "prepared", channels)


def test_labels_become_class_numbers_whatever_their_type(tmp_path: Path) -> None:
    table = prepare(tmp_path, {"a": [1, 2, 3], "label": ["dog", "cat", "dog"], "b": [0.5, 0.25, 0.125]})
    assert table.labels.tolist() == [1, 0, 1]
    assert table.features.tolist() == [[1, 0.5], [2, 0.25], [3, 0.125]]
    assert (table.classes, table.is_image) == (2, False)


def test_pixel_columns_become_images_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    columns: dict[str, Any] = {f"pixel_{i}": [i] for i in reversed(range(12))}
    table = prepare(tmp_path, {"label": [7], **columns}, channels=3)
    assert table.features.shape == (1, 3, 2, 2)
    assert table.features[0, 1].tolist() == [[4, 5], [6, 7]]


def test_csv_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,label\n1.5,0\n2.5,1\n")
    prepare_table(tmp_path, "csv", "label", tmp_path / "prepared")
    assert load_table(tmp_path / "prepared", 1).features.tolist() == [[1.5], [2.5]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1]}, "--label-column 'label' is not in the table .* its columns are a"),
        ({"a": ["x"], "label": [1]}, "column 'a' has type string; features must be numbers"),
        ({"a": [1.0, None], "label": [1, 2]}, "column 'a' holds 1 nulls"),
        ({"a": [1.0, float("nan")], "label": [1, 2]}, "column 'a' holds 1 NaN or infinite values"),
        ({"label": [1]}, "no column besides the label"),
        ({"pixel_0": [1], "pixel_1": [1], "label": [1]}, "2 pixel_\\* columns are no square image"),
        ({"a": pa.array([], pa.int64()), "label": pa.array([], pa.int64())}, "hold no rows"),
    ],
)
def test_a_table_it_cannot_use_is_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(tmp_path, columns)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no \.parquet or \.pq files; is --format parquet right"):
        prepare_table(tmp_path, "parquet", "label", tmp_path / "prepared")


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("not a table")
    with pytest.raises(UserError, match="can't be read"):
        prepare_table(tmp_path, "parquet", "label", tmp_path / "prepared")
