"""Downloads S3 objects to folders of the nodes, and determines their nodes and paths."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_emulator.interfaces import Node
from sagemaker_emulator.jobs.endings import ClientFault
from sagemaker_emulator.s3_objects import (
    S3_ERRORS,
    S3Location,
    download,
    error_code,
    error_message,
    list_keys,
)

_PARALLEL_DOWNLOADS = 8


class DataDownloadError(ClientFault):
    """A folder of a node cannot be downloaded from S3 or mounted."""


class DownloadInterrupted(Exception):
    """The stop event was set before all downloads were complete."""


@dataclass(frozen=True)
class Download:
    """An S3 source, and the folder of the nodes to download it to."""

    source: Mapping[str, Any]
    """S3Uri, S3DataType and S3DataDistributionType, as in requests for all kinds of jobs."""
    folder: str
    """The path of the target folder below /opt/ml."""


@dataclass(frozen=True)
class FolderObject:
    """An S3 object and its path below the target folder."""

    location: S3Location
    relative_path: str


def fill_folders(
    s3: Any, downloads: Sequence[Download], nodes: Sequence[Node], stop: threading.Event
) -> None:
    """Run the downloads. Objects are downloaded to one node and hard-linked to the others.

    Raises:
        DataDownloadError: If a download fails.
        DownloadInterrupted: If `stop` is set before all downloads are complete.
    """
    work = [
        (item, [node.opt_ml / download.folder for node in takers])
        for download in downloads
        for item, takers in _shares(s3, download.source, nodes)
    ]

    def place(job: tuple[FolderObject, list[Path]]) -> None:
        if stop.is_set():
            raise DownloadInterrupted
        _place(s3, *job)

    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS, "download") as pool:
        for _ in pool.map(place, work):
            pass


def check_sources(s3: Any, downloads: Sequence[Download]) -> None:
    """Check that all sources contain valid objects, without downloading them.

    Raises:
        DataDownloadError: If a source does not.
    """
    for each in downloads:
        _require_objects(s3, each.source)


def _shares(
    s3: Any, source: Mapping[str, Any], nodes: Sequence[Node]
) -> Iterator[tuple[FolderObject, list[Node]]]:
    """Yield each object with the nodes that receive it.

    All nodes receive it or, with ShardedByS3Key, one node, round-robin in key order.
    """
    objects = _require_objects(s3, source)
    sharded = source.get("S3DataDistributionType") == "ShardedByS3Key"
    for index, item in enumerate(objects):
        yield item, [nodes[index % len(nodes)]] if sharded else list(nodes)


def _require_objects(s3: Any, source: Mapping[str, Any]) -> list[FolderObject]:
    objects = _objects(s3, source)
    if not objects:
        raise DataDownloadError(
            f"Data download failed:S3 key: {source['S3Uri']} matched no files on s3"
        )
    _refuse_collisions(objects)
    return objects


def _refuse_collisions(objects: Sequence[FolderObject]) -> None:
    """Refuse keys that would map to the same file, such as "data//a" and "data/a"."""
    taken: dict[PurePosixPath, S3Location] = {}
    for item in objects:
        other = taken.setdefault(PurePosixPath(item.relative_path), item.location)
        if other != item.location:
            raise DataDownloadError(
                f"Data download failed:{other} and {item.location} map to the same file"
                f" {item.relative_path!r} in the channel; rename one of them"
            )


def _objects(s3: Any, source: Mapping[str, Any]) -> list[FolderObject]:
    location = S3Location.parse(source["S3Uri"])
    try:
        if source["S3DataType"] == "ManifestFile":
            return _manifest_objects(s3, location)
        return [
            FolderObject(S3Location(location.bucket, key), _path_below_prefix(location.key, key))
            for key in list_keys(s3, location)
        ]
    except S3_ERRORS as error:
        raise _download_error(location, error) from error


def _path_below_prefix(prefix: str, key: str) -> str:
    """Return the path of a key below a prefix.

    With the prefix "data/train", "data/train/a.csv" becomes a.csv, and "data/train.csv" becomes
    train.csv.
    """
    folder = prefix if prefix.endswith("/") or not prefix else f"{prefix}/"
    if key.startswith(folder):
        # "data//a.csv" is a valid key, but must not become an absolute path.
        return key.removeprefix(folder).lstrip("/")
    return key.removeprefix(prefix.rpartition("/")[0]).lstrip("/")


def _manifest_objects(s3: Any, manifest: S3Location) -> list[FolderObject]:
    """Return the objects in a manifest, [{"prefix": "s3://bucket/path/"}, "relative/key", …]."""
    try:
        entries = json.load(s3.get_object(Bucket=manifest.bucket, Key=manifest.key)["Body"])
        prefix = S3Location.parse(str(entries[0]["prefix"]))
        relative = [str(entry) for entry in entries[1:]]
    except (ValueError, LookupError, TypeError) as error:
        raise DataDownloadError(
            f"Data download failed:Unable to parse manifest at {manifest}: expected "
            f'[{{"prefix": "s3://…"}}, "key", …] ({error})'
        ) from error
    return [
        FolderObject(S3Location(prefix.bucket, prefix.key + entry), entry.lstrip("/"))
        for entry in sorted(set(relative))
    ]


def _place(s3: Any, item: FolderObject, folders: Sequence[Path]) -> None:
    first = folders[0] / item.relative_path
    if ".." in PurePosixPath(item.relative_path).parts or not first.resolve().is_relative_to(
        folders[0].resolve()
    ):
        raise DataDownloadError(
            f"Data download failed:The path {item.relative_path!r} of {item.location} is outside"
            " the folder of its channel; rename the object"
        )
    try:
        download(s3, item.location, first)
        for folder in folders[1:]:
            _link(first, folder / item.relative_path)
    except S3_ERRORS as error:
        raise _download_error(item.location, error) from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise DataDownloadError(
            f"Data download failed:{item.location} and another object use the same path as a file"
            f" and as a folder ({error.strerror}); rename one of them"
        ) from error


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a different file system, or one without hard links
        shutil.copyfile(source, target)


def _download_error(location: S3Location, error: ClientError | BotoCoreError) -> DataDownloadError:
    return DataDownloadError(
        f"Data download failed:Unable to download object {location} ({error_code(error)}:"
        f" {error_message(error)})"
    )
