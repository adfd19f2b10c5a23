"""Reads files that a node wrote, and no other files of this machine.

The platform can run as root, and a node can leave a link to /etc/shadow, a pipe without a writer,
or a folder that becomes a link while it is read. Every path component is therefore opened relative
to the previous one without following links, and links are resolved as the node saw them: /opt/ml is
the root, and nothing outside of its tree exists.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

_NODE_ROOT = "/opt/ml"
_MOST_LINKS = 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

logger = logging.getLogger(__name__)


def open_file(root: Path, name: str) -> IO[bytes]:
    """Open the regular file `name` below the node's tree `root`.

    Raises:
        FileNotFoundError: If the tree contains no regular file with this name.
    """
    descriptor = _open(root, name, _FILE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _absent(name, "is not a regular file")
    return os.fdopen(descriptor, "rb")


def file_names(root: Path, folder: str) -> list[str]:
    """Return the sorted paths of all regular files in a folder of the node's tree.

    Links to files are included.
    """
    try:
        descriptor = _open(root, folder, _FOLDER)
    except OSError:
        return []
    try:
        return sorted(_names(root, folder, descriptor))
    finally:
        os.close(descriptor)


def _names(root: Path, folder: str, descriptor: int) -> Iterator[str]:
    for place, _, names, _ in os.fwalk(".", dir_fd=descriptor, follow_symlinks=False):
        for name in names:
            relative = PurePosixPath(place, name).as_posix()
            try:
                open_file(root, f"{folder}/{relative}").close()
            except OSError as error:
                logger.warning("Skipping the file %r of a node: %s", relative, error.strerror)
                continue
            yield relative


def _open(root: Path, name: str, last_flags: int) -> int:
    waiting = deque(PurePosixPath(name).parts)
    # descriptors of the open folders, root first
    path: list[int] = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    links = 0
    try:
        while waiting:
            part = waiting.popleft()
            if part == "..":
                if len(path) == 1:
                    raise _absent(name, "points outside the node's tree")
                os.close(path.pop())
                continue
            try:
                path.append(os.open(part, _FOLDER if waiting else last_flags, dir_fd=path[-1]))
            except OSError as error:
                # For links, O_NOFOLLOW results in ELOOP, and O_DIRECTORY in ENOTDIR.
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                try:
                    target = os.readlink(part, dir_fd=path[-1])
                except OSError:
                    raise error from None
                links += 1
                if links > _MOST_LINKS:
                    raise _absent(name, "is a link loop") from None
                steps = _steps(root, target, name)
                if target.startswith("/"):
                    while len(path) > 1:
                        os.close(path.pop())
                waiting.extendleft(reversed(steps))
        return path.pop()
    finally:
        for descriptor in path:
            os.close(descriptor)


def _steps(root: Path, target: str, name: str) -> tuple[str, ...]:
    """Return the components of a link target, relative to the tree's root if it is absolute."""
    if not target.startswith("/"):
        return PurePosixPath(target).parts
    for prefix in (_NODE_ROOT, str(root)):  # the tree as seen by a container and a process
        if target.startswith(f"{prefix}/"):
            return PurePosixPath(target.removeprefix(prefix).lstrip("/")).parts
    raise _absent(name, "points outside the node's tree")


def _absent(name: str, reason: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, f"{name!r} {reason}")
