"""A dataset that is used in place in S3: its objects, its digest and changes to it.

    before = describe_remote(s3, config)
    find_changes(before, describe_remote(s3, config))  # ["s3://bucket/raw/a.parquet was deleted"]

The digest covers keys, sizes, ETags and, if they exist and can be listed, version IDs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.errors import DatasetMissing, DatasetRefused, error_code
from nodesweep.launch.registry import Backend
from nodesweep.scaling import names
from nodesweep.tasks.dataset.naming import Names, classify_names, notices_of
from nodesweep.tasks.dataset.remote.listing import (
    list_in_parallel,
    pages_of_objects,
    pages_of_versions,
)

CHANGES_SHOWN = 20
_NOT_ALLOWED = frozenset({"403", "AccessDenied", "AllAccessDisabled"})
_NO_VERSIONS = _NOT_ALLOWED | {"MethodNotAllowed", "NotImplemented"}
_REPLACEMENT = "\ufffd"
"""The character that replaces bytes that are not UTF-8."""


@dataclass(frozen=True)
class RemoteSource:
    """The platform and the config section of a dataset that is used in place in S3."""

    backend: Backend
    section: DatasetConfig

    @property
    def s3(self) -> Any:
        """The platform's S3 client."""
        return self.backend.client("s3")


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """One object of a listing; `version` is None if unknown."""

    key: str
    size_bytes: int
    etag: str
    version: str | None
    modified: datetime


class RemoteDataset:
    """A dataset's objects, sorted by key, below a prefix that ends in '/' or is empty.

    It is not a dataclass, because Prefect searches dataclasses for futures, and a dataset can have
    100,000 objects.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        objects: Sequence[RemoteObject],
        hidden: Sequence[str] = (),
        others: Sequence[str] = (),
    ) -> None:
        self.bucket, self.prefix, self.objects = bucket, prefix, tuple(objects)
        self.names = Names(tuple(map(self.name_of, objects)), tuple(hidden), tuple(others))

    @property
    def uri(self) -> str:
        """The s3:// URI of the prefix."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def size_bytes(self) -> int:
        """The total size of the objects in bytes."""
        return sum(it.size_bytes for it in self.objects)

    def name_of(self, item: RemoteObject) -> str:
        """Return the key relative to the prefix, which is the file's path in a channel."""
        return item.key.removeprefix(self.prefix)

    @functools.cached_property
    def digest(self) -> str:
        """The digest of keys, sizes, ETags and versions, if any."""
        return names.canonical_digest(
            [
                [it.key, it.size_bytes, it.etag, *([it.version] if it.version else [])]
                for it in self.objects
            ]
        )

    def is_named(self, digest: str | None) -> bool:
        """Return True if this is the digest, computed with or without versions."""
        without = names.canonical_digest([[it.key, it.size_bytes, it.etag] for it in self.objects])
        return digest in (self.digest, without)


def describe_remote(s3: Any, config: DatasetConfig) -> RemoteDataset:
    """Return the dataset's objects below its s3:// source.

    Raises:
        DatasetMissing: there are none.
        DatasetRefused: listing is forbidden, a key is not a valid path, or an object looks like
            a table but would be ignored.
    """
    bucket, prefix = split_uri(config.source)
    try:
        items = _list(s3, bucket, prefix)
    except ClientError as error:
        code = error_code(error)
        if code == "NoSuchBucket":
            raise DatasetMissing(
                f"dataset.source: there is no bucket {bucket}; correct the name, or create it"
            ) from error
        if code in _NOT_ALLOWED:
            raise DatasetRefused(
                f"dataset.source: s3://{bucket}/{prefix} can't be listed ({error}); grant"
                " s3:ListBucket on the bucket to these credentials"
            ) from error
        raise
    by_name = {
        str(item["Key"]).removeprefix(prefix): item
        for item in items
        if not item["Key"].endswith("/")
    }
    below = classify_names(config, by_name)
    objects = [
        RemoteObject(
            item["Key"], item["Size"], item["ETag"], item.get("VersionId"), item["LastModified"]
        )
        for item in (by_name[name] for name in below.data)
    ]
    if not objects:
        only = f"{config.pattern} " if config.is_table else ""
        raise DatasetMissing(
            f"dataset.source: no {only}object under {config.source}"
            + "".join(f"; {notice}" for notice in notices_of(config, below))
        )
    found = RemoteDataset(bucket, prefix, objects, below.hidden, below.others)
    for item in objects:
        _check_key(found, item.key, config.is_table)
    return found


def _list(s3: Any, bucket: str, prefix: str) -> list[Mapping[str, Any]]:
    """List the objects, with versions if the bucket is versioned and they can be listed."""
    try:
        if s3.get_bucket_versioning(Bucket=bucket).get("Status"):
            return list_in_parallel(pages_of_versions(s3, bucket, prefix))
    except ClientError as error:
        if error_code(error) not in _NO_VERSIONS:
            raise
    return list_in_parallel(pages_of_objects(s3, bucket, prefix))


def _check_key(dataset: RemoteDataset, key: str, is_table: bool) -> None:
    """Refuse a key that cannot be a file's path in a SageMaker channel.

    The path of a file that is not a table may have an empty part.
    """
    where = f"dataset.source: s3://{dataset.bucket}/{key}"
    if _REPLACEMENT in key:
        raise DatasetRefused(f"{where}: the key is not valid UTF-8; rename or remove the object")
    parts = set(key.removeprefix(dataset.prefix).split("/"))
    if not parts.isdisjoint({"", ".", ".."} if is_table else {".", ".."}):
        raise DatasetRefused(
            f"{where} is not a valid file path below {dataset.uri}: a part of it is empty, '.' or"
            " '..'; rename or remove the object"
        )


def split_uri(uri: str) -> tuple[str, str]:
    """Return (bucket, prefix ending in '/') of an s3:// URI."""
    # urlparse() would cut the key at its first ? or #.
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, prefix if not prefix or prefix.endswith("/") else prefix + "/"


def find_changes(before: RemoteDataset, now: RemoteDataset) -> list[str]:
    """Return a description of each change between two listings."""
    old = {it.key: (it.size_bytes, it.etag, it.version) for it in before.objects}
    new = {it.key: (it.size_bytes, it.etag, it.version) for it in now.objects}
    words = [f"s3://{now.bucket}/{key} was deleted" for key in old.keys() - new.keys()]
    words += [f"s3://{now.bucket}/{key} is new" for key in new.keys() - old.keys()]
    words += [
        f"s3://{now.bucket}/{key} was replaced"
        for key in old.keys() & new.keys()
        if old[key] != new[key]
    ]
    return sorted(words)


def modified_since(dataset: RemoteDataset, moment: datetime) -> list[str]:
    """Return a description of each object written in that second or later.

    S3's times are whole seconds.
    """
    return [
        f"s3://{dataset.bucket}/{it.key} was written on {it.modified:%Y-%m-%d %H:%M:%S} UTC"
        for it in dataset.objects
        if it.modified >= moment
    ]


def format_changes(changes: Sequence[str]) -> str:
    """Return a line for each of the first changes, and the number of further ones."""
    lines = [f"\n  - {change}" for change in changes[:CHANGES_SHOWN]]
    if further := len(changes) - len(lines):
        lines.append(f"\n  - and {further} more")
    return "".join(lines)


def describe_remote_dataset(source: RemoteSource) -> RemoteDataset:
    """List the objects of a dataset that is already in S3."""
    return describe_remote(source.s3, source.section)
