"""A sweep's folder on this machine: what is known about the sweep, and its report.
Every write is atomic.

Plain functions, so that commands that run no flow need no Prefect.
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

from scaling import names
from tasks.errors import RecordDamaged

logger = logging.getLogger("nodesweep.report")


def write_atomic(path: Path, body: bytes) -> None:
    """Write to a temporary file in the same folder, then replace:
    a reader sees the old file or the new one.

    An OSError names `path`: that of a write which finds the disk full names no file.
    """
    with written_atomically(path) as stream:
        stream.write(body)


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """write_atomic() of what is written to the stream inside;
    left by an exception, it changes nothing.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from error


def point_latest(directory: Path, name: str) -> None:
    """Make <directory>/latest a link to <directory>/<name>, in one step;
    what is no link is left alone.
    """
    latest = directory / names.LATEST
    if latest.exists() and not latest.is_symlink():
        logger.warning(
            "%s is not a link and is left as it is; the report is in %s", latest, directory / name
        )
        return
    temporary = directory / f".{names.LATEST}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(name)
    os.replace(temporary, latest)


def write_files(directory: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Write a report's files to <directory>/<name>/ and point `latest` at it;
    returns that folder.
    """
    folder = directory / name
    for file_name, body in files.items():
        write_atomic(folder / file_name, body)
    point_latest(directory, name)
    return folder


def remember_sweep(directory: Path, sweep: str, record: Mapping[str, Any]) -> None:
    """Keep the sweep's record on this machine, so that `report` and `stop` find it by id alone."""
    write_atomic(
        directory / sweep / names.SWEEP_RECORD,
        json.dumps(record, indent=2, sort_keys=True).encode() + b"\n",
    )


def recall_sweep(directory: Path, sweep: str) -> dict[str, Any] | None:
    """The record kept by remember_sweep, or None. Raises RecordDamaged."""
    path = directory / sweep / names.SWEEP_RECORD
    return parse_record(path.read_bytes(), str(path)) if path.is_file() else None


def parse_record(body: bytes, origin: str) -> dict[str, Any]:
    """A sweep's record. Raises RecordDamaged naming `origin` where it is none."""
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not {"config", "inputs", "provenance"} <= record.keys():
        raise RecordDamaged(
            f"{origin}: damaged, no record of a sweep; restore it, or start a new sweep"
        )
    return record
