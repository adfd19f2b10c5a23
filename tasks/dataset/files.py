"""Find, hash and upload the files of a local dataset to a content-addressed prefix.

A prefix is complete if its manifest exists and every object in the manifest has the expected size.
The manifest is written last, so an interrupted upload is resumed file by file. Objects that exist
are checked against the file's SHA-256 (tasks/dataset/sending.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodesweep.aws.storage import get_bytes, list_objects
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.job import CHANNEL_NAME, MAX_EXTRA_CHANNELS
from nodesweep.errors import DatasetMissing, DatasetRefused, UploadFailed
from nodesweep.events import Meter
from nodesweep.launch.registry import Backend
from nodesweep.scaling import names
from nodesweep.tasks.dataset.hashing import hash_files
from nodesweep.tasks.dataset.naming import Names, classify_names, is_hidden, notices_of
from nodesweep.tasks.dataset.sending import (
    CONNECTIONS,
    MAX_OBJECT_BYTES,
    SMALL_CONNECTIONS,
    DataFile,
    send_file,
)
from nodesweep.tasks.folder import walk

MAX_KEY_BYTES = 1024
"""Maximum length of a key in UTF-8.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html
"""
MAX_CHANNELS = MAX_EXTRA_CHANNELS + 1


@dataclass(frozen=True)
class Dataset:
    """A local dataset's files, and the digest over all of them."""

    files: tuple[DataFile, ...]
    digest: str

    @property
    def size_bytes(self) -> int:
        """The total size of the files in bytes."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class UploadResult:
    """An uploaded dataset's s3:// URI and digest, and the number of files and bytes sent."""

    uri: str
    digest: str
    sent_files: int
    sent_bytes: int


@dataclass(frozen=True)
class LocalFiles:
    """The dataset's files, sorted, and all names found below its source."""

    paths: tuple[Path, ...]
    names: Names


def list_directory(config: DatasetConfig) -> LocalFiles:
    """Return the dataset's files below a local source, without reading them.

    Raises:
        DatasetMissing: there are none.
        DatasetRefused: a name is not a valid S3 key, a file is too large for S3, or a link is
            broken or points outside the source.
    """
    source = Path(config.source)
    if not source.is_dir():
        kind = f"{config.format} files" if config.is_table else "files"
        raise DatasetMissing(
            f"dataset.source: {source} is not a directory; give a directory of {kind}"
        )
    walked = walk(
        source,
        lambda entry: config.is_table and is_hidden(entry.own_name),
        config.follow_links_outside,
    )
    outside = "; or set dataset.follow_links_outside: true"
    for it in walked.refused:
        if not it.is_outside or it.is_folder or config.is_data(it.name):
            raise DatasetRefused(
                f"dataset.source: {source / it.name} {it.why}{outside if it.is_outside else ''}"
            )
    by_name = {path.relative_to(source).as_posix(): path for path in walked.files}
    # Files that are not tables can have any bytes in their names, which are only displayed.
    names_below = classify_names(config, by_name)
    found = Names(names_below.data, walked.left_out, names_below.others)
    if not found.data:
        only = f"{config.pattern} " if config.is_table else ""
        raise DatasetMissing(
            f"dataset.source: no {only}file under {source}"
            + "".join(f"; {notice}" for notice in notices_of(config, found))
        )
    paths = tuple(by_name[name] for name in found.data)
    if odd := next((path for path in paths if _is_no_text(path.relative_to(source))), None):
        raise DatasetRefused(
            f"dataset.source: the file name {os.fsencode(odd)!r} is not valid UTF-8, which S3 keys"
            " require; rename the file"
        )
    for path in paths:
        if (size := path.stat().st_size) > MAX_OBJECT_BYTES:
            raise DatasetRefused(
                f"dataset.source: {path} is {size} bytes, above S3's limit of {MAX_OBJECT_BYTES}"
                " per object; split it"
            )
    return LocalFiles(paths, found)


def scan_directory(config: DatasetConfig) -> Dataset:
    """Hash the dataset's files below a local source, and return them sorted by name.

    Files that have not changed since they were last hashed are not read again
    (tasks/dataset/hashing.py). Raises the same errors as list_directory().
    """
    source, paths = Path(config.source), list_directory(config).paths
    files = tuple(
        DataFile(
            path.relative_to(source).as_posix(), hashed.size_bytes, hashed.sha256, path, hashed.mark
        )
        for path, hashed in zip(paths, hash_files(config, paths), strict=True)
    )
    digest = names.canonical_digest([[file.name, file.size_bytes, file.sha256] for file in files])
    return Dataset(files, digest)


def _is_no_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return True
    return False


