"""Atomic files and JSON records on disk."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from infra.local.state.kept import Ledger, NotKept

_CHUNK_BYTES = 1 << 20

logger = logging.getLogger(__name__)


def write_atomically(path: Path, content: bytes | str | IO[bytes], mode: int = 0o600) -> None:
    """Write through a temporary file in the same folder:
    a reader or a crash sees the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            # not by its name, which may be a link by now where a node has the folder
            os.fchmod(handle, mode)
            if isinstance(content, str):
                content = content.encode()
            if isinstance(content, bytes):
                file.write(content)
            else:
                shutil.copyfileobj(content, file, _CHUNK_BYTES)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value).encode())


def read_json(path: Path) -> Any | None:
    """The file's JSON, None where there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


class RecordStore:
    """JSON records in a folder, one file each, named by a key of one or more path-safe parts."""

    def __init__(self, folder: Path, ledger: Ledger | None = None) -> None:
        """`ledger` remembers which records are not on disk."""
        self._folder = folder
        self._ledger = ledger or Ledger()
        self._unsaved: dict[tuple[str, ...], dict[str, Any]] = {}

    def save(self, *key: str, record: dict[str, Any]) -> None:
        """Raises NotKept where it can't be written."""
        self._unsaved[key] = record
        with self._ledger.keeping(self._name(key)):
            write_json(self._path(key), record)
        del self._unsaved[key]

    def try_to_save(self, *key: str, record: dict[str, Any]) -> None:
        """Of what goes on where its record can't be written now."""
        with suppress(NotKept):
            self.save(*key, record=record)

    def save_rest(self) -> None:
        """Try once more to write what could not be written when it changed."""
        for key, record in sorted(self._unsaved.items()):
            self.try_to_save(*key, record=record)

    def remove(self, *key: str) -> None:
        self._unsaved.pop(key, None)
        self._path(key).unlink(missing_ok=True)
        self._ledger.forget(self._name(key))

    def load_all(self) -> Iterator[dict[str, Any]]:
        """Every readable record. An unreadable one is logged and left on disk
        for a person to look at.
        """
        for path in sorted(self._folder.rglob("*.json")):
            try:
                yield json.loads(path.read_bytes())
            except ValueError as error:
                logger.error(
                    "Record %s is not JSON (%s): it is ignored; repair or remove it.", path, error
                )

    def _name(self, key: tuple[str, ...]) -> str:
        return "/".join((self._folder.name, *key))

    def _path(self, key: tuple[str, ...]) -> Path:
        return self._folder.joinpath(*key).with_name(f"{key[-1]}.json")
