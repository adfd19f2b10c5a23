"""Paged bucket listings that do not visit all objects for every page.

moto's ListObjectsV2 sorts the whole bucket for each page of 1,000 keys, and ListObjectVersions
copies it, so listing 100,000 objects takes minutes. Here, buckets keep their keys sorted, and a
page only visits the keys it contains. As on AWS but unlike in moto, a page begins with the first
key after KeyMarker.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from moto.s3.exceptions import InvalidArgumentError
from moto.s3.models import FakeKey
from moto.s3.utils import _VersionedKeyStore

_LAST = "\U0010ffff"
_NAMES_AT_ONCE = 1000
_lock = threading.Lock()
"""Protects the sorted keys of all stores, since the server is multithreaded."""


class SortedKeyStore(_VersionedKeyStore):
    """moto's store of the objects in a bucket, extended to keep the keys sorted."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[str] = []

    def __setitem__(self, key: str, value: Any) -> None:
        self._note(key)
        super().__setitem__(key, value)

    def setlist(self, key: str, list_: Any) -> None:
        self._note(key)
        super().setlist(key, list_)

    def pop(self, key: str) -> None:
        super().pop(key)
        with _lock:
            index = bisect_left(self._sorted, key)
            if self._sorted[index : index + 1] == [key]:
                del self._sorted[index]

    def _note(self, key: str) -> None:
        with _lock:
            if key not in self:
                index = bisect_left(self._sorted, key)
                if self._sorted[index : index + 1] != [key]:
                    insort(self._sorted, key)

    def names(self, after: str, is_included: bool = False) -> Iterator[str]:
        """Yield the keys after `after`, and first `after` itself if it exists and is included."""
        seek = bisect_left if is_included else bisect_right
        while True:
            with _lock:
                index = seek(self._sorted, after)
                some = self._sorted[index : index + _NAMES_AT_ONCE]
            yield from some
            if len(some) < _NAMES_AT_ONCE:
                return
            after, seek = some[-1], bisect_right


def _entries(
    store: SortedKeyStore, prefix: str, delimiter: str, after: str
) -> Iterator[FakeKey | str]:
    """Yield the objects and common prefixes after `after` in key order."""
    behind, is_included = max(after, prefix), after < prefix
    goes_on = True
    while goes_on:
        goes_on = False
        for name in store.names(behind, is_included):
            if not name.startswith(prefix):
                return
            key = store.get(name)
            if not isinstance(key, FakeKey):  # a delete marker
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                common = prefix + rest.partition(delimiter)[0] + delimiter
                if common > after:
                    yield common
                behind, is_included, goes_on = common + _LAST, False, True
                break
            yield key


def listing_by_page(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def list_objects_v2(
        self: Any,
        bucket: Any,
        prefix: str | None,
        delimiter: str | None,
        continuation_token: str | None,
        start_after: str | None,
        max_keys: int,
    ) -> Any:
        token = continuation_token and self._pagination_tokens.get(continuation_token)
        if continuation_token and token is None:
            raise InvalidArgumentError(
                "The continuation token provided is incorrect",
                "continuation-token",
                continuation_token,
            )
        if not isinstance(bucket.keys, SortedKeyStore):
            return theirs(
                self,
                bucket,
                prefix,
                delimiter,
                continuation_token,
                start_after=start_after,
                max_keys=max_keys,
            )
        entries = _entries(bucket.keys, prefix or "", delimiter or "", token or start_after or "")
        return self._truncate_result(list(islice(entries, max_keys + 1)), max_keys)

    return list_objects_v2


def _versions(
    store: SortedKeyStore, prefix: str, key_marker: str, version_id_marker: str | None
) -> Iterator[Any]:
    """Yield versions and delete markers after the given markers, newest first within a key."""
    is_included = key_marker < prefix or bool(version_id_marker)
    for name in store.names(max(key_marker, prefix), is_included):
        if not name.startswith(prefix):
            return
        versions = list(reversed(store.getlist(name, [])))
        for index, version in enumerate(versions):
            version.is_latest = index == 0
        ids = [version.version_id for version in versions]
        if name == key_marker and version_id_marker in ids:
            versions = versions[ids.index(version_id_marker) + 1 :]
        yield from versions


def versions_by_page(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def list_object_versions(
        self: Any,
        bucket_name: str,
        delimiter: str | None = None,
        key_marker: str | None = None,
        max_keys: int | None = 1000,
        prefix: str = "",
        version_id_marker: str | None = None,
    ) -> Any:
        keys = self.get_bucket(bucket_name).keys
        if not isinstance(keys, SortedKeyStore) or delimiter or not max_keys:
            return theirs(
                self,
                bucket_name,
                delimiter,
                key_marker,
                max_keys,
                prefix=prefix,
                version_id_marker=version_id_marker,
            )
        found = list(
            islice(_versions(keys, prefix, key_marker or "", version_id_marker), max_keys + 1)
        )
        page, is_truncated = found[:max_keys], len(found) > max_keys
        return (
            [version for version in page if isinstance(version, FakeKey)],
            [],
            [version for version in page if not isinstance(version, FakeKey)],
            page[-1].name if is_truncated else None,
            page[-1].version_id if is_truncated else None,
        )

    return list_object_versions
