"""Atomic and durable files, and JSON records."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from sagemaker_emulator.state.unsaved import Ledger, NotSaved

_CHUNK_BYTES = 1 << 20
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""Errors that some network and FUSE file systems return for fsync of a folder."""
_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class DamagedFile(Exception):
    """A file of the platform is damaged. The message gives the path, the reason and the remedy."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path} is damaged ({reason}): {remedy}")


class UnsafeFile(DamagedFile):
    """A file with a secret is owned by or accessible to other users."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        Exception.__init__(self, f"{path} is not used: {reason}. {remedy}")


def read_secret_file(path: Path, remedy: str) -> str:
    """Return the text of a private file that belongs to this user or root.

    Raises:
        UnsafeFile: If other users own or may access the file. The message includes `remedy`.
        OSError: If the file cannot be read.
    """
    with path.open() as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (os.geteuid(), 0):
            raise UnsafeFile(path, f"it belongs to user {found.st_uid}, not to you", remedy)
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise UnsafeFile(path, f"its mode is {mode:o}, so other users can access it", remedy)
        return file.read()


def write_atomically(
    path: Path, content: bytes | str | IO[bytes], mode: int = 0o600, is_durable: bool = True
) -> None:
    """Write a file such that readers see either the old content or the new content.

    Unless `is_durable` is False, the file is on disk afterwards and survives a power failure.
    """
    _make_folder(path.parent, is_durable)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            # Use the descriptor, since a node with access to the folder can replace the file.
            os.fchmod(handle, mode)
            if isinstance(content, str):
                content = content.encode()
            if isinstance(content, bytes):
                file.write(content)
            else:
                shutil.copyfileobj(content, file, _CHUNK_BYTES)
            if is_durable:
                file.flush()
                os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if is_durable:
        _sync_folder(path.parent)


def remove(path: Path) -> None:
    """Durably delete a file, if it exists."""
    with suppress(FileNotFoundError):
        path.unlink()
        _sync_folder(path.parent)


def _make_folder(folder: Path, is_durable: bool) -> None:
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_folder(folder.parent, is_durable)
    folder.mkdir(exist_ok=True)
    if is_durable:
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, since a power failure could otherwise lose the names of its files."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value).encode())


def read_json(path: Path, parse: Callable[[Any], _T], remedy: str) -> _T | None:
    """Return the JSON in a file, passed through `parse`, or None if the file does not exist.

    Raises:
        DamagedFile: If the file is not JSON or `parse` raises. The message includes `remedy`.
    """
    try:
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(path, error.strerror or str(error), remedy) from error
    except Exception as error:  # content of unexpected structure can raise nearly any
        raise DamagedFile(path, _reason(error), remedy) from error


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "it is not JSON"
    problem = f"no {error}" if isinstance(error, KeyError) else str(error)
    return f"it has an unexpected structure: {problem}"


class RecordStore:
    """Stores JSON records in files of a folder, named by keys with one or more path-safe parts."""

    def __init__(self, folder: Path, ledger: Ledger | None = None) -> None:
        """Open the store, and list unsaved and damaged records in `ledger`."""
        self._folder = folder
        self.ledger = ledger or Ledger()
        self._unsaved: dict[tuple[str, ...], dict[str, Any]] = {}

    def save(self, *key: str, record: dict[str, Any]) -> None:
        """Save a record.

        Raises:
            NotSaved: If the record cannot be written, in which case save_rest() tries again.
        """
        self._unsaved[key] = record
        with self.ledger.tracking(self._name(key)):
            write_json(self._path(key), record)
        del self._unsaved[key]

    def try_to_save(self, *key: str, record: dict[str, Any]) -> None:
        """Save a record, or only note it in the ledger if that fails."""
        with suppress(NotSaved):
            self.save(*key, record=record)

    def save_rest(self) -> None:
        """Save the records that could not be written when they changed."""
        for key, record in sorted(self._unsaved.items()):
            self.try_to_save(*key, record=record)

    def remove(self, *key: str) -> None:
        self._unsaved.pop(key, None)
        remove(self._path(key))
        self.ledger.forget(self._name(key))

    def load_all(
        self,
        parse: Callable[[Mapping[str, Any]], _T],
        remedy: str = "it is left out; repair or remove it",
    ) -> Iterator[_T]:
        """Yield all records, passed through `parse`.

        Records that are not JSON or that `parse` rejects must not keep the platform from starting,
        so they are noted in the ledger and left on disk.
        """
        for path in sorted(self._folder.rglob("*.json")):
            try:
                read = read_json(path, parse, remedy)
            except DamagedFile as error:
                self.ledger.note_damaged(str(error))
                continue
            if read is not None:
                yield read

    def _name(self, key: tuple[str, ...]) -> str:
        return "/".join((self._folder.name, *key))

    def _path(self, key: tuple[str, ...]) -> Path:
        return self._folder.joinpath(*key).with_name(f"{key[-1]}.json")
