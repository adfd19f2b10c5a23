"""Describes objects as GetObject does, directly from moto's memory.

The snapshot needs this after every PutObject, and a call through the platform's API would take as
long as the PutObject.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any

from moto.s3.exceptions import S3ClientError
from moto.s3.models import ARCHIVE_STORAGE_CLASSES, FakeKey, s3_backends

_METADATA = "x-amz-meta-"
_HEADERS = {
    "content-type": "ContentType",
    "content-encoding": "ContentEncoding",
    "content-disposition": "ContentDisposition",
    "content-language": "ContentLanguage",
    "cache-control": "CacheControl",
}


def stored_object(account_id: str, bucket: str, key: str) -> dict[str, Any] | None:
    """Return the current version of an object like GetObject, but with the body as bytes.

    Return None if GetObject must be called instead: for missing, multipart and archived objects,
    and for metadata that an HTTP header would change.
    """
    found = _current_version(account_id, bucket, key)
    if found is None or found.storage_class in ARCHIVE_STORAGE_CLASSES:
        return None
    headers = found.response_dict
    if "-" in headers["ETag"] or found.checksum_type or not _is_plain(found.metadata):
        return None
    answer: dict[str, Any] = {
        "ETag": headers["ETag"],
        "LastModified": found.last_modified.replace(microsecond=0, tzinfo=UTC),
        "Metadata": {
            name.removeprefix(_METADATA): value
            for name, value in found.metadata.items()
            if name.startswith(_METADATA)
        },
        "Body": found.value,
    }
    for name, member in _HEADERS.items():
        if value := found.metadata.get(name):
            answer[member] = value
    if storage_class := headers.get("x-amz-storage-class"):
        answer["StorageClass"] = storage_class
    if found.checksum_algorithm:
        answer[f"Checksum{found.checksum_algorithm.upper()}"] = found.checksum_value
    if count := headers.get("x-amz-tagging-count"):
        answer["TagCount"] = int(count)
    return answer


def part_sizes_bytes(account_id: str, bucket: str, key: str) -> list[int]:
    """Return the sizes of a multipart object's parts in order, or [] for other objects.

    S3's API only returns the size of a part with a known number, and numbers can have gaps.
    """
    found = _current_version(account_id, bucket, key)
    if found is None or found.multipart is None:
        return []
    return [found.multipart.parts[number].size for number in found.multipart.partlist]


def _current_version(account_id: str, bucket: str, key: str) -> FakeKey | None:
    backend: Any = s3_backends[account_id]["aws"]
    try:
        found = backend.get_object(bucket, key)
    except S3ClientError:
        return None
    return found if isinstance(found, FakeKey) else None


def _is_plain(metadata: Any) -> bool:
    """Return True if HTTP headers leave all names and values unchanged."""
    return all(
        type(text) is str and text.isascii() and text.isprintable() and text == text.strip()
        for pair in metadata.items()
        for text in pair
    ) and all(name == name.lower() for name in metadata)
