"""An S3 replacement that discards objects and responds after a fixed time.

    .venv/bin/python -m benchmarks.s3.stand_in [--answer-after-seconds 0.03]

It prints its endpoint and serves until it is ended. It reveals a client's own time, because the
local platform checks and stores objects, which takes most of the CPU time. Listings are empty and
no key exists, so only uploads can be measured; neither signatures nor checksums are checked.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

_HEADER_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect: *100-continue", re.IGNORECASE)
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_LISTING = f"<ListBucketResult {_NAMESPACE}><IsTruncated>false</IsTruncated></ListBucketResult>"
_BUCKETS = f"<ListAllMyBucketsResult {_NAMESPACE}><Buckets/></ListAllMyBucketsResult>"
_BEGUN = (
    f"<InitiateMultipartUploadResult {_NAMESPACE}><UploadId>1</UploadId>"
    "</InitiateMultipartUploadResult>"
)
_COMPLETE = (
    f'<CompleteMultipartUploadResult {_NAMESPACE}><ETag>"0"</ETag></CompleteMultipartUploadResult>'
)
_ABSENT = "<Error><Code>NoSuchKey</Code><Message>This server stores nothing.</Message></Error>"


def answer(method: str, target: str) -> tuple[int, str]:
    """Return the response's status and body; `target` is the request's path with its query."""
    parts = urlsplit(target)
    key = parts.path.strip("/").partition("/")[2]
    if method == "PUT":
        return 200, ""
    if method == "POST":
        is_begin = "uploads" in parse_qs(parts.query, keep_blank_values=True)
        return 200, _BEGUN if is_begin else _COMPLETE
    if method == "GET" and not key:
        return 200, _LISTING if parts.path.strip("/") else _BUCKETS
    return 404, "" if method == "HEAD" else _ABSENT


class Connection(asyncio.Protocol):
    """One client's connection: consecutive requests, whose bodies are counted and dropped."""

    def __init__(self, answer_after_seconds: float) -> None:
        self._answer_after_seconds = answer_after_seconds
        self._head = bytearray()
        self._missing_bytes = 0
        self._request: tuple[str, str] | None = None
        self._write: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._write = transport.write

    def connection_lost(self, error: Exception | None) -> None:
        """Drop the transport."""
        self._write = None

    def data_received(self, data: bytes) -> None:
        """Parse requests and schedule responses."""
        if self._request is None:
            self._head += data
            head, end, rest = bytes(self._head).partition(_HEADER_END)
            if not end:
                return
            self._head.clear()
            method, target, _ = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
            self._request = method, target
            length = _LENGTH.search(head)
            self._missing_bytes = int(length[1]) if length else 0
            if _EXPECTS.search(head) and not rest:
                self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
            data = rest
        self._missing_bytes -= len(data)
        if self._missing_bytes <= 0:
            status, body = answer(*self._request)
            self._request = None
            text = (
                f'HTTP/1.1 {status} -\r\nETag: "0"\r\nContent-Type: application/xml\r\n'
                f"Content-Length: {len(body)}\r\n\r\n{body}"
            )
            loop = asyncio.get_running_loop()
            loop.call_later(self._answer_after_seconds, self._send, text.encode())

    def _send(self, data: bytes) -> None:
        if self._write is not None:
            self._write(data)


async def serve(answer_after_seconds: float) -> None:
    """Serve on a free loopback port until cancelled, and print the endpoint."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answer_after_seconds), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--answer-after-seconds",
        type=float,
        default=0.0,
        help="seconds by which each response is delayed",
    )
    asyncio.run(serve(parser.parse_args().answer_after_seconds))


if __name__ == "__main__":
    main()
