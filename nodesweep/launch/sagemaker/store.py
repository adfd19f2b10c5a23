"""Store a sweep's small objects in an S3 bucket."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from nodesweep.aws.platform import aws_client
from nodesweep.aws.storage import (
    browser_url,
    get_bytes,
    is_missing,
    list_folders,
    list_objects,
    put_bytes,
)
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import PreflightRefused, error_code
from nodesweep.launch.store import StoredObject
from nodesweep.polling import Clock, intervals

_TRIES = 10
_EXISTS_CODES = frozenset({"PreconditionFailed", "412"})
_CONFLICT_CODES = frozenset({"ConditionalRequestConflict", "409"})
"""S3's codes for concurrent conditional writes; possibly none of them has succeeded."""


@dataclass(frozen=True)
class BucketStore:
    """A store in the platform's S3 bucket; a nodesweep.launch.store.Store.

    Attributes:
        platform: the config's platform.
        is_quick: time out after seconds rather than minutes.
        client: the S3 client, or None for the platform's client.
        clock: for the pauses between tries of a conditional write.
    """

    platform: PlatformConfig
    is_quick: bool = False
    client: Any = None
    clock: Clock = field(default_factory=Clock)

    @property
    def prefix(self) -> str:
        """The first part of all keys; see Store."""
        return self.platform.prefix

    def quick(self) -> BucketStore:
        """Return the store with calls that time out after seconds; see Store."""
        return replace(self, is_quick=True)

    def prepare(self) -> None:
        """Verify that the bucket is accessible, or create it if platform.create_missing is set.

        The bucket is checked by listing keys below the prefix, because the pipeline role is not
        allowed to list others.

        Raises:
            PreflightRefused: the bucket is inaccessible, or missing without create_missing.
        """
        s3, platform = self._s3, self.platform
        try:
            s3.list_objects_v2(Bucket=platform.bucket, Prefix=f"{platform.prefix}/", MaxKeys=1)
            return
        except s3.exceptions.ClientError as error:
            code = error_code(error)
            if code not in ("404", "NoSuchBucket"):
                raise PreflightRefused(
                    f"platform.bucket: {platform.bucket} can't be used: {error}"
                ) from error
        if not platform.create_missing:
            raise PreflightRefused(
                f"platform.bucket: {platform.bucket} does not exist; create it, or set"
                " platform.create_missing: true"
            )
        # us-east-1 is the only region that must not be named as a constraint.
        configuration = (
            {}
            if platform.region == "us-east-1"
            else {"CreateBucketConfiguration": {"LocationConstraint": platform.region}}
        )
        try:
            s3.create_bucket(Bucket=platform.bucket, **configuration)
        except s3.exceptions.BucketAlreadyOwnedByYou:
            return  # another run has just created it

    def put(self, key: str, body: bytes, only_if_absent: bool = False) -> bool:
        """Write an object; see Store."""
        s3, pauses = self._s3, intervals(0.2, 2.0)
        for is_last in [False] * (_TRIES - 1) + [True]:
            try:
                put_bytes(s3, self.platform.bucket, key, body, only_if_absent)
                return True
            except s3.exceptions.ClientError as error:
                code = error_code(error) if only_if_absent else None
                if code in _EXISTS_CODES:
                    return False
                if code not in _CONFLICT_CODES or is_last:
                    raise
            self.clock.sleep(next(pauses))
        return False

    def get(self, key: str) -> bytes | None:
        """Return the object's body; see Store."""
        return get_bytes(self._s3, self.platform.bucket, key)

    def read(self, key: str) -> StoredObject | None:
        """Return the object with its times, both by the clock of S3; see Store."""
        s3, bucket = self._s3, self.platform.bucket
        try:
            found = s3.get_object(Bucket=bucket, Key=key)
        except s3.exceptions.ClientError as error:
            if is_missing(s3, bucket, key, error):
                return None
            raise
        read_at = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        return StoredObject(found["Body"].read(), found["LastModified"], read_at)

    def written_at(self, key: str) -> datetime | None:
        """Return the object's modification time; see Store."""
        listed = list_objects(self._s3, self.platform.bucket, key)
        return next((item["LastModified"] for item in listed if item["Key"] == key), None)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix; see Store."""
        return sorted(item["Key"] for item in list_objects(self._s3, self.platform.bucket, prefix))

    def folders(self, prefix: str) -> list[str]:
        """Return the distinct parts after the prefix; see Store."""
        return sorted(list_folders(self._s3, self.platform.bucket, prefix))

    def delete(self, key: str) -> None:
        """Delete the object; see Store."""
        self._s3.delete_object(Bucket=self.platform.bucket, Key=key)

    def uri(self, key: str) -> str:
        """Return the object's s3:// URI."""
        return f"s3://{self.platform.bucket}/{key}"

    def link(self, key: str) -> str:
        """Return the URL that shows the object in a browser; see browser_url()."""
        return browser_url(self.platform, key)

    @property
    def _s3(self) -> Any:
        if self.client is not None:
            return self.client
        # aws_client() caches by the arguments as written: quick=False would make a second client.
        return aws_client("s3", self.platform, **({"quick": True} if self.is_quick else {}))
