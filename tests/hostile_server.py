"""Servers on loopback that return whatever a test wants, or hardly anything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"<!DOCTYPE html><html><body><p>Access denied by your network's policy<br></body></html>"


@dataclass(frozen=True)
class Words:
    """One response; `announced_bytes` overrides the Content-Length."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    announced_bytes: int | None = None


@contextmanager
def hostile_server(answer: Callable[[str], Words], seen: list[str] | None = None) -> Iterator[str]:
    """Yield an endpoint that responds with `answer(path)`; `seen` collects the whole requests."""
    requests: list[str] = [] if seen is None else seen

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests.append(f"{self.requestline}\n{self.headers}{body!r}")
            words = answer(self.path)
            self.send_response(words.status)
            length = len(words.body) if words.announced_bytes is None else words.announced_bytes
            for name, value in {"Content-Length": str(length), **words.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(words.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing about requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


DRIPS = {
    "silent": b"",
    "head": b"HTTP/1.1 200 O",
    "body": b"HTTP/1.1 200 OK\r\nETag: 1\r\nContent-Length: 1000000\r\n\r\n",
}
"""Bytes sent at once by an endpoint that never finishes; the rest comes byte by byte or never."""


@contextmanager
def dripping_server(said_at_once: bytes, pause_seconds: float = 0.05) -> Iterator[str]:
    """Yield an endpoint that sends some bytes at once, then one per pause; nothing for b""."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(said_at_once)
            while not over.wait(pause_seconds):
                connection.sendall(b"x" if said_at_once else b"")

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
