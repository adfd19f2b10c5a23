"""Hash a local dataset's files with SHA-256, cached between runs in $XDG_CACHE_HOME.

A file is not read again while its size, times, inode and device are unchanged. The times include
the inode's change time, which no program can set back. A file that changed less than
SETTLED_SECONDS before it was hashed is not cached, since a further change could get the same
timestamp (git's rule for its index: Documentation/technical/racy-git.txt).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nodesweep.configs.atomic import write_atomic
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.events import Meter
from nodesweep.scaling.names import canonical_digest

logger = logging.getLogger("nodesweep.dataset")
SETTLED_SECONDS = 2.0
"""At least the timestamp granularity of any common file system (FAT has 2 s)."""
_SCHEMA_VERSION = 1
_BLOCK_BYTES = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Mark:
    """The part of a file's status that changes when its content changes.

    Times are in nanoseconds.
    """

    size_bytes: int
    modified: int
    changed: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> Mark:
        """Return the mark from the result of os.stat()."""
        return cls(
            status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
        )

    def is_settled(self, at: int) -> bool:
        """Return True if the file last changed long enough before `at` (Unix time in ns)."""
        return max(self.modified, self.changed) + SETTLED_SECONDS * 1e9 <= at


@dataclass(frozen=True)
class Hashed:
    """A file's size and SHA-256 (hex).

    `mark` is the file's status when it was read, or None if a later change might not alter it.
    """

    size_bytes: int
    sha256: str
    mark: Mark | None = None


def cache_file(source: str, pattern: str) -> Path:
    """Return the cache file of the config's source and pattern, in $XDG_CACHE_HOME or ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    source_digest = canonical_digest([str(Path(source).resolve()), pattern])
    return cache / "nodesweep" / "hashes" / f"{source_digest[:32]}.json"


def delete_hash_cache(config: DatasetConfig) -> None:
    """Delete the cache, so that the next hash_files() reads every file.

    Raises:
        OSError: the cache cannot be removed.
    """
    cache_file(config.source, config.pattern).unlink(missing_ok=True)


def hash_files(
    config: DatasetConfig,
    paths: Sequence[Path],
    now_ns: Callable[[], int] = time.time_ns,
) -> list[Hashed]:
    """Return the size and SHA-256 of each file, in the order of `paths`.

    Files that are not cached or have changed are read in parallel, and the cache is updated. A
    warning is logged if the cache can't be read, in which case all files are hashed, or if it
    can't be written.

    Raises:
        OSError: a file cannot be read.
    """
    cache, source = cache_file(config.source, config.pattern), Path(config.source)
    known = _load_cache(cache)
    names = [path.relative_to(source).as_posix() for path in paths]
    marks = [Mark.of(path.stat()) for path in paths]
    same = {
        name: known[name]
        for name, mark in zip(names, marks, strict=True)
        if name in known and known[name][0] == mark
    }
    unread = {name: path for name, path in zip(names, paths, strict=True) if name not in same}
    unread_bytes = sum(
        mark.size_bytes for name, mark in zip(names, marks, strict=True) if name in unread
    )
    meter = Meter(f"hashing of {config.name}", unread_bytes, "bytes", "dataset")
    begun = now_ns()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        read = dict(
            zip(unread, pool.map(lambda path: _hash(path, meter.add), unread.values()), strict=True)
        )
    found = same | {name: (mark, hashed) for name, (mark, hashed, _) in read.items()}
    settled = same | {
        name: (mark, hashed)
        for name, (mark, hashed, is_still) in read.items()
        if is_still and mark.is_settled(begun)
    }
    if settled != known:
        _save_cache(cache, settled)
    return [
        Hashed(
            found[name][0].size_bytes, found[name][1], settled[name][0] if name in settled else None
        )
        for name in names
    ]


def _hash(path: Path, passed: Callable[[int], None]) -> tuple[Mark, str, bool]:
    """Return (mark before the read, SHA-256, True if the mark was the same afterwards)."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        before = Mark.of(os.fstat(stream.fileno()))
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            passed(len(block))
        after = Mark.of(os.fstat(stream.fileno()))
    return before, digest.hexdigest(), before == after


def _load_cache(cache: Path) -> dict[str, tuple[Mark, str]]:
    """Return {name: (mark, SHA-256)}, or {} if the cache is missing or unusable."""
    try:
        text = cache.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        logger.warning("can't read the saved hashes, so every file is hashed: %s", error)
        return {}
    try:
        raw = json.loads(text)
        if raw["schema_version"] != _SCHEMA_VERSION:
            raise ValueError(f"schema_version is {raw['schema_version']!r}")
        return {name: _entry(row) for name, row in raw["files"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        logger.warning("%s isn't a nodesweep cache, so every file is hashed: %s", cache, error)
        return {}


def _entry(row: Sequence[object]) -> tuple[Mark, str]:
    *numbers, sha256 = row
    if not all(type(number) is int for number in numbers):
        raise ValueError(f"{numbers!r} are not integers")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256")
    size_bytes, modified, changed, inode, device = (int(str(number)) for number in numbers)
    return Mark(size_bytes, modified, changed, inode, device), sha256


def _save_cache(cache: Path, files: dict[str, tuple[Mark, str]]) -> None:
    rows = {
        name: [mark.size_bytes, mark.modified, mark.changed, mark.inode, mark.device, sha256]
        for name, (mark, sha256) in files.items()
    }
    body = {"schema_version": _SCHEMA_VERSION, "files": rows}
    try:
        write_atomic(cache, json.dumps(body).encode() + b"\n")
    except OSError as error:
        logger.warning("can't save the hashes: %s", error)
