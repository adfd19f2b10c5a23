"""Keeps moto's S3 on disk: buckets and the current version of every object, with metadata,
tags and checksums.

The front tells which bucket or key a request may have changed; it is read back and written down
before the request is answered: through the S3 API, a new object by the short way that the server
gives (infra/local/api/moto_objects.py), so nothing here depends on how moto stores objects.
On disk, under its folder:

    buckets/<bucket>.json         name and region
    objects/<bucket>/<id>.json    key, body file, metadata, tags, parts; id = SHA-256 of the key
    bodies/<bucket>/<id>-<token>  the body; the record is replaced only once it is complete

Not kept: older versions, and a bucket's policies, tags, lifecycle and versioning state.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from botocore.exceptions import ClientError

from infra.local.api.in_process import ClientFactory
from infra.local.api.moto_backend import set_last_modified
from infra.local.api.protocol import ACCOUNT_ID, DEFAULT_REGION, credential_scope
from infra.local.state.files import RecordStore, read_json, write_atomically, write_json
from infra.local.state.kept import Ledger, NotKept

_MUTATING = {"PUT", "POST", "DELETE"}
_KEPT_HEADERS = (
    "ContentType",
    "ContentEncoding",
    "ContentDisposition",
    "ContentLanguage",
    "CacheControl",
)
_CHECKSUMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
_MISSING = {"404", "NoSuchKey", "NoSuchBucket", "NotFound", "MethodNotAllowed", "405"}
"""405 is what S3 answers for the head of a delete marker."""

logger = logging.getLogger(__name__)


class S3Snapshot:
    """Follows S3's changes and restores them.
    `observe` is for the front, the rest for the server.
    """

    def __init__(
        self,
        folder: Path,
        clients: ClientFactory,
        ledger: Ledger,
        account_id: str = ACCOUNT_ID,
        stored: Callable[[str, str], Mapping[str, Any] | None] = lambda bucket, key: None,
    ) -> None:
        """`stored` describes the object of a bucket and a key as GetObject would, with its body as
        bytes; None where GetObject has to be asked.
        """
        self._folder = folder
        self._account_id = account_id
        self._clients = clients
        self._ledger = ledger
        self._stored = stored
        # what is read is written before the next one reads: no old state comes last
        self._lock = threading.RLock()
        self._left: set[tuple[str, str]] = set()
        """(bucket, key or "" for the whole bucket) of what could not be written."""
        self._objects = RecordStore(folder / "objects")

    def close(self) -> None:
        """Write what could not be written before."""
        with self._lock:
            for bucket, key in sorted(self._left):
                with contextlib.suppress(NotKept):
                    self._keep(bucket, key)

    def observe(self, environ: Mapping[str, Any]) -> None:
        """Write down what a successful request may have changed: a key, or (bucket calls,
        multi-deletes) a bucket.

        Raises NotKept where that is not possible.
        """
        if environ["REQUEST_METHOD"] not in _MUTATING or not _is_s3(environ):
            return
        path = unquote(environ.get("RAW_URI", "").partition("?")[0]).lstrip("/")
        bucket, _, key = path.partition("/")
        if not bucket or _only_stages_data(environ):
            return
        with self._lock:
            self._keep(bucket, key)
            with contextlib.suppress(NotKept):
                for unwritten in sorted(self._left):  # there is room again
                    self._keep(*unwritten)

    def restore(self) -> None:
        """Put every bucket and object back. Call before the server takes requests."""
        for bucket in RecordStore(self._folder / "buckets").load_all():
            name, region = bucket["name"], bucket["region"]
            where = {"CreateBucketConfiguration": {"LocationConstraint": region}}
            self._clients("s3", region).create_bucket(
                Bucket=name, **({} if region == DEFAULT_REGION else where)
            )
        known = {bucket["Name"] for bucket in self._s3().list_buckets()["Buckets"]}
        in_use: set[Path] = set()
        for record in self._objects.load_all():
            body = self._folder / record["body"]
            in_use.add(body)
            if record["bucket"] not in known:
                logger.warning(
                    "s3://%s/%s has lost its bucket's record and is left out",
                    record["bucket"],
                    record["key"],
                )
                continue
            self._put_object(record, body)
        self._remove_orphans(in_use)

    # -- writing -----------------------------------------------------------------------------------

    def _s3(self) -> Any:
        return self._clients("s3", DEFAULT_REGION)

    def _keep(self, bucket: str, key: str) -> None:
        """One object that S3 refuses to give is tried again at the next change,
        and fails no call.
        """
        uri = f"s3://{bucket}/{key}"
        self._left.add((bucket, key))
        try:
            with self._ledger.keeping(uri):
                if key:
                    self._write_object(bucket, key)
                else:
                    for _, changed in sorted(self._write_bucket(bucket)):
                        self._keep(bucket, changed)
                    self._drop_record_of_gone_bucket(bucket)
        except ClientError as error:
            self._ledger.note(uri, f"it can't be read: {error}")
            return
        self._left.discard((bucket, key))

    def _write_bucket(self, bucket: str) -> set[tuple[str, str]]:
        """Write the bucket's own record. Returns the keys whose record on disk differs
        from what S3 lists.
        """
        record_path = self._folder / "buckets" / f"{bucket}.json"
        records = RecordStore(self._folder / "objects" / bucket).load_all()
        on_disk = {(record["key"], record["etag"], record["last_modified"]) for record in records}
        listed: set[tuple[str, str, str]] = set()
        try:
            region = (
                self._s3().get_bucket_location(Bucket=bucket).get("LocationConstraint")
                or DEFAULT_REGION
            )
        except ClientError as error:
            if not _is_missing(error):
                raise
        else:
            write_json(record_path, {"name": bucket, "region": region})
            for page in self._s3().get_paginator("list_objects_v2").paginate(Bucket=bucket):
                for item in page.get("Contents", []):
                    listed.add((item["Key"], item["ETag"], item["LastModified"].isoformat()))
        return {(bucket, key) for key, _, _ in on_disk ^ listed}

    def _drop_record_of_gone_bucket(self, bucket: str) -> None:
        """After its objects' records: a kill in between must leave no object without its bucket."""
        if bucket not in {found["Name"] for found in self._s3().list_buckets()["Buckets"]}:
            (self._folder / "buckets" / f"{bucket}.json").unlink(missing_ok=True)

    def _write_object(self, bucket: str, key: str) -> None:
        record_path = self._folder / "objects" / bucket / f"{_identifier(key)}.json"
        before = read_json(record_path)
        record = self._read_object(bucket, key, before)
        if record is None:
            record_path.unlink(missing_ok=True)
        else:
            write_json(record_path, record)
        if before and (record is None or record["body"] != before["body"]):
            (self._folder / before["body"]).unlink(missing_ok=True)

    def _read_object(
        self, bucket: str, key: str, before: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """The object's record, its body written to disk unless it is the one already there;
        None if it is gone.
        """
        try:
            wanted = {"Bucket": bucket, "Key": key, "ChecksumMode": "ENABLED"}
            # A new object's body is wanted in any case, and a sweep makes thousands: no call, or
            # one rather than three.
            answer = (
                self._s3().head_object(**wanted)
                if before
                else self._stored(bucket, key) or self._s3().get_object(**wanted)
            )
            record = self._describe_object(bucket, key, answer)
            if before and _same_body(before, record):
                return {**record, "body": before["body"]}
            body = Path("bodies") / bucket / f"{_identifier(key)}-{uuid.uuid4().hex[:8]}"
            content = (
                answer["Body"]
                if "Body" in answer
                else self._s3().get_object(Bucket=bucket, Key=key)["Body"]
            )
            write_atomically(self._folder / body, content)
        except ClientError as error:
            if _is_missing(error):
                return None
            if error.response["Error"]["Code"] != "InvalidObjectState":
                raise
            # One archived object (GLACIER) that nobody can read must not keep the others
            # from being written down.
            logger.warning(
                "s3://%s/%s can't be read and will not survive a restart: %s", bucket, key, error
            )
            return None
        return {**record, "body": str(body)}

    def _describe_object(self, bucket: str, key: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The record of an object as HeadObject or GetObject answers it;
        only the latter tells that it has no tags.
        """
        has_tags = "Body" not in answer or answer.get("TagCount")
        return {
            "bucket": bucket,
            "key": key,
            "etag": answer["ETag"],
            "last_modified": answer["LastModified"].isoformat(),
            "headers": {name: answer[name] for name in _KEPT_HEADERS if answer.get(name)},
            "metadata": answer.get("Metadata", {}),
            "storage_class": answer.get("StorageClass"),
            "checksum_algorithm": next(
                (name for name in _CHECKSUMS if answer.get(f"Checksum{name}")), None
            ),
            "tags": (
                self._s3().get_object_tagging(Bucket=bucket, Key=key)["TagSet"] if has_tags else []
            ),
            "part_sizes_bytes": self._part_sizes(bucket, key, answer["ETag"]),
        }

    def _part_sizes(self, bucket: str, key: str, etag: str) -> list[int]:
        """The sizes of a multipart object's parts; its ETag ends in their number."""
        _, dash, count = etag.strip('"').partition("-")
        if not dash:
            return []
        heads = (
            self._s3().head_object(Bucket=bucket, Key=key, PartNumber=n + 1)
            for n in range(int(count))
        )
        return [head["ContentLength"] for head in heads]

    # -- restoring ---------------------------------------------------------------------------------

    def _put_object(self, record: dict[str, Any], body: Path) -> None:
        where = {"Bucket": record["bucket"], "Key": record["key"]}
        what = {**record["headers"], "Metadata": record["metadata"]}
        if record["storage_class"]:
            what["StorageClass"] = record["storage_class"]
        try:
            if record["part_sizes_bytes"]:
                self._put_in_parts(record, body, where, what)
            else:
                if record["checksum_algorithm"]:
                    what["ChecksumAlgorithm"] = record["checksum_algorithm"]
                self._s3().put_object(**where, **what, Body=body.read_bytes())
        except FileNotFoundError:
            logger.error(
                "Object s3://%s/%s has lost its body on disk: it is gone",
                where["Bucket"],
                where["Key"],
            )
            return
        if record["tags"]:
            self._s3().put_object_tagging(**where, Tagging={"TagSet": record["tags"]})
        moment = datetime.fromisoformat(record["last_modified"])
        set_last_modified(self._account_id, where["Bucket"], where["Key"], moment)

    def _put_in_parts(
        self, record: dict[str, Any], body: Path, where: dict[str, str], what: dict[str, Any]
    ) -> None:
        """The same parts as before: the ETag of a multipart object is made
        of its parts' digests.
        """
        s3 = self._s3()
        algorithm = (
            {"ChecksumAlgorithm": record["checksum_algorithm"]}
            if record["checksum_algorithm"]
            else {}
        )
        upload = {
            **where,
            "UploadId": s3.create_multipart_upload(**where, **what, **algorithm)["UploadId"],
        }
        parts = []
        with body.open("rb") as file:
            for number, size in enumerate(record["part_sizes_bytes"], start=1):
                answer = s3.upload_part(
                    **upload, **algorithm, PartNumber=number, Body=file.read(size)
                )
                checksum = {name: answer[name] for name in answer if name.startswith("Checksum")}
                parts.append({"PartNumber": number, "ETag": answer["ETag"], **checksum})
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

    def _remove_orphans(self, in_use: set[Path]) -> None:
        """Bodies a killed server had written but not yet recorded,
        or had replaced but not yet removed.
        """
        for path in (self._folder / "bodies").rglob("*"):
            if path.is_file() and path not in in_use:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


def _is_s3(environ: Mapping[str, Any]) -> bool:
    scope = credential_scope(environ)
    return scope.service == "s3" if scope else "HTTP_X_AMZ_TARGET" not in environ


def _only_stages_data(environ: Mapping[str, Any]) -> bool:
    """A multipart upload changes nothing anyone can read before CompleteMultipartUpload."""
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    return "uploads" in query or "partNumber" in query


def _identifier(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _same_body(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """A copy onto itself or new tags leave the body as it is on disk."""
    return bool(
        before["etag"] == now["etag"] and before["part_sizes_bytes"] == now["part_sizes_bytes"]
    )


def _is_missing(error: ClientError) -> bool:
    return error.response.get("Error", {}).get("Code") in _MISSING
