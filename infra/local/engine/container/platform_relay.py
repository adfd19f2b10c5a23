"""The platform's endpoint inside a container's network: its port on the container's own loopback.

The server listens on this machine's loopback only, and a node has a network of its own. A socket
that is made inside that network and served from out here gives the node the same URL as everyone,
and nobody else a way in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from infra.local.engine.errors import EngineError

_CLONE_NEWNET = 0x40000000
_BACKLOG = 128
_CHUNK_BYTES = 1 << 16


class PlatformRelay:
    """Listens on `port` of the loopback of a process's network,
    and passes connections to the same port out here.
    """

    def __init__(self, pid: int, port: int) -> None:
        """Raises EngineError where the network can't be entered."""
        self._port = port
        self._listener = _inside_network_of(pid, lambda: _listen(port))
        threading.Thread(target=self._accept, name=f"relay-{pid}", daemon=True).start()

    def close(self) -> None:
        """Take no further connections."""
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(inner,), daemon=True).start()

    def _serve(self, inner: socket.socket) -> None:
        with inner:
            try:
                outer = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # the platform is on its way out
                return
            with outer:
                answers = threading.Thread(target=_copy, args=(outer, inner), daemon=True)
                answers.start()
                _copy(inner, outer)
                answers.join()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    return listener


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either end may go at any time
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _inside_network_of(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    """Call `make` in a thread of its own that enters the network and ends:
    a thread's network is its own.
    """
    made: list[socket.socket] = []
    problems: list[OSError] = []

    def work() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            with Path(f"/proc/{pid}/ns/net").open("rb") as network:
                if libc.setns(network.fileno(), _CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            made.append(make())
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=work, name=f"network-of-{pid}")
    thread.start()
    thread.join()
    if problems:
        raise EngineError(
            f"the network of process {pid} can't be entered: {problems[0]}"
        ) from problems[0]
    return made[0]
