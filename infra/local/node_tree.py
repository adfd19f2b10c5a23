"""Reads what a node wrote, and nothing else of this machine.

The platform may run as root while a node is a container, and what a node leaves in its tree may be
a link to /etc/shadow, a pipe that nobody writes to, or a folder that becomes a link while it is
read. So every step on the way to a file is opened relative to the one before, no step follows a
link by itself, and links are read and walked here, as the node saw them: /opt/ml is the root of its
tree, and whatever leads out of it is not there.
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

logger = logging.getLogger(__name__.removeprefix("nodesweep."))


def open_file(root: Path, name: str) -> IO[bytes]:
    """The regular file `name` below the node's tree `root`.
    Raises FileNotFoundError for anything else.
    """
    descriptor = _open(root, name, _FILE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _absent(name, "is no file")
    return os.fdopen(descriptor, "rb")


def file_names(root: Path, folder: str) -> list[str]:
    """Every regular file in the folder of the node's tree by its name below the folder, sorted;
    links to files too.
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
                logger.warning("%r of a node is left out: %s", relative, error.strerror)
                continue
            yield relative


def _open(root: Path, name: str, last_flags: int) -> int:
    """A descriptor of what `name` leads to below `root`."""
    waiting = deque(PurePosixPath(name).parts)
    # open folders, root first
    path: list[int] = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    links = 0
    try:
        while waiting:
            part = waiting.popleft()
            if part == "..":
                if len(path) == 1:
                    raise _absent(name, "leads out of the node's tree")
                os.close(path.pop())
                continue
            try:
                path.append(os.open(part, _FOLDER if waiting else last_flags, dir_fd=path[-1]))
            except OSError as error:
                # A link is ELOOP by O_NOFOLLOW, or ENOTDIR beside O_DIRECTORY.
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                try:
                    target = os.readlink(part, dir_fd=path[-1])
                except OSError:
                    raise error from None
                links += 1
                if links > _MOST_LINKS:
                    raise _absent(name, "is a circle of links") from None
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
    """The parts of a link's target, from the root of the tree where it is absolute."""
    if not target.startswith("/"):
        return PurePosixPath(target).parts
    for prefix in (_NODE_ROOT, str(root)):  # as a container sees its tree, and as a process does
        if target.startswith(f"{prefix}/"):
            return PurePosixPath(target.removeprefix(prefix).lstrip("/")).parts
    raise _absent(name, "leads out of the node's tree")


def _absent(name: str, reason: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, f"{name!r} {reason}")
