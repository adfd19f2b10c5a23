"""Where a sweep's small objects are kept: records, heartbeats, claims, history.

Readers on other machines see an object whole or not at all, and as soon as put() has returned. On
AWS this is a bucket (nodesweep.aws.store.py), on a cluster a folder of the shared file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from nodesweep.configs.atomic import create_atomic, write_atomic


class Store(Protocol):
    """Objects by key; the parts of a key are separated by slashes."""

    def put(self, key: str, body: bytes, only_if_absent: bool = False) -> bool:
        """Write an object.

        With `only_if_absent`, return False instead of replacing an existing object. Of several
        processes, exactly one then gets True.
        """

    def get(self, key: str) -> bytes | None:
        """Return the object's body; None if it does not exist."""

    def age_seconds(self, key: str) -> float | None:
        """Return the seconds since the object was written, by the store's own clock."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix, in order."""

    def folders(self, prefix: str) -> list[str]:
        """Return the distinct parts of keys between the prefix and the next slash, in order."""

    def delete(self, key: str) -> None:
        """Delete the object; one that does not exist is fine."""


@dataclass(frozen=True)
class FolderStore:
    """A store in a folder of a file system that all its users share.

    Relies on what POSIX promises for rename and link, as NFS, Lustre and GPFS do. Unlike in a
    bucket, no key may be a folder of another key.

    Attributes:
        root: the folder.
    """

    root: Path

    def put(self, key: str, body: bytes, only_if_absent: bool = False) -> bool:
        """Write an object; see Store."""
        if only_if_absent:
            return create_atomic(self._path(key), body)
        write_atomic(self._path(key), body)
        return True

    def get(self, key: str) -> bytes | None:
        """Return the object's body; see Store."""
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def age_seconds(self, key: str) -> float | None:
        """Return the object's age by the file server's clock, which stamps a new file for it."""
        try:
            written_at = self._path(key).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
        probe = self.root / f".now.{uuid4().hex}"
        probe.touch()
        try:
            return probe.stat().st_mtime - written_at
        finally:
            probe.unlink(missing_ok=True)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix; see Store."""
        folder = prefix.rpartition("/")[0]
        return sorted(key for key in self._walk(folder) if key.startswith(prefix))

    def folders(self, prefix: str) -> list[str]:
        """Return the distinct parts after the prefix; see Store."""
        rests = (key.removeprefix(prefix) for key in self.keys(prefix))
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def delete(self, key: str) -> None:
        """Delete the object; see Store. Empty folders stay."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part.startswith(".") or not part for part in parts):
            raise ValueError(f"{key!r} is not a key: a part of it is empty or begins with a dot")
        return self.root.joinpath(*parts)

    def _walk(self, folder: str) -> Iterator[str]:
        """Yield the keys below a folder; temporary files begin with a dot and are none."""
        for place, _, files in os.walk(self.root / folder):
            above = Path(place).relative_to(self.root).as_posix()
            for name in files:
                if not name.startswith("."):
                    yield name if above == "." else f"{above}/{name}"
