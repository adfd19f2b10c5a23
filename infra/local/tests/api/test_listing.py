"""Pages of bucket listings match moto's listings, or AWS if moto is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.s3.models import FakeKey, S3Backend

import sagemaker_emulator.api.moto_backend  # noqa: F401  (sets moto's listing up)
from sagemaker_emulator.api.moto_listing import SortedKeyStore

KEYS = st.lists(st.text("ab/é", min_size=1, max_size=6), unique=True, max_size=25)


def by_theirs(keys: list[str], prefix: str, delimiter: str | None, after: str) -> list[str]:
    """Return the keys and common prefixes that moto 5.2 computes from all keys."""
    found = set()
    for key in keys:
        rest = key[len(prefix) :]
        if key.startswith(prefix):
            is_below = bool(delimiter) and str(delimiter) in rest
            found.add(prefix + rest.partition("/")[0] + "/" if is_below else key)
    return sorted(name for name in found if name > after)


def a_bucket(keys: list[str]) -> tuple[S3Backend, Any]:
    """Create a bucket with these keys and a new name, since moto keeps a list of all names."""
    backend = S3Backend("us-east-1", "123456789012")
    bucket = backend.create_bucket(f"listed-{uuid4()}", "us-east-1")
    for key in keys:
        backend.put_object(bucket.name, key, b"")
    return backend, bucket


@given(KEYS, st.sampled_from(["", "a", "a/", "b/a"]), st.sampled_from([None, "/"]), KEYS)
def test_pages_together_are_the_listing_of_everything(
    keys: list[str], prefix: str, delimiter: str | None, others: list[str]
) -> None:
    backend, bucket = a_bucket(keys)
    for key in keys[::3]:
        backend.delete_object(bucket.name, key)
    keys = [key for index, key in enumerate(keys) if index % 3]
    after = others[0] if others else ""
    found: list[str] = []
    token: str | None = None
    while True:
        page, is_truncated, token = backend.list_objects_v2(
            bucket, prefix, delimiter, token, None if token else after, 2
        )
        found += [entry.name if isinstance(entry, FakeKey) else entry for entry in page]
        assert len(page) <= 2
        if not is_truncated:
            break
    assert found == by_theirs(keys, prefix, delimiter, after)


@pytest.fixture
def versioned(platform: SimpleNamespace) -> Any:
    platform.s3.create_bucket(Bucket="versioned")
    platform.s3.put_bucket_versioning(
        Bucket="versioned", VersioningConfiguration={"Status": "Enabled"}
    )
    return platform.s3


def test_versions_are_listed_newest_first_from_behind_the_markers(versioned: Any) -> None:
    ids = {
        key: [
            versioned.put_object(Bucket="versioned", Key=key, Body=b"")["VersionId"] for _ in "12"
        ]
        for key in ("a", "b", "c")
    }
    versioned.delete_object(Bucket="versioned", Key="b")
    found, markers = [], []
    page = {"NextKeyMarker": "", "NextVersionIdMarker": ""}
    while "NextKeyMarker" in page:
        page = versioned.list_object_versions(
            Bucket="versioned",
            MaxKeys=2,
            KeyMarker=page["NextKeyMarker"],
            VersionIdMarker=page["NextVersionIdMarker"],
        )
        found += [(it["Key"], it["VersionId"], it["IsLatest"]) for it in page.get("Versions", ())]
        markers += [it["Key"] for it in page.get("DeleteMarkers", ()) if it["IsLatest"]]
    assert found == [
        (key, ids[key][place], place == 1 and key != "b") for key in "abc" for place in (1, 0)
    ]
    assert markers == ["b"]
    behind = versioned.list_object_versions(Bucket="versioned", KeyMarker="aa")["Versions"]
    assert [it["Key"] for it in behind] == ["b", "b", "c", "c"]
    listed = versioned.list_objects_v2(Bucket="versioned")["Contents"]
    assert [it["Key"] for it in listed] == ["a", "c"]


def test_a_page_looks_at_its_own_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    get = SortedKeyStore.get
    monkeypatch.setattr(
        SortedKeyStore, "get", lambda store, key: (looked_at.append(key), get(store, key))[1]
    )
    backend, bucket = a_bucket([f"{number:04}" for number in range(3000)])
    looked_at.clear()
    backend.list_objects_v2(bucket, None, None, None, "1000", 5)
    assert len(looked_at) == 6
