"""A dataset in S3: its identity, changes of its objects, and forbidden keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nodesweep.errors import DatasetMissing, DatasetRefused
from nodesweep.tasks.dataset.remote.objects import (
    CHANGES_SHOWN,
    RemoteDataset,
    RemoteObject,
    describe_remote,
    find_changes,
    format_changes,
    modified_since,
    split_uri,
)
from tests.tasks.dataset.test_files import dataset_at

BUCKET, SOURCE = "bench-bucket", "s3://bench-bucket/raw"
NOW = datetime(2026, 11, 24, tzinfo=UTC)


@pytest.fixture
def s3(aws: Callable[[str], Any]) -> Any:
    client = aws("s3")
    client.create_bucket(Bucket=BUCKET)
    return client


def put(s3: Any, key: str, body: bytes = b"1") -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=body)


def keep_versions(s3: Any) -> None:
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})


def test_objects_of_the_format_below_the_prefix(s3: Any) -> None:
    for key in ("raw/x/a.parquet", "raw/x/readme.md", "raw.parquet", "rawer/b.parquet"):
        put(s3, key)
    found = describe_remote(s3, dataset_at(SOURCE))
    assert [item.key for item in found.objects] == ["raw/x/a.parquet"]
    assert [found.name_of(item) for item in found.objects] == ["x/a.parquet"]
    assert (found.uri, found.size_bytes) == ("s3://bench-bucket/raw/", 1)


def test_format_files_takes_all_but_the_folders_of_the_console(s3: Any) -> None:
    put(s3, "raw/folder/", b"")
    put(s3, "raw/x.npz")
    found = describe_remote(s3, dataset_at(SOURCE, "files"))
    assert [item.key for item in found.objects] == ["raw/x.npz"]


def test_digest_follows_keys_sizes_and_etags(s3: Any) -> None:
    digests = set()
    for key, body in [("raw/a.parquet", b"1"), ("raw/a.parquet", b"2"), ("raw/b.parquet", b"2")]:
        put(s3, key, body)
        digests.add(describe_remote(s3, dataset_at(SOURCE)).digest)
    assert len(digests) == 3
    put(s3, "raw/b.parquet", b"2")
    assert describe_remote(s3, dataset_at(SOURCE)).digest in digests


def test_digest_follows_versions_where_the_bucket_keeps_them(s3: Any) -> None:
    put(s3, "raw/a.parquet")
    unversioned = describe_remote(s3, dataset_at(SOURCE))
    keep_versions(s3)
    put(s3, "raw/a.parquet")
    first = describe_remote(s3, dataset_at(SOURCE))
    put(s3, "raw/a.parquet")
    second = describe_remote(s3, dataset_at(SOURCE))
    assert first.digest != second.digest
    assert find_changes(first, second) == ["s3://bench-bucket/raw/a.parquet was replaced"]
    assert first.is_named(first.digest) and not first.is_named(second.digest)
    assert first.is_named(unversioned.digest)  # of who may not list versions


def refuse(s3: Any, monkeypatch: pytest.MonkeyPatch, *operations: str) -> None:
    def refused(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "Some")

    for operation in operations:
        monkeypatch.setattr(s3, operation, refused)


@pytest.mark.parametrize("operation", ["get_bucket_versioning", "list_object_versions"])
def test_without_the_right_to_versions_etags_name_it(
    s3: Any, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    keep_versions(s3)
    put(s3, "raw/a.parquet")
    refuse(s3, monkeypatch, operation)
    [item] = describe_remote(s3, dataset_at(SOURCE)).objects
    assert item.version is None


def test_without_the_right_to_list_the_permission_is_named(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(s3, monkeypatch, "list_objects_v2")
    with pytest.raises(
        DatasetRefused, match=r"s3://bench-bucket/raw/ can't .* grant s3:ListBucket"
    ):
        describe_remote(s3, dataset_at(SOURCE))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (SOURCE, r"\*\.csv .*\*\.csv\.gz .*s3://bench-bucket/raw"),
        ("s3://no-such-bucket/raw", "no bucket no-such-bucket"),
    ],
)
def test_nothing_there_is_the_configs_mistake(s3: Any, source: str, message: str) -> None:
    put(s3, "raw/a.parquet")
    with pytest.raises(DatasetMissing, match=message):
        describe_remote(s3, dataset_at(source, "csv"))


@pytest.mark.parametrize(
    "name", ["../../escaped.parquet", "sub/../b.parquet", "/absolute.parquet", "sub//b.parquet"]
)
def test_key_that_is_no_path_below_the_source_is_refused(s3: Any, name: str) -> None:
    put(s3, f"raw/{name}")
    with pytest.raises(DatasetRefused, match=r"s3://bench-bucket/raw/.*'\.' or '\.\.'"):
        describe_remote(s3, dataset_at(SOURCE))


def test_key_that_was_not_utf_8_is_refused(s3: Any) -> None:
    put(s3, "raw/caf\ufffd.parquet")
    with pytest.raises(DatasetRefused, match=r"s3://bench-bucket/raw/caf.*UTF-8"):
        describe_remote(s3, dataset_at(SOURCE))


def dataset(**etags: str) -> RemoteDataset:
    objects = [RemoteObject(f"raw/{key}", 1, etag, None, NOW) for key, etag in etags.items()]
    return RemoteDataset(BUCKET, "raw/", objects)


def test_each_change_is_named() -> None:
    assert find_changes(dataset(a="1", b="1", c="1"), dataset(b="2", c="1", d="1")) == [
        "s3://bench-bucket/raw/a was deleted",
        "s3://bench-bucket/raw/b was replaced",
        "s3://bench-bucket/raw/d is new",
    ]


def test_what_was_written_since() -> None:
    found = dataset(a="1")
    assert modified_since(found, NOW + timedelta(seconds=1)) == []
    [written] = modified_since(found, NOW)
    assert written.startswith("s3://bench-bucket/raw/a ") and "2026-11-24 00:00:00 UTC" in written


def test_many_changes_are_counted() -> None:
    assert format_changes(["x"]) == "\n  - x"
    assert format_changes(["x"] * (CHANGES_SHOWN + 2)).endswith("and 2 more")


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/raw", "bucket", "raw/"),
        ("s3://bucket/what?/#1/a;b%20c/", "bucket", "what?/#1/a;b%20c/"),
        ("s3://bucket//raw", "bucket", "/raw/"),
    ],
)
def test_a_prefix_is_everything_behind_the_bucket(uri: str, bucket: str, prefix: str) -> None:
    """A key may contain characters that end the path of other URLs."""
    assert split_uri(uri) == (bucket, prefix)


def test_a_source_whose_prefix_holds_a_question_mark_and_a_hash_is_found(s3: Any) -> None:
    for key in ("raw/other.parquet", "raw?v=1#x/a.parquet"):
        put(s3, key)
    [item] = describe_remote(s3, dataset_at("s3://bench-bucket/raw?v=1#x")).objects
    assert item.key == "raw?v=1#x/a.parquet"