def check_keys(dataset: Dataset, config: DatasetConfig, platform_prefix: str) -> None:
    """Check that the S3 keys of all files, which start with `platform_prefix`, are short enough.

    Raises:
        DatasetRefused: a key would be too long.
    """
    prefix = names.dataset_data_prefix(platform_prefix, config.name, dataset.digest)
    sizes = {file.name: len((prefix + file.name).encode()) for file in dataset.files}
    long = [name for name, size in sizes.items() if size > MAX_KEY_BYTES]
    if long:
        more = f" (and {len(long) - 1} more keys are too long)" if len(long) > 1 else ""
        raise DatasetRefused(
            f"dataset.source: with the prefix {prefix}, the key of {long[0]} would be"
            f" {sizes[long[0]]} bytes long{more}, but S3 allows at most {MAX_KEY_BYTES}; shorten"
            " the names of the file and its folders, or platform.prefix"
        )


def upload(s3: Any, dataset: Dataset, name: str, bucket: str, platform_prefix: str) -> UploadResult:
    """Upload every file that is missing from the dataset's prefix, then write its manifest.

    The keys begin with `platform_prefix`.
    """
    prefix = names.dataset_data_prefix(platform_prefix, name, dataset.digest)
    manifest_key = names.dataset_manifest_key(platform_prefix, name, dataset.digest)
    uri = f"s3://{bucket}/{prefix}"
    present = {item["Key"]: item["Size"] for item in list_objects(s3, bucket, prefix)}
    wanted = {prefix + file.name: file.size_bytes for file in dataset.files}
    if _has_manifest(s3, bucket, manifest_key, dataset.digest) and present == wanted:
        return UploadResult(uri, dataset.digest, 0, 0)
    for key in present.keys() - wanted.keys():
        raise UploadFailed(
            f"s3://{bucket}/{key} is not part of this dataset; remove it, since jobs read"
            " the whole prefix"
        )

    meter = Meter(f"upload of {name}", dataset.size_bytes, "bytes", "dataset")

    def send(file: DataFile) -> int:
        key = prefix + file.name
        may_be_there = present.get(key) == file.size_bytes
        return send_file(s3, bucket, key, file, may_be_there, meter.add)

    # Large files are sent one at a time, with their parts in parallel, so that there are never more
    # calls than connections.
    sent = [send(file) for file in dataset.files if file.is_large]
    small = [file for file in dataset.files if file.is_small]
    others = [file for file in dataset.files if not file.is_large and not file.is_small]
    for files, at_once in ((others, CONNECTIONS), (small, SMALL_CONNECTIONS)):
        with ThreadPoolExecutor(at_once) as pool:
            sent += pool.map(send, files)
    manifest = {
        "schema_version": 1,
        "digest": dataset.digest,
        "files": [
            {"name": f.name, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in dataset.files
        ],
    }
    s3.put_object(
        Bucket=bucket,
        Key=manifest_key,
        Body=json.dumps(manifest).encode(),
        ChecksumAlgorithm="SHA256",
    )
    return UploadResult(uri, dataset.digest, sum(1 for size in sent if size), sum(sent))


def channel_folders(config: DatasetConfig, file_names: Iterable[str]) -> tuple[str, ...]:
    """Return the top-level folders, each of which becomes a channel if dataset.channel is null.

    Return an empty tuple if all files are in one channel.

    Raises:
        DatasetRefused: a file is outside the folders, a folder's name is not a valid channel name,
            or there are too many folders.
    """
    if config.channel is not None:
        return ()
    parts = {name.partition("/")[::2] for name in file_names}
    if loose := sorted(folder for folder, rest in parts if not rest):
        raise DatasetRefused(
            f"dataset.channel: null turns each folder under {config.source} into a channel, but"
            f" {loose[0]} is not in a folder; move it into one, or set one channel for all files"
        )
    folders = sorted({folder for folder, _ in parts})
    if odd := [folder for folder in folders if not re.fullmatch(CHANNEL_NAME, folder)]:
        raise DatasetRefused(
            f"dataset.channel: the folder {odd[0]!r} under {config.source} is not a valid channel"
            " name (1 to 64 letters, digits, '.', '_' or '-'); rename it"
        )
    if len(folders) > MAX_CHANNELS:
        raise DatasetRefused(
            f"dataset.channel: {len(folders)} folders under {config.source}, but a job can have at"
            f" most {MAX_CHANNELS} channels; set one channel for all files"
        )
    return tuple(folders)


def _has_manifest(s3: Any, bucket: str, key: str, digest: str) -> bool:
    body = get_bytes(s3, bucket, key)
    return body is not None and json.loads(body).get("digest") == digest


def upload_dataset(backend: Backend, config: DatasetConfig, dataset: Dataset) -> UploadResult:
    """Upload the dataset to its content-addressed prefix in S3, unless jobs read it in place."""
    place = backend.shared_folder(config.source)
    if place is not None:
        return UploadResult(place, dataset.digest, 0, 0)
    platform = backend.platform
    return upload(backend.client("s3"), dataset, config.name, platform.bucket, platform.prefix)
