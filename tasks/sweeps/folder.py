"""Write a sweep's record and report atomically to its folder on this machine.

These are plain functions, so that commands that don't run a flow don't need Prefect.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodesweep.configs.atomic import write_atomic
from nodesweep.errors import RecordDamaged
from nodesweep.scaling import names

SCHEMA_VERSION = 1
"""Schema version of a sweep's record."""
logger = logging.getLogger("nodesweep.report")


def point_latest(directory: Path, name: str) -> None:
    """Point the link <directory>/latest at <directory>/<name>, atomically.

    A folder or file named `latest` is left unchanged.
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
    """Return the record saved by save_sweep_record(), or None if there is none.

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
        RecordDamaged: the body is not a sweep's record; the message names `origin`.
    """
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not all(
        isinstance(record.get(part), dict) for part in ("config", "inputs", "provenance")
    ):
        raise RecordDamaged(
            f"{origin}: damaged, or not a sweep record; restore it, or start a new sweep"
        )
    if record.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise RecordDamaged(
            f"{origin}: the record has schema version {record['schema_version']!r}, but this"
            f" version of nodesweep reads version {SCHEMA_VERSION}; use the version that wrote it"
        )
    return record
