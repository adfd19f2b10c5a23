"""Store a sweep's small objects: records, heartbeats, claims and history.

Readers on other machines see an object completely or not at all, and as soon as put() has returned.
On AWS, the store is a bucket (nodesweep/launch/sagemaker/store.py); on a cluster, it is a folder on
the shared file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from nodesweep.configs.atomic import create_atomic, make_folder, write_atomic
from nodesweep.errors import BackendUnavailable, BackendUnusable, PreflightRefused


@dataclass(frozen=True)
class StoredObject:
    """An object's body, and the times at which it was written and read, by the store's clock."""

    body: bytes
    written_at: datetime
    read_at: datetime


class Store(Protocol):
    """Objects by key; the parts of a key are separated by slashes.

    Calls raise one of nodesweep.errors.CALL_ERRORS when the store can't be reached.
    """

    @property
    def prefix(self) -> str:
        """The first part of all keys, see nodesweep/scaling/names.py."""

    def quick(self) -> Store:
        """Return this store with calls that time out after seconds rather than minutes."""

    def prepare(self) -> None:
        """Verify that the store can be used, or create it if the config allows it.

        Raises:
            PreflightRefused: it can't be used.
        """

    def put(self, key: str, body: bytes, only_if_absent: bool = False) -> bool:
        """Write an object.

        If `only_if_absent` is True, return False instead of replacing an existing object. Only one
        of several processes then gets True.
        """

    def get(self, key: str) -> bytes | None:
        """Return the object's body, or None if it does not exist."""

    def read(self, key: str) -> StoredObject | None:
        """Return the object with its times, or None if it does not exist."""

    def written_at(self, key: str) -> datetime | None:
        """Return the time at which the object was last written, or None if it does not exist."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix, in order."""

    def folders(self, prefix: str) -> list[str]:
        """Return the distinct parts of keys between the prefix and the next slash, in order."""

    def delete(self, key: str) -> None:
        """Delete the object, if it exists."""

    def uri(self, key: str) -> str:
        """Return the object's URI, for messages and records."""

    def link(self, key: str) -> str:
        """Return the URL that shows the object in a browser."""


@dataclass(frozen=True)
class FolderStore:
    """A store in a folder on a shared file system.

    It relies on the POSIX guarantees for rename and link, which NFS, Lustre and GPFS provide.
    Unlike in a bucket, a key must not be the folder of a different key.

    Attributes:
        root: the folder.
        prefix: the first part of all keys.
    """

    root: Path
    prefix: str = "nodesweep"

    def quick(self) -> FolderStore:
        """Return the store itself, because the time of a call depends only on the file system."""
        return self

    def prepare(self) -> None:
        """Create the folder if it is missing, and verify that it can be written to; see Store."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            make_folder(self.root / self.prefix)
            for folder in (self.root, self.root / self.prefix):
                _time_in(folder)
        except PermissionError as error:
            raise PreflightRefused(
                f"platform.folder: {error.filename} is not writable, but sweeps are recorded there;"
                " give this user write access, or set another folder"
            ) from error
        except OSError as error:
            raise PreflightRefused(
                f"platform.folder: {self.root} can't be used ({error.strerror or error}), but"
                " sweeps are recorded there; set another folder"
            ) from error

    def put(self, key: str, body: bytes, only_if_absent: bool = False) -> bool:
        """Write an object; see Store."""
        path = self._path(key)
        with reachable(path):
            if only_if_absent:
                return create_atomic(path, body)
            write_atomic(path, body)
            return True

    def get(self, key: str) -> bytes | None:
        """Return the object's body; see Store."""
        path = self._path(key)
        with reachable(path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None

    def read(self, key: str) -> StoredObject | None:
        """Return the object with its times by the file server's clock; see Store."""
        path = self._path(key)
        with reachable(path):
            try:
                with path.open("rb") as stream:
                    body, written = stream.read(), os.fstat(stream.fileno()).st_mtime
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None
            return StoredObject(body, datetime.fromtimestamp(written, UTC), _time_in(self.root))

    def written_at(self, key: str) -> datetime | None:
        """Return the object's modification time; see Store."""
        path = self._path(key)
        with reachable(path):
            try:
                return datetime.fromtimestamp(path.stat().st_mtime, UTC)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix; see Store."""
        folder = prefix.rpartition("/")[0]
        with reachable(self.root / folder):
            return sorted(key for key in self._walk(folder) if key.startswith(prefix))

    def folders(self, prefix: str) -> list[str]:
        """Return the distinct parts after the prefix; see Store."""
        rests = (key.removeprefix(prefix) for key in self.keys(prefix))
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def delete(self, key: str) -> None:
        """Delete the object, but not empty folders; see Store."""
        path = self._path(key)
        with reachable(path):
            path.unlink(missing_ok=True)

    def uri(self, key: str) -> str:
        """Return the object's file:// URI."""
        return f"{self.root.absolute().as_uri()}/{key}"

    def link(self, key: str) -> str:
        """Return the object's file:// URI, which a browser shows on any node."""
        return self.uri(key)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part.startswith(".") or not part for part in parts):
            raise ValueError(f"{key!r} is not a key: a part of it is empty or begins with a dot")
        return self.root.joinpath(*parts)

    def _walk(self, folder: str) -> Iterator[str]:
        """Yield the keys below a folder; skip temporary files, which begin with a dot."""
        for place, _, files in os.walk(self.root / folder):
            above = Path(place).relative_to(self.root).as_posix()
            for name in files:
                if not name.startswith("."):
                    yield name if above == "." else f"{above}/{name}"


def _time_in(folder: Path) -> datetime:
    """Return the file server's time, which is the modification time of a new file."""
    probe = folder / f".now.{uuid4().hex}"
    probe.touch()
    try:
        return datetime.fromtimestamp(probe.stat().st_mtime, UTC)
    finally:
        probe.unlink(missing_ok=True)


@contextmanager
def reachable(path: Path) -> Iterator[None]:
    """Raise BackendUnavailable for an error of the file system inside the block."""
    try:
        yield
    except OSError as error:
        lasts = isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError)
        kind = BackendUnusable if lasts else BackendUnavailable
        raise kind(f"{path}: {error.strerror or error}") from error
