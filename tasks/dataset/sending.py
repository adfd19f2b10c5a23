"""One file into its object: one call where it is small, and never other bytes than were hashed.

A small file is sent with its SHA-256 as the checksum, which S3 compares with what arrives
(PutObject, S3 API reference): no look before or after is needed. The file is hashed again first
only where its size, times and inode do not say that it is what was hashed. A large one goes in
parts and is looked at once it is there.

Memory is bounded whatever the files' size: what goes in one call is streamed from the file above
IN_MEMORY_BYTES, so SMALL_CONNECTIONS times that are held, 24 MiB; a large file goes alone, and
s3transfer streams its parts from the file too.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from botocore.exceptions import ClientError

from nodesweep.tasks.dataset.hashing import Mark
from nodesweep.tasks.errors import UploadFailed, error_code
from nodesweep.tasks.storage import is_missing

logger = logging.getLogger("nodesweep.dataset")
PART_BYTES = 16 * 1024 * 1024
"""Of a file of up to MAX_PARTS of them; objects that are there already have parts of this size."""
MAX_PARTS = 10_000
MAX_PART_BYTES = 5 * 1024**3
MAX_OBJECT_BYTES = MAX_PARTS * MAX_PART_BYTES
"""48.8 TiB ("Amazon S3 multipart upload limits", Amazon S3 User Guide)."""
SINGLE_PUT_BYTES = 64 * 1024 * 1024
"""Up to this size a file is one call."""
IN_MEMORY_BYTES = 1024 * 1024
"""Up to this size a file is read whole and sent at once. Of a stream boto3 asks first whether it is
wanted (Expect: 100-continue), which costs a small file as long as its sending (tasks/clients.py).
"""
CONNECTIONS = 8
"""Calls at once that stream: files side by side, or the parts of one large file."""
SMALL_CONNECTIONS = 24
"""Calls at once for files of at most IN_MEMORY_BYTES, for which S3's answer takes longer than their
sending: roughly 100 to 200 ms ("Best practices design patterns: optimizing Amazon S3 performance",
Amazon S3 User Guide). Measured by benchmarks/s3/upload.py; the client keeps 32 connections.
"""
_BLOCK_BYTES = 1024 * 1024
_OTHER_BYTES = frozenset({"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})


@dataclass(frozen=True)
class DataFile:
    """One file: its name below the dataset, size and SHA-256 (hex); `path` is where it lies on this
    machine, `mark` that of the file with these bytes (tasks/dataset/hashing.py), where one is
    known.
    """

    name: str
    size_bytes: int
    sha256: str
    path: Path
    mark: Mark | None = field(default=None, compare=False)

    @property
    def is_large(self) -> bool:
        """Whether it is sent in parts."""
        return self.size_bytes > SINGLE_PUT_BYTES

    @property
    def is_small(self) -> bool:
        """Whether it is held in memory while it is sent."""
        return self.size_bytes <= IN_MEMORY_BYTES


def part_bytes(size_bytes: int) -> int:
    """Return the size of the parts that a large file is sent in: what the upload takes, and what
    S3's checksum over the parts is computed by.

    Doubled where there would be too many parts, as s3transfer would do by itself: a size that it
    would change (ChunksizeAdjuster, s3transfer/utils.py) makes another checksum.
    """
    size = PART_BYTES
    while size < MAX_PART_BYTES and size * MAX_PARTS < size_bytes:
        size *= 2
    return min(size, MAX_PART_BYTES)


def send_file(
    s3: Any,
    bucket: str,
    key: str,
    file: DataFile,
    may_be_there: bool,
    passed: Callable[[int], None],
) -> int:
    """Bytes sent: 0 where the object already is this file. `passed` is told of bytes that need no
    more sending.

    `may_be_there` says that the prefix's listing has the key with this size; else nothing is looked
    at before. Raises UploadFailed where the file is no longer what was hashed, or S3 got other
    bytes.
    """
    if may_be_there and is_intact(s3, bucket, key, file):
        passed(file.size_bytes)
        return 0
    logger.debug("uploading %s (%d bytes)", file.name, file.size_bytes)
    if file.is_large:
        _send_parts(s3, bucket, key, file, passed)
    else:
        _send_whole(s3, bucket, key, file)
        passed(file.size_bytes)
    return file.size_bytes


def _send_whole(s3: Any, bucket: str, key: str, file: DataFile) -> None:
    with file.path.open("rb") as stream:
        begun = Mark.of(os.fstat(stream.fileno()))
        if begun != file.mark:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                raise _changed(file)
            stream.seek(0)
        try:
            s3.put_object(
                Bucket=bucket,
                Key=key,
                Body=stream.read() if file.is_small else stream,
                Metadata={"sha256": file.sha256},
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=_base64(bytes.fromhex(file.sha256)),
            )
        except ClientError as error:
            if error_code(error) in _OTHER_BYTES:
                raise _arrived_otherwise(bucket, key, file) from error
            raise
        if Mark.of(os.fstat(stream.fileno())) != begun:
            raise _changed(file)


def _changed(file: DataFile) -> UploadFailed:
    return UploadFailed(
        f"{file.path} has changed since it was hashed; run again to send its current content"
    )


def _send_parts(
    s3: Any, bucket: str, key: str, file: DataFile, passed: Callable[[int], None]
) -> None:
    from boto3.s3.transfer import TransferConfig  # slow to import

    extra = {"Metadata": {"sha256": file.sha256}, "ChecksumAlgorithm": "SHA256"}
    transfer = TransferConfig(
        multipart_threshold=PART_BYTES,
        multipart_chunksize=part_bytes(file.size_bytes),
        max_concurrency=CONNECTIONS,
    )
    s3.upload_file(str(file.path), bucket, key, ExtraArgs=extra, Config=transfer, Callback=passed)
    if not is_intact(s3, bucket, key, file):
        raise _arrived_otherwise(bucket, key, file)


def _arrived_otherwise(bucket: str, key: str, file: DataFile) -> UploadFailed:
    return UploadFailed(
        f"s3://{bucket}/{key} differs from {file.path} after the upload; run again to send it again"
    )


def is_intact(s3: Any, bucket: str, key: str, file: DataFile) -> bool:
    """Size, our SHA-256 and the service's checksum agree;
    without a service checksum the object is read back.
    """
    try:
        head = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    except s3.exceptions.ClientError as error:
        if is_missing(s3, bucket, key, error):
            return False
        raise
    if (
        head["ContentLength"] != file.size_bytes
        or head.get("Metadata", {}).get("sha256") != file.sha256
    ):
        return False
    service_checksum = head.get("ChecksumSHA256")
    if service_checksum is None:
        return _object_sha256(s3, bucket, key) == file.sha256
    # AWS ends a multipart object's with -<parts>, moto does not
    digest = service_checksum.split("-")[0]
    is_whole = digest == _base64(bytes.fromhex(file.sha256))
    return is_whole or digest == _composite_checksum(file.path, part_bytes(file.size_bytes))


def _composite_checksum(path: Path, bytes_of_a_part: int) -> str:
    """S3's checksum of a multipart object: base64 of the SHA-256 over its parts' digests."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while (part := _part_digest(stream, bytes_of_a_part)) is not None:
            digest.update(part)
    return _base64(digest.digest())


def _part_digest(stream: BinaryIO, bytes_of_a_part: int) -> bytes | None:
    """SHA-256 of the next part, which may be gigabytes and is never held; None at the end."""
    digest, left = hashlib.sha256(), bytes_of_a_part
    while left and (block := stream.read(min(left, _BLOCK_BYTES))):
        digest.update(block)
        left -= len(block)
    return digest.digest() if left < bytes_of_a_part else None


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _object_sha256(s3: Any, bucket: str, key: str) -> str:
    digest = hashlib.sha256()
    for chunk in s3.get_object(Bucket=bucket, Key=key)["Body"].iter_chunks(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()
