"""Atomic file writes: a reader sees the old file or the new one, never a partial one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

PRIVATE, SHARED = 0o600, 0o644
"""File modes.

Use PRIVATE for files that may be confidential, such as a config or a job's output, and SHARED for
files that other users read or edit.
"""


def write_atomic(path: Path, body: bytes, mode: int = PRIVATE) -> None:
    """Write a temporary file in the same folder, then replace `path` with it.

    An OSError names `path` even if the disk is full, when Python's own error names no file.
    """
    with written_atomically(path, mode) as stream:
        stream.write(body)


def create_atomic(path: Path, body: bytes, mode: int = PRIVATE) -> bool:
    """Create the file with its whole content, or return False if it already exists.

    If several processes try this, even on machines that share a file system, exactly one gets True.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    write_atomic(temporary, body, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


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

    Only the owner can access a new folder for private files. Existing folders stay unchanged.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(0o700 if mode == PRIVATE else 0o777, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises if the path is a file


def folder_problem(folder: Path, option: str = "") -> str | None:
    """Return why the folder cannot be written to and the remedy, or None if it seems writable.

    The folder need not exist yet, and is not created.

    Args:
        folder: The folder to check.
        option: The command-line option that sets a different folder, or "" if there is none.
    """
    remedy = f"or choose another folder{f' with {option}' if option else ''}"
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
    except OSError as error:  # e.g. a name is too long, or a folder is not accessible
        return f"{folder} can't be used: {error.strerror or error}; {remedy.removeprefix('or ')}"
    return None
