"""The shipped program reads exactly the files that nodesweep validates."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training.data import tables

from nodesweep.configs.dataset import SUFFIXES
from nodesweep.tasks.dataset import naming
from nodesweep.tasks.dataset.files import list_directory
from tests.tasks.dataset.test_files import dataset_at

HIDDEN = ("_temporary/0/d", ".hidden/e", ".f", "_g")


def write(path: Path, label: int) -> None:
    """Write two rows of a label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"a,label\n1,{label}\n2,{label}\n".encode()
    if ".csv" in path.name:
        path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    else:
        pq.write_table(pa.table({"a": [1, 2], "label": [label, label]}), path)


@pytest.mark.parametrize("data_format", ["parquet", "csv"])
def test_the_files_that_are_read_are_those_that_are_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data_format: str
) -> None:
    source, suffixes = tmp_path / "data", SUFFIXES[data_format]
    names = [f"{stem}{suffix}" for suffix in suffixes for stem in ("a", "_year=2026/b", *HIDDEN)]
    for label, name in enumerate(names):
        write(source / name, label)
    (source / "_SUCCESS").write_bytes(b"")
    (source / "readme.md").write_bytes(b"")
    tables.prepare_table(source, data_format, "label", tmp_path / "prepared")
    validated = list_directory(dataset_at(source, data_format)).names.data
    labels = {names.index(name) for name in validated}
    assert tables.load_table(tmp_path / "prepared", 1).classes == len(labels) == 4
    text = (tmp_path / "prepared" / "description.json").read_text()
    assert f'"classes": {[str(label) for label in sorted(labels)]}'.replace("'", '"') in text
    assert "8 hidden files" in capsys.readouterr().out


def test_suffixes_are_the_same() -> None:
    assert tables.SUFFIXES == SUFFIXES
    assert all(set(SUFFIXES[kind]) < set(naming._LIKE[kind]) for kind in SUFFIXES)


@given(st.lists(st.text("._=a", min_size=1, max_size=4), min_size=1, max_size=4))
def test_hidden_is_the_same(parts: list[str]) -> None:
    assert naming.is_hidden("/".join(parts)) == tables.is_hidden("/".join(parts))
