"""Whose a port of this machine is: whoever answers on the server's port would be given the password
and the deployments.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

_LISTENING = "0A"
"""State of a socket in /proc/net/tcp, where its inode is the tenth field."""


def is_taken(host: str, port: int) -> bool:
    """Whether a program listens there. Raises OSError where the port can't be had for another
    reason, as one below 1024 by an ordinary user.
    """
    with socket.socket() as tried:
        # as the server does: connections that have just ended don't hold the port
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
    return False


def listens(pid: int, port: int) -> bool:
    """Whether it is that process, one of this user, that listens on the port."""
    sockets = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{inode}]")
    with suppress(OSError):  # it has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.readlink(descriptor) in sockets:
                    return True
    return False
