"""Finds out which process listens on a port.

Any program that responds on the server's port would receive the password and the deployments.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

_LISTENING = "0A"
"""Socket state LISTEN in /proc/net/tcp, whose tenth field is the inode."""


def is_taken(host: str, port: int) -> bool:
    """Return True if a program listens on the port.

    Raises:
        OSError: The port is unavailable for another reason, e.g. below 1024 without privileges.
    """
    with socket.socket() as tried:
        # As the server does, so that connections in TIME_WAIT don't block the port.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
    return False


def listens(pid: int, port: int) -> bool:
    """Return True if this process, owned by the current user, listens on the port."""
    sockets = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{inode}]")
    with suppress(OSError):  # the process has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # the descriptor was closed
                if os.readlink(descriptor) in sockets:
                    return True
    return False
