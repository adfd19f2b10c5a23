"""An HTTP server on loopback that answers whatever a test wants it to, to every request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"<!DOCTYPE html><html><body><p>Access denied by your network's policy<br></body></html>"


@dataclass(frozen=True)
class Words:
    """One answer. `announced_bytes` is the Content-Length where it isn't the body's."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    announced_bytes: int | None = None


@contextmanager
def hostile_server(answer: Callable[[str], Words]) -> Iterator[str]:
    """Inside, every request to the yielded endpoint is answered `answer(path)`."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
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
            """Nothing is said of a request."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
