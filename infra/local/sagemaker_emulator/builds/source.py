"""Downloads the source of a build from S3: a .zip object, or a folder if the key ends with /."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from sagemaker_emulator.s3_objects import (
    S3_ERRORS,
    S3Location,
    download,
    error_code,
    error_message,
    list_keys,
)


class SourceError(Exception):
    """The source cannot be downloaded. The message is added to the context of the phase."""


def parse_source_location(location: str) -> S3Location:
    """Parse "bucket/key.zip" or "bucket/folder/", which can also be an S3 ARN or URI.

    Raises:
        ValueError: If the bucket or the key is missing.
    """
    bucket, slash, key = location.removeprefix("arn:aws:s3:::").removeprefix("s3://").partition("/")
    if not bucket or not slash or not key:
        raise ValueError(
            "Invalid project source: location must be a valid S3 source (bucket/key),"
            f" got {location!r}"
        )
    return S3Location(bucket, key)


def fetch_source(s3: Any, location: S3Location, folder: Path) -> None:
    """Download the source to `folder`, which must exist and be empty.

    Raises:
        SourceError: If the source cannot be downloaded.
    """
    try:
        if location.key.endswith("/"):
            _fetch_folder(s3, location, folder)
            return
        archive = folder.with_name(f"{folder.name}.zip")
        download(s3, location, archive)
    except S3_ERRORS as error:
        raise SourceError(
            f"{error_code(error)}: {error_message(error)} for primary source {location}"
        ) from error
    _extract(archive, folder)
    archive.unlink()


def _fetch_folder(s3: Any, location: S3Location, folder: Path) -> None:
    keys = list(list_keys(s3, location))
    if not keys:
        raise SourceError(f"NoSuchKey: no objects under {location} for primary source")
    for key in keys:
        relative = PurePosixPath(key.removeprefix(location.key).lstrip("/"))
        target = folder / relative
        if ".." in relative.parts or not target.resolve().is_relative_to(folder.resolve()):
            raise SourceError(
                f"Key {key!r} would be written outside of the source folder, as {str(relative)!r}:"
                " rename the object"
            )
        download(s3, S3Location(location.bucket, key), target)


def _extract(archive: Path, folder: Path) -> None:
    """Extract an archive and restore executable bits, which zipfile drops but scripts need."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                target = Path(opened.extract(member, folder))
                if member.external_attr >> 16 & stat.S_IXUSR and target.is_file():
                    target.chmod(0o755)
    except zipfile.BadZipFile as error:
        raise SourceError(f"Source is not a .zip archive: {error}") from error
