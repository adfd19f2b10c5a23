"""A sweep's folder on this machine: its record and its report, written atomically.

These are plain functions, so that commands that run no flow need no Prefect.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from nodesweep.scaling import names
from nodesweep.tasks.errors import RecordDamaged

SCHEMA_VERSION = 1
"""Schema version of a sweep's record."""
logger = logging.getLogger("nodesweep.report")


PRIVATE, SHARED = 0o600, 0o644
"""File modes.

A job's output and a config may be private; files to be shared or edited have the usual mode.
"""


def write_atomic(path: Path, body: bytes, mode: int = PRIVATE) -> None:
    """Write a temporary file in the same folder, then replace `path` with it.

    Readers see the old file or the new one. An OSError names `path`, even that of a full disk,
    which by default does not.
    """
    with written_atomically(path, mode) as stream:
        stream.write(body)


@contextmanager
def written_atomically(path: Path, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """Yield a stream whose content replaces the file atomically when the block ends.

    An exception leaves the file unchanged.
    """
    try:
        make_folder(path.parent, mode)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = folder_problem(path.parent) or error.strerror or str(error)
        raise type(error)(error.errno, reason, str(path)) from error


def make_folder(folder: Path, mode: int = PRIVATE) -> None:
    """Create the folder and its missing parents for files of this mode.

    Those for private files are accessible to their owner only; existing folders stay unchanged.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(0o700 if mode == PRIVATE else 0o777, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises if it is a file


def folder_problem(folder: Path) -> str | None:
    """Return why the folder cannot be written to, with the remedy; None if it probably can.

    The folder need not exist yet. Nothing is changed.
    """
    remedy = "or choose another folder with report.directory or --output"
    try:
        for place in (folder, *folder.parents):
            if place.is_symlink() and not place.exists():
                return (
                    f"{place} is a link to {os.readlink(place)}, which does not exist; create that"
                    f" folder or remove the link, {remedy}"
                )
            if place.exists():
                if not place.is_dir():
                    return f"{place} is a file, not a folder; move it, {remedy}"
                if not os.access(place, os.W_OK | os.X_OK):
                    return f"{place} is not writable; give this user write access, {remedy}"
                return None
    except OSError as error:  # a name is too long, or a folder not accessible
        return f"{folder} can't be used: {error.strerror or error}; {remedy.removeprefix('or ')}"
    return None


def point_latest(directory: Path, name: str) -> None:
    """Point the link <directory>/latest at <directory>/<name>, atomically.

    A folder or file of that name is left alone.
    """
    latest = directory / names.LATEST
    if latest.exists() and not latest.is_symlink():
        logger.warning(
            "%s is not a link and is left unchanged; the report is in %s", latest, directory / name
        )
        return
    temporary = directory / f".{names.LATEST}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(name)
    os.replace(temporary, latest)


def write_files(directory: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Write a report's files to <directory>/<name>/ and point `latest` at it; return the folder."""
    folder = directory / name
    for file_name, body in files.items():
        write_atomic(folder / file_name, body)
    point_latest(directory, name)
    return folder


def save_sweep_record(directory: Path, sweep: str, record: Mapping[str, Any]) -> None:
    """Save the sweep's record on this machine, so that `report` and `stop` need only its ID."""
    write_atomic(
        directory / sweep / names.SWEEP_RECORD,
        json.dumps(record, indent=2, sort_keys=True).encode() + b"\n",
    )


def save_sweep_record_if_missing(directory: Path, sweep: str, record: Mapping[str, Any]) -> None:
    """Save the sweep's record if this machine has none, or a damaged one."""
    try:
        if load_sweep_record(directory, sweep) is not None:
            return
    except RecordDamaged as error:
        logger.warning("%s; rewritten from the bucket's copy", str(error).partition(";")[0])
    save_sweep_record(directory, sweep, record)


def load_sweep_record(directory: Path, sweep: str) -> dict[str, Any] | None:
    """Return the record saved by save_sweep_record(); None if there is none.

    Raises:
        RecordDamaged: the record is unreadable.
    """
    path = directory / sweep / names.SWEEP_RECORD
    try:
        return parse_record(path.read_bytes(), str(path)) if path.is_file() else None
    except OSError as error:
        raise RecordDamaged(f"{path}: cannot be read: {error.strerror or error}") from None


def parse_record(body: bytes, origin: str) -> dict[str, Any]:
    """Return a sweep's record.

    Raises:
        RecordDamaged: it is not a record; the message names `origin`.
    """
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not all(
        isinstance(record.get(part), dict) for part in ("config", "inputs", "provenance")
    ):
        raise RecordDamaged(
            f"{origin}: damaged, not a sweep record; restore it, or start a new sweep"
        )
    if record.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise RecordDamaged(
            f"{origin}: a record of schema version {record['schema_version']!r}, this nodesweep"
            f" reads version {SCHEMA_VERSION}; use the nodesweep that wrote it"
        )
    return record
