"""An OCI registry (Debian's docker-registry or an existing one) behind a proxy that acts as ECR.

The proxy is a small HTTP server on loopback that streams requests through. On a push it does two
things that a plain registry does not: it refuses to move an immutable tag, and it registers the
image in the ECR API.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from sagemaker_emulator.engine.errors import EngineError
from sagemaker_emulator.state.files import write_atomically
from sagemaker_emulator.tether import tethered

HOST = "127.0.0.1"
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json,"
    " application/vnd.docker.distribution.manifest.v2+json,"
    " application/vnd.oci.image.index.v1+json,"
    " application/vnd.docker.distribution.manifest.list.v2+json"
)
_START_SECONDS = 20.0
_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 120.0
_HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade"}
)


class PushRules(Protocol):
    """ECR's rules for pushes."""

    def refusal(self, repository: str, tag: str, digest: str) -> str | None:
        """Return why the tag must not point to this digest, or None if it may."""

    def pushed(self, repository: str, tag: str, digest: str) -> None:
        """Record an image that was pushed to the registry."""


class _SocketConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_SECONDS)
        self.sock.connect(self._path)


class Registry:
    """The registry and its proxy.

    `address` is the host:port of the proxy. Set `rules` once ECR is available.
    """

    def __init__(self, folder: Path, backend: str | None = None) -> None:
        """Start the registry, and its proxy on the previous port if that is free.

        Args:
            folder: The folder for the images, the configuration and the log.
            backend: The host:port of a running registry to use instead of starting one.

        Raises:
            EngineError: If the registry cannot be started or reached.
        """
        self.rules: PushRules | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.backend = backend  # None if the platform starts the registry
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_dir = tempfile.mkdtemp(prefix="nodesweep-registry-")
        self._socket = f"{self._socket_dir}/registry"
        if backend is None:
            self._process = self._start(folder)
        self._server = _listen(folder / "port", self)
        self.address = f"{HOST}:{self._server.server_address[1]}"
        self._wait_until_ready(folder)
        threading.Thread(target=self._server.serve_forever, name="registry", daemon=True).start()

    def close(self) -> None:
        """Stop the registry and its proxy. Pushed images remain in the folder."""
        self._server.shutdown()
        self._server.server_close()
        if self._process:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection to the registry behind the proxy."""
        if self.backend is not None:
            return http.client.HTTPConnection(self.backend, timeout=_TIMEOUT_SECONDS)
        return _SocketConnection(self._socket)

    def digest(self, repository: str, reference: str) -> str | None:
        """Return the digest of the image with a tag or digest, or None if it does not exist."""
        answer = self._get(f"/v2/{repository}/manifests/{reference}", "HEAD")
        return answer.headers["Docker-Content-Digest"] if answer.status == 200 else None

    def images(self) -> Iterator[tuple[str, str, str]]:
        """Yield the repository, tag and digest of every image."""
        for repository in self._read("/v2/_catalog?n=1000").get("repositories") or []:
            for tag in self._read(f"/v2/{repository}/tags/list").get("tags") or []:
                if digest := self.digest(repository, tag):
                    yield repository, tag, digest

    def _read(self, path: str) -> dict[str, Any]:
        answer = self._get(path)
        return dict(json.loads(answer.read())) if answer.status == 200 else {}

    def _get(self, path: str, method: str = "GET") -> http.client.HTTPResponse:
        connection = self.connect()
        connection.request(method, path, headers={"Accept": MANIFEST_TYPES})
        return connection.getresponse()

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        program = shutil.which("docker-registry")
        if program is None:
            raise EngineError(
                "docker-registry is not installed; install it, or set --registry to a running one"
            )
        config = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(folder / "data")},
                "delete": {"enabled": True},
            },
            "http": {"addr": self._socket, "net": "unix", "relativeurls": True},
        }
        write_atomically(folder / "config.yml", json.dumps(config))  # JSON is YAML
        with (folder / "registry.log").open("ab") as log:
            return subprocess.Popen(
                tethered(program, "serve", str(folder / "config.yml")),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_until_ready(self, folder: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                if self._get("/v2/").status < 500:
                    return
                problem = "it responds with an error"
            except OSError as error:
                problem = str(error)
            if time.monotonic() >= deadline or (self._process and self._process.poll() is not None):
                where = self.backend or f"docker-registry (see {folder / 'registry.log'})"
                self._server.server_close()
                raise EngineError(f"the registry {where} can't be used: {problem}")
            time.sleep(0.05)


def _listen(port_file: Path, registry: Registry) -> ThreadingHTTPServer:
    """Listen on the previous port, which image names contain, or on a free port if it is in use."""

    class Handler(_ProxyHandler):
        upstream = registry

    last = int(port_file.read_text()) if port_file.is_file() else 0
    try:
        server = ThreadingHTTPServer((HOST, last), Handler)
    except OSError:
        server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    write_atomically(port_file, str(server.server_address[1]))
    return server


class _ProxyHandler(BaseHTTPRequestHandler):
    upstream: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, since a push makes hundreds of requests."""

    def _handle(self) -> None:
        parts = self.path.partition("?")[0].split("/")
        if (
            self.command == "PUT"
            and len(parts) > 4
            and parts[1] == "v2"
            and parts[-2] == "manifests"
        ):
            self._put_manifest("/".join(parts[2:-2]), parts[-1])
        else:
            self._pass_on(None)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _handle

    def _put_manifest(self, repository: str, reference: str) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        digest, rules = f"sha256:{hashlib.sha256(body).hexdigest()}", self.upstream.rules
        is_tag = ":" not in reference
        if rules and is_tag and (refusal := rules.refusal(repository, reference, digest)):
            error = json.dumps({"errors": [{"code": "TAG_INVALID", "message": refusal}]}).encode()
            self.send_response(400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(error)))
            self.end_headers()
            self.wfile.write(error)
        else:
            on_push = rules.pushed if rules and is_tag else None
            self._pass_on(body, lambda: on_push(repository, reference, digest) if on_push else None)

    def _pass_on(self, body: bytes | None, on_success: Callable[[], None] | None = None) -> None:
        connection = self.upstream.connect()
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _HOP_HEADERS:
                    connection.putheader(name, value)
            connection.endheaders()
            for chunk in [body] if body is not None else self._body():
                connection.send(chunk)
            answer = connection.getresponse()
            if on_success and answer.status < 300:
                # Register the image before the client gets the response and looks for it in ECR.
                on_success()
            self._answer(answer)
        finally:
            connection.close()

    def _body(self) -> Iterator[bytes]:
        """Yield the request body as received, including chunk framing."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while True:
                line = self.rfile.readline()
                yield line
                size = int(line.split(b";")[0], 16)
                yield from self._read(size + 2)  # with the line end
                if size == 0:
                    return
        yield from self._read(int(self.headers.get("Content-Length") or 0))

    def _read(self, size: int) -> Iterator[bytes]:
        while size > 0 and (chunk := self.rfile.read(min(size, _CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_HEADERS | {"transfer-encoding"}:
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None and self.command != "HEAD":
            self.send_header("Connection", "close")  # which marks the end of the body
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            while chunk := answer.read(_CHUNK_BYTES):
                self.wfile.write(chunk)
