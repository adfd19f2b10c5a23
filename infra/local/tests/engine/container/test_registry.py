"""The proxy before a registry: which requests it passes on or refuses, and what it reports to
ECR."""

from __future__ import annotations

import hashlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sagemaker_emulator.engine.container import registry as registry_module
from sagemaker_emulator.engine.container.registry import Registry
from sagemaker_emulator.engine.errors import EngineError

MANIFEST = b'{"schemaVersion": 2}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


class Backend(BaseHTTPRequestHandler):
    """Records the requests that were sent, and responds to them."""

    protocol_version = "HTTP/1.1"
    stored: dict[str, bytes]

    def log_message(self, format, *args):
        pass

    def do_GET(self):
        body = self.stored.get(self.path, b"{}")
        status = 200 if self.path in self.stored or self.path == "/v2/" else 404
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def do_PUT(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.stored[self.path] = body
        self.send_response(201 if b"bad" not in body else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Rules:
    def __init__(self):
        self.taken, self.told = {}, []

    def refusal(self, repository, tag, digest):
        return None if self.taken.get((repository, tag), digest) == digest else "taken already"

    def pushed(self, repository, tag, digest):
        self.told.append((repository, tag, digest))


@pytest.fixture
def stored():
    return {}


@pytest.fixture
def registry(tmp_path, stored):
    handler = type("Kept", (Backend,), {"stored": stored})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Registry(tmp_path / "registry", f"127.0.0.1:{server.server_address[1]}")
    made.rules = Rules()
    yield made
    made.close()
    server.shutdown()
    server.server_close()


def send(registry, method, path, body=None, **options):
    connection = http.client.HTTPConnection(registry.address, timeout=300)
    connection.request(method, path, body, **options)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_large_bodies_pass_both_ways(registry, stored):
    blob = bytes(range(256)) * 20_000
    assert send(registry, "PUT", "/v2/a/blobs/uploads/1", blob)[0] == 201
    assert stored["/v2/a/blobs/uploads/1"] == blob
    assert send(registry, "GET", "/v2/a/blobs/uploads/1") == (200, blob)


def test_chunked_body_arrives_whole(registry, stored):
    chunks = [b"one" * 1000, b"two", b"three" * 5000]
    assert (
        send(registry, "PUT", "/v2/a/blobs/uploads/2", iter(chunks), encode_chunked=True)[0] == 201
    )
    assert stored["/v2/a/blobs/uploads/2"] == b"".join(chunks)


def test_pushed_tag_is_told_with_its_digest(registry):
    assert send(registry, "PUT", "/v2/team/a/manifests/one", MANIFEST)[0] == 201
    assert registry.rules.told == [("team/a", "one", DIGEST)]
    assert registry.digest("team/a", "one") == DIGEST


def test_push_by_digest_and_failed_push_tell_nothing(registry):
    assert send(registry, "PUT", f"/v2/a/manifests/{DIGEST}", MANIFEST)[0] == 201
    assert send(registry, "PUT", "/v2/a/manifests/one", b"bad")[0] == 400
    assert registry.rules.told == []


def test_refused_tag_never_reaches_the_registry(registry, stored):
    registry.rules.taken[("a", "one")] = "sha256:other"
    status, body = send(registry, "PUT", "/v2/a/manifests/one", MANIFEST)
    assert status == 400
    assert b'"TAG_INVALID"' in body
    assert b"taken already" in body
    assert stored == {}


def test_images_of_the_registry_are_listed(registry, stored):
    stored["/v2/_catalog?n=1000"] = b'{"repositories": ["a"]}'
    stored["/v2/a/tags/list"] = b'{"tags": ["one", "gone"]}'
    stored["/v2/a/manifests/one"] = MANIFEST
    assert list(registry.images()) == [("a", "one", DIGEST)]


def test_face_keeps_its_port_over_a_restart(tmp_path, registry):
    port = (tmp_path / "registry" / "port").read_text()
    registry.close()
    again = Registry(tmp_path / "registry", registry.backend)
    assert again.address == registry.address == f"127.0.0.1:{port}"
    again.close()


def test_registry_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(registry_module, "_START_SECONDS", 0.1)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:1 "):
        Registry(tmp_path, "127.0.0.1:1")
