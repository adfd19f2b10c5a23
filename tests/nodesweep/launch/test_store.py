"""The contract of every store: each test runs against a bucket and against a folder."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from nodesweep.aws.store import BucketStore
from nodesweep.launch.store import FolderStore, Store


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return FolderStore(tmp_path)
    aws: Callable[[str], Any] = request.getfixturevalue("aws")
    s3 = aws("s3")
    s3.create_bucket(Bucket="bucket")
    s3.meta.events.register("after-call.s3.HeadObject", _date)
    return BucketStore(s3, "bucket")


def _date(parsed: dict[str, Any], **_: Any) -> None:
    """Add the header that S3 sends and a mocked one does not."""
    headers = parsed["ResponseMetadata"]["HTTPHeaders"]
    headers["date"] = format_datetime(datetime.now(UTC), usegmt=True)


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


def test_the_age_of_an_object_is_that_of_its_last_writing(store: Store) -> None:
    assert store.age_seconds("owner") is None
    store.put("owner", b"x")
    age = store.age_seconds("owner")
    assert age is not None and -1.5 < age < 300  # S3 has whole seconds
    assert store.keys("") == ["owner"]


@pytest.mark.parametrize("key", ["", "/etc/passwd", "a//b", "../a", "a/../../b", "a/.b", "a/"])
def test_no_key_leads_out_of_the_folder(tmp_path: Path, key: str) -> None:
    for use in (FolderStore(tmp_path).get, FolderStore(tmp_path).delete):
        with pytest.raises(ValueError, match="is not a key"):
            use(key)


def test_an_unfinished_write_is_no_object(tmp_path: Path) -> None:
    (tmp_path / ".owner.1234").write_bytes(b"half")
    assert FolderStore(tmp_path).keys("") == []
