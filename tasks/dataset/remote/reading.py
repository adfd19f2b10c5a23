"""An S3 object as a file, read in place by byte ranges.

    with pq.ParquetFile(RemoteFile(s3, "bucket", item)) as table: ...

Nothing is written to disk. Every call requires the listed ETag, so a reader never gets bytes from
two versions of an object.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.aws.platform import patient
from nodesweep.aws.storage import is_missing
from nodesweep.errors import EXPIRED_CODES, DatasetRefused, error_code, is_transient
from nodesweep.infra.image_spark.nodesweep_judge.range_file import RangeFile
from nodesweep.tasks.dataset.remote.objects import RemoteObject

READ_AHEAD_BYTES = 8 * 1024 * 1024


class RemoteFile(RangeFile):
    """A read-only, seekable file.

    Raises DatasetRefused, which names the key, if the object was replaced or deleted since it was
    listed, or is not readable.
    """

    def __init__(self, s3: Any, bucket: str, item: RemoteObject) -> None:
        super().__init__(item.size_bytes)
        self._s3, self._bucket, self._item = s3, bucket, item

    def get(self, begin: int, count: int) -> bytes:
        """Return `count` bytes of the listed object, starting at `begin`."""
        try:
            return read_remote_range(
                self._s3, self._bucket, self._item, f"bytes={begin}-{begin + count - 1}"
            )
        except ClientError as error:
            if is_transient(error) or error_code(error) in EXPIRED_CODES:
                raise
            raise self._refusal(error) from error

    def _refusal(self, error: ClientError) -> DatasetRefused:
        kind = "forbidden"
        if error_code(error) in ("412", "PreconditionFailed"):
            kind = "replaced"
        elif is_missing(self._s3, self._bucket, self._item.key, error):
            kind = "deleted"
        return refusal(kind, self._bucket, self._item.key, str(error))


def refusal(kind: str, bucket: str, key: str, detail: str) -> DatasetRefused:
    """Return the error for an object that is `replaced`, `deleted` or `forbidden`."""
    where = f"dataset.source: s3://{bucket}/{key}"
    if kind == "replaced":
        return DatasetRefused(f"{where} was replaced while the dataset was being read; run again")
    if kind == "deleted":
        return DatasetRefused(
            f"{where} was deleted while the dataset was being read; restore it, or run again"
            " without it"
        )
    return DatasetRefused(
        f"{where} can't be read ({detail}); grant these credentials s3:GetObject on it, and"
        " kms:Decrypt on its KMS key if it is encrypted"
    )


@patient
def read_remote_range(s3: Any, bucket: str, item: RemoteObject, range_of_bytes: str) -> bytes:
    """Return a byte range of the object.

    Retry if the connection is lost while the body is read, which boto3's retries don't cover.
    """
    answer = s3.get_object(Bucket=bucket, Key=item.key, Range=range_of_bytes, IfMatch=item.etag)
    return bytes(answer["Body"].read())


def opener(s3: Any, bucket: str, item: RemoteObject, in_order: bool) -> Callable[[], Any]:
    """Return a function that opens the object again on each call.

    If `in_order` is True, the file reads ahead, for readers that read it sequentially in small
    pieces.
    """

    def open_object() -> Any:
        file = RemoteFile(s3, bucket, item)
        return io.BufferedReader(file, READ_AHEAD_BYTES) if in_order else file

    return open_object
