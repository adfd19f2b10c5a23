"""The contract of every store: each test runs against a bucket and against a folder."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from nodesweep.errors import (
    BackendUnavailable,
    BackendUnusable,
    PreflightRefused,
    best_effort,
    is_transient,
)
from nodesweep.launch.store import FolderStore, Store


def test_an_object_comes_back_until_it_is_replaced_or_deleted(store: Store) -> None:
    assert store.get("sweeps/a/run.json") is None
    for body in (b"one", b""):
        assert store.put("sweeps/a/run.json", body)
        assert store.get("sweeps/a/run.json") == body
    for _ in range(2):
        store.delete("sweeps/a/run.json")
        assert store.get("sweeps/a/run.json") is None


def test_an_object_is_created_once(store: Store) -> None:
    assert store.put("a/owner", b"first", only_if_absent=True)
    assert not store.put("a/owner", b"second", only_if_absent=True)
    assert store.get("a/owner") == b"first"
    store.delete("a/owner")
    assert store.put("a/owner", b"second", only_if_absent=True)


def test_one_of_many_creates_an_object(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.put("k", b"%d" % n, only_if_absent=True), range(32)))
    assert won.count(True) == 1 and store.get("k") == b"%d" % won.index(True)


def test_keys_are_found_by_their_beginning(store: Store) -> None:
    keys = ["history/v1/a.parquet", "history/v1/b.parquet", "history/v10/c.parquet", "sweeps/s/x"]
    for key in reversed(keys):
        store.put(key, b"x")
    assert store.keys("history/v1/") == keys[:2]
    assert store.keys("history/v1") == keys[:3]
    assert store.keys("history/v1/a") == keys[:1]
    assert store.keys("") == keys
    assert store.keys("elsewhere/") == store.folders("elsewhere/") == []
    assert store.folders("history/") == ["v1", "v10"]
    assert store.folders("history/v1/") == []
    assert store.folders("") == ["history", "sweeps"]


def test_an_object_comes_with_the_times_of_its_writing_and_reading(store: Store) -> None:
    assert store.read("owner") is store.written_at("owner") is None
    store.put("owner", b"x")
    store.put("owner.json", b"y")
    found = store.read("owner")
    assert found is not None and found.body == b"x"
    age = found.read_at - found.written_at
    assert timedelta(seconds=-1.5) < age < timedelta(seconds=300)  # S3 has whole seconds
    assert store.written_at("owner") == found.written_at
    assert store.keys("") == ["owner", "owner.json"]


def test_a_store_is_made_ready_and_names_its_objects(store: Store) -> None:
    for _ in range(2):
        store.prepare()
    assert store.keys("") == []
    key = f"{store.prefix}/sweeps/a/report/report.html"
    assert store.uri(key).endswith(f"/{key}") and "://" in store.uri(key)
    assert key.rpartition("/")[2] in store.link(key)


def test_a_folder_that_cannot_be_used_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    lost = FolderStore(tmp_path / "file" / "store")
    with pytest.raises(PreflightRefused, match=f"{tmp_path}/file/store can't be used"):
        lost.prepare()
    with pytest.raises(BackendUnusable, match=f"{tmp_path}/file") as failed:
        lost.put("k", b"x")
    assert not is_transient(failed.value)
    with best_effort("it is not needed"):
        lost.put("k", b"x")


def test_a_folder_of_another_user_is_refused_before_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first user of a team's folder makes one for private files in it."""
    touch = Path.touch

    def refuse(path: Path) -> None:
        if path.parent.name == "nodesweep":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        touch(path)

    monkeypatch.setattr(Path, "touch", refuse)  # root may write to any folder
    with pytest.raises(PreflightRefused, match=f"{tmp_path}/nodesweep.*set another folder"):
        FolderStore(tmp_path).prepare()


def test_an_error_of_the_file_server_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(BackendUnavailable, match="Stale file handle") as failed:
        FolderStore(tmp_path).get("k")
    assert is_transient(failed.value)


@pytest.mark.parametrize("key", ["", "/etc/passwd", "a//b", "../a", "a/../../b", "a/.b", "a/"])
def test_no_key_leads_out_of_the_folder(tmp_path: Path, key: str) -> None:
    for use in (FolderStore(tmp_path).get, FolderStore(tmp_path).delete):
        with pytest.raises(ValueError, match="is not a key"):
            use(key)


def test_an_unfinished_write_is_no_object(tmp_path: Path) -> None:
    (tmp_path / ".owner.1234").write_bytes(b"half")
    assert FolderStore(tmp_path).keys("") == []
