"""Upload one file, and verify that its object holds the bytes that were hashed.

A file of up to SINGLE_PUT_BYTES is sent as one PutObject with its SHA-256, which S3 verifies. The
file is hashed again only if its size, times or inode have changed. A larger file is sent in parts,
and its object is verified afterwards. Files above IN_MEMORY_BYTES are streamed, so at most
SMALL_CONNECTIONS times that, 24 MiB, is held in memory.
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

from nodesweep.aws.storage import is_missing
from nodesweep.errors import UploadFailed, error_code
from nodesweep.tasks.dataset.hashing import Mark

logger = logging.getLogger("nodesweep.dataset")
PART_BYTES = 16 * 1024 * 1024
"""Part size of files with at most MAX_PARTS parts; existing objects were uploaded with it."""
MAX_PARTS = 10_000
MAX_PART_BYTES = 5 * 1024**3
MAX_OBJECT_BYTES = MAX_PARTS * MAX_PART_BYTES
"""Maximum object size: 48.8 TiB ("Amazon S3 multipart upload limits", Amazon S3 User Guide)."""
SINGLE_PUT_BYTES = 64 * 1024 * 1024
"""Size of the largest file that is sent in one call."""
IN_MEMORY_BYTES = 1024 * 1024
"""Size of the largest file that is held in memory while it is sent.

For a stream, boto3 first sends Expect: 100-continue, which takes as long as sending a small file
(nodesweep/aws/clients.py).
"""
CONNECTIONS = 8
"""Parallel calls that stream: several files, or the parts of one large file."""
SMALL_CONNECTIONS = 24
"""Parallel calls for files of at most IN_MEMORY_BYTES, which are dominated by S3's latency.

That latency is roughly 100 to 200 ms ("Best practices design patterns: optimizing Amazon S3
performance", Amazon S3 User Guide). The number comes from benchmarks/s3/upload.py; the client keeps
32 connections.
"""
_BLOCK_BYTES = 1024 * 1024
_OTHER_BYTES = frozenset({"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})


@dataclass(frozen=True)
class DataFile:
    """A local file: its name below the dataset, size and SHA-256 (hex).

    `mark` is its status when it was hashed (tasks/dataset/hashing.py), if known.
    """

    name: str
    size_bytes: int
    sha256: str
    path: Path
    mark: Mark | None = field(default=None, compare=False)

    @property
    def is_large(self) -> bool:
        """True if the file is sent in parts."""
        return self.size_bytes > SINGLE_PUT_BYTES

    @property
    def is_small(self) -> bool:
        """True if the file is held in memory while it is sent."""
        return self.size_bytes <= IN_MEMORY_BYTES


def part_bytes(size_bytes: int) -> int:
    """Return the part size of a large file, for the upload and for S3's checksum over the parts.

    The size is doubled until there are few enough parts, as s3transfer does. If s3transfer adjusted
    it instead (ChunksizeAdjuster, s3transfer/utils.py), the checksum here would not match.
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
    """Send the file unless its object is already intact; return the number of bytes sent.

    Args:
        s3: the S3 client.
        bucket: the bucket.
        key: the object's key.
        file: the local file.
        may_be_there: True if the prefix's listing has the key with this size; otherwise it is sent
            without a check.
        passed: called with the number of bytes sent since the last call.

    Raises:
        UploadFailed: the file has changed since it was hashed, or S3 received different bytes.
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
                raise _mismatch_error(bucket, key, file) from error
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
        raise _mismatch_error(bucket, key, file)


def _mismatch_error(bucket: str, key: str, file: DataFile) -> UploadFailed:
    return UploadFailed(
        f"s3://{bucket}/{key} differs from {file.path} after the upload; run again to upload it"
        " again"
    )


def is_intact(s3: Any, bucket: str, key: str, file: DataFile) -> bool:
    """Return True if the object's size, nodesweep's SHA-256 and S3's checksum match the file.

    If S3 has no checksum, the object is read back.
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
    # AWS appends -<parts> to a multipart object's checksum; moto does not.
    digest = service_checksum.split("-")[0]
    is_whole = digest == _base64(bytes.fromhex(file.sha256))
    return is_whole or digest == _composite_checksum(file.path, part_bytes(file.size_bytes))


def _composite_checksum(path: Path, bytes_of_a_part: int) -> str:
    """Return S3's checksum of a multipart object: base64 of the SHA-256 over its parts' digests."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while (part := _part_digest(stream, bytes_of_a_part)) is not None:
            digest.update(part)
    return _base64(digest.digest())


def _part_digest(stream: BinaryIO, bytes_of_a_part: int) -> bytes | None:
    """Return the SHA-256 of the next part, read in blocks; None at the end."""
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
