"""Keeps moto's S3 across restarts: buckets and the current versions of objects.

Before the front end responds to a request, a bucket or object that the request can have changed is
read back through the S3 API (new objects through api/moto_objects.py) and written. This module
therefore does not depend on how moto stores objects. The snapshot's folder contains:

  buckets/<bucket>.json         name and region
  objects/<bucket>/<id>.json    key, body file, metadata, tags, parts; id = SHA-256 of the key
  bodies/<bucket>/<id>-<token>  the body, written completely before the record that names it

If the record of a bucket is lost, the bucket is rebuilt from the records of its objects. Objects
that cannot be restored are reported, and their files are left on disk until the object changes.
Older versions of objects are not saved, and neither are policies, tags, lifecycle and versioning of
buckets.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_emulator.api.checksums import ALGORITHMS, checksum
from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.moto_backend import set_last_modified
from sagemaker_emulator.api.moto_objects import part_sizes_bytes
from sagemaker_emulator.api.protocol import ACCOUNT_ID, DEFAULT_REGION, credential_scope
from sagemaker_emulator.state.files import (
    DamagedFile,
    RecordStore,
    read_json,
    remove,
    write_atomically,
    write_json,
)
from sagemaker_emulator.state.unsaved import Ledger, NotSaved

_CHUNK_BYTES = 1 << 20
_MUTATING = {"PUT", "POST", "DELETE"}
_KEPT_HEADERS = (
    "ContentType",
    "ContentEncoding",
    "ContentDisposition",
    "ContentLanguage",
    "CacheControl",
)
_MISSING = {"404", "NoSuchKey", "NoSuchBucket", "NotFound", "MethodNotAllowed", "405"}
"""Error codes of missing objects and buckets. S3 responds with 405 to HEAD of a delete marker."""

logger = logging.getLogger(__name__)


class S3Snapshot:
    """Saves the state of S3 after every change, and restores it.

    The front end calls `observe`, and the server calls the other methods.
    """

    def __init__(
        self,
        folder: Path,
        clients: ClientFactory,
        ledger: Ledger,
        account_id: str = ACCOUNT_ID,
        stored: Callable[[str, str], Mapping[str, Any] | None] = lambda bucket, key: None,
    ) -> None:
        """Set up the snapshot.

        Args:
            folder: The folder of the snapshot.
            clients: Returns the client of a service in a region.
            ledger: Lists changes that cannot be saved, and damaged files.
            account_id: The account of the buckets.
            stored: Returns the response of GetObject for a bucket and key, with the body as bytes,
             or None if GetObject must be called.
        """
        self._folder = folder
        self._account_id = account_id
        self._clients = clients
        self._ledger = ledger
        self._stored = stored
        # State is written before the next is read, so old state never replaces newer state.
        self._lock = threading.RLock()
        self._left: set[tuple[str, str]] = set()
        """(bucket, key) of changes that could not be written, with key "" for the bucket."""
        self._objects = RecordStore(folder / "objects", ledger)
        self._regions: dict[str, str] = {}
        self._left_out: set[tuple[str, str]] = set()
        """(bucket, key) of records on disk that could not be restored."""

    def close(self) -> None:
        """Write the changes that could not be written earlier."""
        with self._lock:
            for bucket, key in sorted(self._left):
                with contextlib.suppress(NotSaved):
                    self._keep(bucket, key)

    def observe(self, environ: Mapping[str, Any]) -> None:
        """Save the state that a successful request can have changed.

        This is an object or, for bucket operations and multi-object deletes, a bucket.

        Raises:
            NotSaved: If the state cannot be written.
        """
        if environ["REQUEST_METHOD"] not in _MUTATING or not _is_s3(environ):
            return
        path = unquote(environ.get("RAW_URI", "").partition("?")[0]).lstrip("/")
        bucket, _, key = path.partition("/")
        if not bucket or _only_stages_data(environ):
            return
        with self._lock:
            self._keep(bucket, key)
            with contextlib.suppress(NotSaved):
                for unwritten in sorted(self._left):  # the disk has space again
                    self._keep(*unwritten)

    def restore(self) -> None:
        """Restore all buckets and objects. Call this before the server accepts requests."""
        records = list(self._objects.load_all(_object_record))
        self._restore_buckets(records)
        for record in records:
            if problem := self._put_object(record, self._folder / record["body"]):
                self._left_out.add((record["bucket"], record["key"]))
                self._ledger.note_damaged(f"s3://{record['bucket']}/{record['key']} {problem}")
        self._remove_orphans(records)

    # -- writing -----------------------------------------------------------------------------------

    def _s3(self) -> Any:
        return self._clients("s3", DEFAULT_REGION)

    def _keep(self, bucket: str, key: str) -> None:
        """Save an object or, if `key` is "", a bucket and its changed objects.

        If S3 refuses to return an object, the call does not fail, and the object is retried at the
        next change.
        """
        uri = f"s3://{bucket}/{key}"
        self._left.add((bucket, key))
        try:
            with self._ledger.tracking(uri):
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
        """Write the record of a bucket, if the bucket exists.

        Returns:
            The (bucket, key) of all objects whose records on disk differ from S3's listing.
        """
        record_path = self._folder / "buckets" / f"{bucket}.json"
        store = RecordStore(self._folder / "objects" / bucket, self._ledger)
        on_disk = {
            (record["key"], record["etag"], record["last_modified"])
            for record in store.load_all(_object_record)
            if (bucket, record["key"]) not in self._left_out
        }
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
            self._regions[bucket] = region
            write_json(record_path, {"name": bucket, "region": region})
            for page in self._s3().get_paginator("list_objects_v2").paginate(Bucket=bucket):
                for item in page.get("Contents", []):
                    listed.add((item["Key"], item["ETag"], item["LastModified"].isoformat()))
        return {(bucket, key) for key, _, _ in on_disk ^ listed}

    def _drop_record_of_gone_bucket(self, bucket: str) -> None:
        """Remove the record of a deleted bucket.

        The records of its objects are removed first, so that a killed server leaves no objects
        without a bucket.
        """
        if bucket not in {found["Name"] for found in self._s3().list_buckets()["Buckets"]}:
            remove(self._folder / "buckets" / f"{bucket}.json")

    def _write_object(self, bucket: str, key: str) -> None:
        record_path = self._folder / "objects" / bucket / f"{_identifier(key)}.json"
        try:
            before = read_json(record_path, _object_record, "it is replaced")
        except DamagedFile:
            before = None
        record = self._read_object(bucket, key, before)
        if record is None:
            remove(record_path)
        else:
            write_json(record_path, record)
        self._left_out.discard((bucket, key))
        if before and (record is None or record["body"] != before["body"]):
            (self._folder / before["body"]).unlink(missing_ok=True)

    def _read_object(
        self, bucket: str, key: str, before: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Return the record of an object, and write its body unless it is already on disk.

        Return None if the object is gone or archived.
        """
        try:
            wanted = {"Bucket": bucket, "Key": key, "ChecksumMode": "ENABLED"}
            # A sweep creates thousands of objects. The body of a new object is needed anyway, so
            # this makes no call or one call (GetObject) instead of three.
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
            # An archived object (GLACIER), which cannot be read, must not keep other objects from
            # being saved.
            logger.warning(
                "s3://%s/%s can't be read and will not survive a restart: %s", bucket, key, error
            )
            return None
        return {**record, "body": str(body)}

    def _describe_object(self, bucket: str, key: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of an object from a HeadObject or GetObject response.

        A HeadObject response does not show whether the object has tags.
        """
        has_tags = "Body" not in answer or answer.get("TagCount")
        return {
            "bucket": bucket,
            "region": self._regions.get(bucket),
            "key": key,
            "etag": answer["ETag"],
            "last_modified": answer["LastModified"].isoformat(),
            "headers": {name: answer[name] for name in _KEPT_HEADERS if answer.get(name)},
            "metadata": answer.get("Metadata", {}),
            "storage_class": answer.get("StorageClass"),
            "checksum_algorithm": next(
                (name for name in ALGORITHMS if answer.get(f"Checksum{name}")), None
            ),
            "tags": (
                self._s3().get_object_tagging(Bucket=bucket, Key=key)["TagSet"] if has_tags else []
            ),
            "part_sizes_bytes": self._part_sizes(bucket, key, answer["ETag"]),
        }

    def _part_sizes(self, bucket: str, key: str, etag: str) -> list[int]:
        """Return the part sizes of a multipart object, whose ETag ends with their number."""
        return part_sizes_bytes(self._account_id, bucket, key) if "-" in etag else []

    # -- restoring ---------------------------------------------------------------------------------

    def _restore_buckets(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Create all buckets, even if their records are lost.

        The name of a lost bucket is in the file name of the damaged record or in the records of the
        bucket's objects.
        """
        folder = self._folder / "buckets"
        known = {path.stem for path in folder.glob("*.json")}
        store = RecordStore(folder, self._ledger)
        remedy = "the bucket is rebuilt from its name and its objects"
        self._regions = dict(store.load_all(_bucket_record, remedy))
        of_objects = {
            record["bucket"]: record.get("region") or DEFAULT_REGION
            for record in records
            if (self._folder / record["body"]).exists()
        }
        for name in sorted((known | set(of_objects)) - set(self._regions)):
            self._regions[name] = of_objects.get(name, DEFAULT_REGION)
            path = folder / f"{name}.json"
            if name not in known:
                self._ledger.note_damaged(f"{path} is missing: {remedy}")
            with contextlib.suppress(NotSaved), self._ledger.tracking(f"s3://{name}"):
                write_json(path, {"name": name, "region": self._regions[name]})
        for name, region in self._regions.items():
            where = {"CreateBucketConfiguration": {"LocationConstraint": region}}
            try:
                self._clients("s3", region).create_bucket(
                    Bucket=name, **({} if region == DEFAULT_REGION else where)
                )
            except (ClientError, BotoCoreError) as error:
                path = folder / f"{name}.json"
                self._ledger.note_damaged(
                    f"the bucket in {path} can't be created ({error}): repair or remove the file"
                )

    def _put_object(self, record: Mapping[str, Any], body: Path) -> str | None:
        """Restore an object, or return the problem and its remedy."""
        where = {"Bucket": record["bucket"], "Key": record["key"]}
        what = {**record["headers"], "Metadata": record["metadata"]}
        if record["storage_class"]:
            what["StorageClass"] = record["storage_class"]
        remedy = f"the object is left out; restore {body} from a copy, or put or delete the object"
        try:
            if not _has_body(record, body):
                return f"has a damaged body: {remedy}"
            if record["part_sizes_bytes"]:
                self._put_in_parts(record, body, where, what)
            else:
                content = body.read_bytes()
                what |= _checksum_of(record, content)
                self._s3().put_object(**where, **what, Body=content)
            if record["tags"]:
                self._s3().put_object_tagging(**where, Tagging={"TagSet": record["tags"]})
        except (OSError, ClientError, BotoCoreError) as error:
            return f"can't be restored ({error}): {remedy}"
        moment = datetime.fromisoformat(record["last_modified"])
        set_last_modified(self._account_id, where["Bucket"], where["Key"], moment)
        return None

    def _put_in_parts(
        self, record: Mapping[str, Any], body: Path, where: dict[str, str], what: dict[str, Any]
    ) -> None:
        """Upload an object in the same parts as before, since its ETag depends on them."""
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
                content = file.read(size)
                answer = s3.upload_part(
                    **upload, **_checksum_of(record, content), PartNumber=number, Body=content
                )
                checksum = {name: answer[name] for name in answer if name.startswith("Checksum")}
                parts.append({"PartNumber": number, "ETag": answer["ETag"], **checksum})
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

    def _remove_orphans(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Remove bodies that a killed server had replaced or had not recorded yet.

        Bodies that can belong to a lost or damaged record are left on disk and reported.
        """
        in_use = {self._folder / record["body"] for record in records}
        of_known_objects = {path.with_name(path.name.rpartition("-")[0]) for path in in_use}
        unknown: list[Path] = []
        for path in sorted((self._folder / "bodies").rglob("*")):
            if path in in_use or not path.is_file():
                continue
            is_unfinished = path.name.startswith(".")
            if is_unfinished or path.with_name(path.name.rpartition("-")[0]) in of_known_objects:
                path.unlink(missing_ok=True)
            else:
                unknown.append(path)
        if unknown:
            self._ledger.note_damaged(
                f"{len(unknown)} bodies of S3 objects have no readable record, for example"
                f" {unknown[0]}: they are left on disk; remove them if no object is missing"
            )


def _bucket_record(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and region in the record of a bucket.

    Raises:
        KeyError: If the name or region is missing.
        TypeError: If the name or region is not a string.
    """
    name, region = record["name"], record["region"]
    if not (isinstance(name, str) and isinstance(region, str)):
        raise TypeError("name and region must be strings")
    return name, region


_RECORD_TYPES: dict[str, type | UnionType] = {
    "bucket": str,
    "key": str,
    "body": str,
    "etag": str,
    "last_modified": str,
    "headers": dict,
    "metadata": dict,
    "storage_class": str | None,
    "checksum_algorithm": str | None,
    "tags": list,
    "part_sizes_bytes": list,
}


def _object_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the record of an object if the record is valid.

    Raises:
        KeyError: If a field is missing.
        TypeError: If a field has the wrong type.
        ValueError: If a value is invalid.
    """
    for name, kind in _RECORD_TYPES.items():
        if not isinstance(record[name], kind):
            raise TypeError(f"{name} is a {type(record[name]).__name__}")
    datetime.fromisoformat(record["last_modified"])
    if Path(record["body"]).parent != Path("bodies") / record["bucket"]:
        raise ValueError("body is not in the bucket's folder")
    return dict(record)


def _has_body(record: Mapping[str, Any], body: Path) -> bool:
    """Return True if the content of a file matches the ETag in the record.

    The ETag is the MD5 of the body or, for a multipart object, the MD5 of the MD5s of its parts.

    Raises:
        OSError: If the file cannot be read.
    """
    etag, sizes_bytes = record["etag"].strip('"'), record["part_sizes_bytes"]
    with body.open("rb") as file:
        if not sizes_bytes:
            return _md5_of(file, None).hex() == etag
        whole = hashlib.md5(usedforsecurity=False)
        for size_bytes in sizes_bytes:
            whole.update(_md5_of(file, size_bytes))
        return f"{whole.hexdigest()}-{len(sizes_bytes)}" == etag and not file.read(1)


def _checksum_of(record: Mapping[str, Any], content: bytes) -> dict[str, str]:
    """Return the checksum arguments of an upload, since botocore lacks some algorithms."""
    name = record["checksum_algorithm"]
    return {"ChecksumAlgorithm": name, f"Checksum{name}": checksum(name, content)} if name else {}


def _md5_of(file: BinaryIO, size_bytes: int | None) -> bytes:
    """Return the MD5 of the next `size_bytes` bytes of a file, or of the rest if None."""
    digest, left = hashlib.md5(usedforsecurity=False), size_bytes
    while chunk := file.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES)):
        digest.update(chunk)
        left = None if left is None else left - len(chunk)
    return digest.digest()


def _is_s3(environ: Mapping[str, Any]) -> bool:
    scope = credential_scope(environ)
    return scope.service == "s3" if scope else "HTTP_X_AMZ_TARGET" not in environ


def _only_stages_data(environ: Mapping[str, Any]) -> bool:
    """Return True for calls that precede CompleteMultipartUpload, which do not change objects."""
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    return "uploads" in query or "partNumber" in query


def _identifier(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _same_body(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return True if the body is unchanged, for example if only the tags have changed."""
    return bool(
        before["etag"] == now["etag"] and before["part_sizes_bytes"] == now["part_sizes_bytes"]
    )


def _is_missing(error: ClientError) -> bool:
    return error.response.get("Error", {}).get("Code") in _MISSING
