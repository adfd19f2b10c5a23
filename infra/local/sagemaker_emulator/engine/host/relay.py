"""Exposes a loopback port of this machine on the loopback of another network namespace.

The platform listens only on loopback, which nodes in separate networks cannot reach. A socket that
is created in a node's network and served from this one lets the node use the same URL as everyone
else, without exposing anything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

CLONE_NEWNET = 0x40000000
_BACKLOG = 128
_CHUNK_BYTES = 1 << 16

T = TypeVar("T")


class Relay:
    """Forwards connections from a loopback port in a network to the same port of this machine."""

    def __init__(self, network: Path, port: int) -> None:
        """Start listening.

        Args:
            network: The namespace's file, such as /proc/PID/ns/net.
            port: The port, in that network and on this machine.

        Raises:
            OSError: If the network cannot be entered, or if the port is in use in that network.
        """
        self._port = port
        self._listener = inside(network, lambda: _listen(port))
        threading.Thread(target=self._accept, name=f"relay-{port}", daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        with contextlib.suppress(OSError):  # wakes the accepting thread
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
            except OSError:  # the platform is shutting down
                return
            with outer:
                answers = threading.Thread(target=_copy, args=(outer, inner), daemon=True)
                answers.start()
                _copy(inner, outer)
                answers.join()


def inside(network: Path, make: Callable[[], T]) -> T:
    """Call `make` inside the network and return its result.

    The call runs in a separate thread because every thread has its own network namespace.

    Raises:
        OSError: If the network cannot be entered.
    """

    def enter_and_make() -> T:
        with network.open("rb") as file:
            enter(file.fileno())
        return make()

    return in_thread(enter_and_make)


def enter(descriptor: int) -> None:
    """Move this thread into the network namespace of an open file descriptor.

    Raises:
        OSError: If the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def in_thread(make: Callable[[], T]) -> T:
    """Call `make` in a separate thread and return its result, or raise the OSError it raised."""
    made: list[T] = []
    problems: list[OSError] = []

    def work() -> None:
        try:
            made.append(make())
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=work, name="in-network")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return made[0]


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    return listener


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either end can close at any time
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
