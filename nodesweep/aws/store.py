"""A bucket as a store."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from nodesweep.aws.storage import get_bytes, is_missing, list_folders, list_objects, put_bytes
from nodesweep.errors import error_code


@dataclass(frozen=True)
class BucketStore:
    """A store in an S3 bucket; a nodesweep.launch.store.Store.

    Attributes:
        s3: the S3 client.
        bucket: the bucket.
    """

    s3: Any
    bucket: str

    def put(self, key: str, body: bytes, only_if_absent: bool = False) -> bool:
        """Write an object; see Store."""
        try:
            put_bytes(self.s3, self.bucket, key, body, only_if_absent)
        except self.s3.exceptions.ClientError as error:
            if error_code(error) != "PreconditionFailed":
                raise
            return False
        return True

    def get(self, key: str) -> bytes | None:
        """Return the object's body; see Store."""
        return get_bytes(self.s3, self.bucket, key)

    def age_seconds(self, key: str) -> float | None:
        """Return the object's age by the clock of S3; see Store."""
        try:
            found = self.s3.head_object(Bucket=self.bucket, Key=key)
        except self.s3.exceptions.ClientError as error:
            if is_missing(self.s3, self.bucket, key, error):
                return None
            raise
        now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        return float((now - found["LastModified"]).total_seconds())

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix; see Store."""
        return sorted(item["Key"] for item in list_objects(self.s3, self.bucket, prefix))

    def folders(self, prefix: str) -> list[str]:
        """Return the distinct parts after the prefix; see Store."""
        return sorted(list_folders(self.s3, self.bucket, prefix))

    def delete(self, key: str) -> None:
        """Delete the object; see Store."""
        self.s3.delete_object(Bucket=self.bucket, Key=key)
