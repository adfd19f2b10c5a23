"""A sweep's folder on this machine: what is known about the sweep, and its report. Every write is atomic."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact

from scaling import names
from tasks.platform import TASK_OPTIONS


def write_atomic(path: Path, body: bytes) -> None:
    """Write to a temporary file in the same folder, then replace: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def point_latest(directory: Path, name: str) -> None:
    """Make <directory>/latest a link to <directory>/<name>, in one step."""
    temporary = directory / f".{names.LATEST}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(name)
    os.replace(temporary, directory / names.LATEST)


def write_files(directory: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Write a report's files to <directory>/<name>/ and point `latest` at it; returns that folder."""
    folder = directory / name
    for file_name, body in files.items():
        write_atomic(folder / file_name, body)
    point_latest(directory, name)
    return folder


def remember_sweep(directory: Path, sweep: str, record: Mapping[str, Any]) -> None:
    """Keep the sweep's record on this machine, so that `report` and `stop` find it by id alone."""
    write_atomic(directory / sweep / names.SWEEP_RECORD, json.dumps(record, indent=2, sort_keys=True).encode() + b"\n")


def recall_sweep(directory: Path, sweep: str) -> dict[str, Any] | None:
    """The record kept by remember_sweep, or None."""
    path = directory / sweep / names.SWEEP_RECORD
    return dict(json.loads(path.read_text())) if path.is_file() else None


@task(name="write-report", **TASK_OPTIONS)
def write_report(directory: Path, sweep: str, files: Mapping[str, bytes]) -> Path:
    """This machine: the report's files."""
    return write_files(directory, sweep, files)


@task(name="publish-report", **TASK_OPTIONS)
def publish_report(sweep: str, markdown: str) -> None:
    """Prefect: the report as an artifact of the run."""
    create_markdown_artifact(markdown, key="scaling-report", description=f"Scaling report of {sweep}")
