"""The cache of a dataset's hashes never gives another hash than reading the files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.events import PROGRESS, read_event
from nodesweep.tasks.dataset import hashing
from nodesweep.tasks.dataset.files import scan_directory
from nodesweep.tasks.dataset.hashing import cache_file, delete_hash_cache, hash_files
from tests.plain import plain


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data" / "sub").mkdir(parents=True)
    for name in ("a.bin", "sub/b.bin"):
        (tmp_path / "data" / name).write_bytes(name.encode())
    source = str(tmp_path / "data")
    return DatasetConfig.model_validate({"name": "d", "source": source, "format": "files"})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that were read, sorted."""
    names: list[str] = []
    hash_one = hashing._hash

    def noted(path: Path, *more: Any) -> Any:
        names.append(path.name)
        names.sort()
        return hash_one(path, *more)

    monkeypatch.setattr(hashing, "_hash", noted)
    return names


def later() -> int:
    """Return a time long after every change."""
    return time.time_ns() + 10**10


def hashes(config: DatasetConfig, now: int | None = None) -> list[str]:
    """Return the hashes of all files at that time, each of which must match its file."""
    paths = sorted(path for path in Path(config.source).rglob("*") if path.is_file())
    found = hash_files(config, paths, now_ns=lambda: later() if now is None else now)
    assert [one.size_bytes for one in found] == [path.stat().st_size for path in paths]
    read_anew = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert [one.sha256 for one in found] == read_anew
    return read_anew


def test_a_second_run_reads_no_file(config: DatasetConfig, read: list[str]) -> None:
    first = hashes(config)
    assert read == ["a.bin", "b.bin"]
    read.clear()
    assert hashes(config) == first and read == []
    cached = scan_directory(config)
    assert read == []
    delete_hash_cache(config)
    assert scan_directory(config) == cached and read == ["a.bin", "b.bin"]
    delete_hash_cache(config)  # nothing is there


def test_a_file_that_changed_is_read_though_its_size_and_time_are_put_back(
    config: DatasetConfig, read: list[str]
) -> None:
    hashes(config)
    read.clear()
    path = Path(config.source) / "a.bin"
    before = path.stat()
    path.write_bytes(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    hashes(config)
    assert read == ["a.bin"]


def test_a_file_in_the_place_of_another_is_read(config: DatasetConfig, read: list[str]) -> None:
    hashes(config)
    read.clear()
    path = Path(config.source) / "a.bin"
    twin = path.with_name("twin")
    twin.write_bytes(b"A.BIN")
    os.utime(twin, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    twin.replace(path)
    hashes(config)
    assert read == ["a.bin"]


def test_a_file_that_has_just_changed_is_not_remembered(
    config: DatasetConfig, read: list[str]
) -> None:
    changed = max(path.stat().st_ctime_ns for path in Path(config.source).rglob("*.bin"))
    hashes(config, now=changed + 10**9)
    read.clear()
    hashes(config)
    assert read == ["a.bin", "b.bin"]


def test_a_file_that_changes_while_it_is_hashed_is_not_remembered(
    config: DatasetConfig, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = iter(range(100))
    real = hashing.Mark.of

    def moving(status: os.stat_result) -> hashing.Mark:
        mark = real(status)
        return hashing.Mark(mark.size_bytes, next(marks), 0, mark.inode, mark.device)

    monkeypatch.setattr(hashing.Mark, "of", moving)
    hashes(config)
    assert not cache_file(config.source, config.pattern).exists()


def test_only_the_present_files_are_kept(config: DatasetConfig) -> None:
    hashes(config)
    (Path(config.source) / "a.bin").unlink()
    hashes(config)
    assert list(json.loads(cache_file(config.source, config.pattern).read_text())["files"]) == [
        "sub/b.bin"
    ]


SHA256 = "0" * 64


@pytest.mark.parametrize(
    "body",
    [
        "", '{"schema_version": 1, "fil', "[]", "null", "{}", "\xff",
        '{"schema_version": 2, "files": {}}', '{"schema_version": 1, "files": []}',
        '{"schema_version": 1, "files": {"a.bin": null}}',
        '{"schema_version": 1, "files": {"a.bin": [5, 1, 1, 1, "x"]}}',
        f'{{"schema_version": 1, "files": {{"a.bin": [5, 1, 1, "{SHA256}"]}}}}',
        f'{{"schema_version": 1, "files": {{"a.bin": [5, 1.0, 1, 1, 1, "{SHA256}"]}}}}',
    ],
)  # fmt: skip
def test_a_torn_or_foreign_cache_is_said_and_ignored(
    config: DatasetConfig, read: list[str], caplog: pytest.LogCaptureFixture, body: str
) -> None:
    cache_file(config.source, config.pattern).parent.mkdir(parents=True)
    cache_file(config.source, config.pattern).write_bytes(body.encode("latin-1"))
    hashes(config)
    assert read == ["a.bin", "b.bin"]
    assert str(cache_file(config.source, config.pattern)) in caplog.text
    read.clear()
    hashes(config)
    assert read == []


def test_a_cache_that_cannot_be_read_or_written_costs_a_warning(
    config: DatasetConfig, caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    cache_file(config.source, config.pattern).mkdir(parents=True)
    hashes(config)
    messages = [
        plain(each.getMessage(), cache=cache_file(config.source, config.pattern))
        for each in caplog.records
    ]
    assert messages == snapshot


def test_hashing_tells_its_bytes(
    config: DatasetConfig, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG, PROGRESS)
    hashes(config)
    last = read_event(caplog.records[-1])
    assert (last.facts["done"], last.facts["of"], last.stage) == (14, 14, "dataset")
    assert last.text.startswith(f"{last.facts['what']}: ")
    caplog.clear()
    hashes(config)
    assert not caplog.records
