"""The files of a dataset: one rule for a folder and a prefix.

tests/infra/image/training/data/test_same_files.py checks that the shipped program follows it.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.errors import DatasetMissing, DatasetRefused
from nodesweep.tasks.dataset import naming
from nodesweep.tasks.dataset.files import channel_folders, list_directory, scan_directory
from nodesweep.tasks.dataset.naming import Names, classify_names, notices_of
from nodesweep.tasks.dataset.remote.objects import describe_remote
from nodesweep.tasks.dataset.remote.validation import remote_tables
from nodesweep.tasks.dataset.validation import validate_dataset, validate_tables
from tests.plain import plain
from tests.tasks.dataset.test_files import dataset_at

BUCKET, SOURCE = "bench-bucket", "s3://bench-bucket/raw"
NOW = datetime(2026, 11, 24, tzinfo=UTC)
ROWS = b"a,label\n1,0\n2,1\n"
FILES = {
    "a.csv": ROWS,
    "b.csv.gz": gzip.compress(ROWS),
    "_year=2026/c.csv": ROWS,
    "_temporary/0/task/d.csv": ROWS,
    ".hidden/e.csv": ROWS,
    ".f.csv": ROWS,
    "sub/_SUCCESS": b"",
    "sub/readme.md": b"what this is",
    "LICENSE.txt": b"",
    "labels.json": b"{}",
    "other.parquet": b"another format",
}
DATA = ("_year=2026/c.csv", "a.csv", "b.csv.gz")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return folder


@pytest.fixture
def s3(aws: Callable[[str], Any]) -> Any:
    client = aws("s3")
    client.create_bucket(Bucket=BUCKET)
    return client


def put(s3: Any, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        s3.put_object(Bucket=BUCKET, Key=f"raw/{name}", Body=body)


def test_the_same_is_validated_here_and_in_s3(s3: Any, tmp_path: Path) -> None:
    here, there = write(tmp_path / "data", FILES), dataset_at(SOURCE, "csv")
    put(s3, {**FILES, "sub_$folder$": b"", "sub/": b""})
    local, remote = list_directory(dataset_at(here, "csv")), describe_remote(s3, there)
    assert local.names.data == remote.names.data == DATA
    of_files = validate_dataset(local.paths, dataset_at(here, "csv"), now=NOW)
    of_objects = validate_tables(remote_tables(s3, remote, there), there, now=NOW)
    assert (of_files.success, of_files.rows) == (of_objects.success, of_objects.rows) == (True, 6)


def test_what_is_left_out_is_counted_and_named(
    s3: Any, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    config = dataset_at(write(tmp_path, FILES), "csv")
    hidden, others = notices_of(config, list_directory(config).names)
    assert "4 paths" in hidden and ".f.csv" in hidden and "_temporary" in hidden
    assert "2 files" in others and "labels.json, other.parquet" in others
    put(s3, FILES)
    there = dataset_at(SOURCE, "csv")
    hidden, others = notices_of(there, describe_remote(s3, there).names)
    assert hidden == snapshot
    assert "4 paths" in hidden
    assert "_temporary/0/task/d.csv" in hidden
    assert others == snapshot
    assert notices_of(config, Names(("a.csv",))) == []


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("part-0.csv", False),
        ("_part-0.csv", True),
        (".part-0.csv", True),
        ("x/_temporary/0/p.csv", True),
        ("_year=2026/p.csv", False),
        ("._year=2026/p.csv", True),
        ("year=2026/p_0.csv", False),
        ("../p.csv", False),  # refused elsewhere, and not passed over
    ],
)
def test_hidden_parts_of_a_path(name: str, hidden: bool) -> None:
    assert naming.is_hidden(name) is hidden


@pytest.mark.parametrize("name", ["UPPER.CSV", "b.csv.bz2", "sub/b.csv.ZIP", "b.CSV.gz"])
def test_what_looks_like_a_table_and_is_not_read_is_refused(
    s3: Any, tmp_path: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    put(s3, {"a.csv": ROWS, name: ROWS})
    for config in (
        dataset_at(write(tmp_path, {"a.csv": ROWS, name: ROWS}), "csv"),
        dataset_at(SOURCE, "csv"),
    ):
        with pytest.raises(DatasetRefused) as refused:
            list_directory(config) if not config.is_remote else describe_remote(s3, config)
        assert plain(refused.value, folder=tmp_path) == snapshot
    hidden = {"a.csv": ROWS, f"_old/{name}": ROWS}
    assert list_directory(dataset_at(write(tmp_path / "x", hidden), "csv")).names.data == ("a.csv",)


def test_nothing_but_hidden_files_says_so(s3: Any, tmp_path: Path) -> None:
    files = {"_temporary/a.csv": ROWS}
    put(s3, files)
    with pytest.raises(DatasetMissing, match=r"no \*\.csv.*1 path .*: _temporary"):
        list_directory(dataset_at(write(tmp_path, files), "csv"))
    with pytest.raises(DatasetMissing, match=r"no \*\.csv.*1 path .*: _temporary"):
        describe_remote(s3, dataset_at(SOURCE, "csv"))


def test_format_files_takes_all_as_before(s3: Any, tmp_path: Path) -> None:
    put(s3, FILES)
    names = sorted(FILES)
    here = dataset_at(write(tmp_path, FILES), "files")
    assert sorted(list_directory(here).names.data) == names
    assert sorted(describe_remote(s3, dataset_at(SOURCE, "files")).names.data) == names


@pytest.mark.parametrize(
    "body",
    [gzip.compress(ROWS * 100, mtime=0)[:-20], b"no gzip at all", b"\x1f\x8b"],
    ids=["cut off", "text", "two bytes"],
)
def test_a_damaged_gz_is_a_finding(s3: Any, tmp_path: Path, body: bytes) -> None:
    files = {"a.csv": ROWS, "b.csv.gz": body}
    put(s3, files)
    here, there = dataset_at(write(tmp_path, files), "csv"), dataset_at(SOURCE, "csv")
    for report in (
        validate_dataset(list_directory(here).paths, here, now=NOW),
        validate_tables(remote_tables(s3, describe_remote(s3, there), there), there, now=NOW),
    ):
        assert not report.success
        assert [failure.message for failure in report.failures if "b.csv.gz" in failure.message]


def test_a_gz_is_judged_by_what_it_holds_in_blocks_too(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.csv.gz": gzip.compress(b"a,b\n" + b"1,x\n" * 5000 + b",y\n")}
    put(s3, files)
    write(tmp_path, files)
    nulls = [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "a"}}]
    found = []
    for max_bytes in (1 << 30, 1):
        monkeypatch.setattr("nodesweep.tasks.dataset.validation.MAX_FRAME_BYTES", max_bytes)
        for source in (str(tmp_path), SOURCE):
            config = dataset_at(source, "csv", expectations=nulls, unique_columns=["b"])
            tables = (
                remote_tables(s3, describe_remote(s3, config), config) if config.is_remote else None
            )
            report = (
                validate_tables(tables, config, now=NOW)
                if tables
                else validate_dataset(list_directory(config).paths, config, now=NOW)
            )
            found.append((report.rows, [failure.message for failure in report.failures]))
    assert found[0][0] == 5001 and found[0][1]
    assert all(one == found[0] for one in found)


def link_outside(config: DatasetConfig) -> DatasetConfig:
    return config.model_copy(update={"follow_links_outside": True})


def test_links_of_a_dataset(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    root = write(tmp_path / "data", {"a.csv": ROWS, "v2/b.csv": ROWS})
    (root / "latest").symlink_to("v2")
    config = dataset_at(root, "csv")
    assert list_directory(config).names.data == ("a.csv", "latest/b.csv", "v2/b.csv")
    write(tmp_path / "annex", {"c.csv": ROWS, "notes.txt": b"x"})
    (root / "notes.txt").symlink_to("../annex/notes.txt")  # would not be sent
    assert len(list_directory(config).paths) == 3
    (root / "more").symlink_to("../annex")
    with pytest.raises(DatasetRefused) as refused:
        scan_directory(config)
    assert plain(refused.value, folder=tmp_path) == snapshot
    assert "more/c.csv" in list_directory(link_outside(config)).names.data
    (root / "more").unlink()
    (root / "gone").symlink_to("../annex/objects/gone.csv")
    for broken in (config, link_outside(config)):
        with pytest.raises(DatasetRefused) as refused:
            scan_directory(broken)
        assert plain(refused.value, folder=tmp_path) == snapshot


def test_a_channel_that_is_a_link_is_one(tmp_path: Path) -> None:
    root = write(tmp_path / "data", {"train/1.jpg": b"1"})
    (root / "val").symlink_to("train")
    config = dataset_at(root, "files", channel=None)
    names = [file.name for file in scan_directory(config).files]
    assert channel_folders(config, names) == ("train", "val")


def test_sorting_out_is_of_tables_only() -> None:
    config = dataset_at("data", "files")
    assert classify_names(config, ["_a", ".b", "c.CSV"]) == Names(("_a", ".b", "c.CSV"))
