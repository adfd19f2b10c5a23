"""Downloads of a first try: the proxy forwards and counts them, and the result names what is not
counted."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from benchmarks.local_platform import fetched
from benchmarks.local_platform.fetched import (
    CountingProxy,
    Step,
    disk_bytes,
    main,
    own_environment,
    table,
    torch_source,
)

WHEEL = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
BODY = b"x" * 200_000
STEP = Step(
    "make setup", 400_000_000, 2_000_000, (390_000_000, 10_000_000), 12, 61.0, 1_500_000_000
)


class Answer(BaseHTTPRequestHandler):
    """Responds with a body, preceded by the path and the connection headers of the request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("Asked", f"{self.path} {self.headers.get_all('Connection')}")
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing about requests."""


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port on which an HTTP server listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_proxy_hands_on_and_counts_by_host_both_ways_of_asking(port: int) -> None:
    with CountingProxy() as proxy:
        opener = build_opener(ProxyHandler({"http": proxy.url}))
        with opener.open(f"http://127.0.0.1:{port}/simple/torch?a=1", timeout=300) as answer:
            assert answer.read() == BODY
            assert answer.headers["Asked"] == "/simple/torch?a=1 ['close']"
        plain = proxy.received["127.0.0.1"]
        assert len(BODY) < plain < len(BODY) + 1000
        tunnel = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=300)
        tunnel.set_tunnel("localhost", port)
        for _ in range(2):
            tunnel.request("GET", "/")
            assert tunnel.getresponse().read() == BODY
        tunnel.close()
        assert 2 * len(BODY) < proxy.received["localhost"] < 2 * len(BODY) + 1000
        assert 0 < proxy.sent["localhost"] < 1000
        assert proxy.connections == 2
        proxy.reset()
        assert (proxy.received.total(), proxy.sent.total(), proxy.connections) == (0, 0, 0)


def test_host_that_is_not_there_is_an_answer(port: int) -> None:
    with CountingProxy() as proxy:
        tunnel = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=300)
        tunnel.set_tunnel("nobody.invalid", 443)
        with pytest.raises(OSError, match="502"):
            tunnel.connect()


def test_environment_has_empty_caches_and_no_home_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("https_proxy", "http://elsewhere")
    own = own_environment(tmp_path, "http://127.0.0.1:1")
    assert "PREFECT_API_URL" not in own
    assert own["PIP_FIND_LINKS"] == "/wheels", "where packages are stays the user's"
    assert {own[name] for name in ("https_proxy", "HTTPS_PROXY", "HTTP_PROXY")} == {
        "http://127.0.0.1:1"
    }
    for name in ("PIP_CACHE_DIR", "UV_CACHE_DIR", "XDG_CACHE_HOME", "PREFECT_HOME"):
        assert own[name].startswith(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("said", "source"),
    [
        (f"fetched {WHEEL}: 191.8 MB from pip's index", f"{WHEEL}, 191.8 MB, fetched"),
        (
            f"fetched {WHEEL}: nothing, its 191.8 MB lay in /wheels",
            f"{WHEEL}, 191.8 MB, from a folder or cache on this machine, not counted",
        ),
        ("fetched 142 MB for the image", None),
    ],
)
def test_source_of_torch_is_that_of_the_builds_own_words(said: str, source: str | None) -> None:
    assert torch_source(f"12:00:00 image {said}\n") == source


def test_disk_counts_a_file_once(tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(BODY)
    once = disk_bytes(tmp_path)
    (tmp_path / "linked").hardlink_to(tmp_path / "wheel")
    assert disk_bytes(tmp_path) == once >= len(BODY)


def test_table_has_a_line_per_step_and_their_sum() -> None:
    setup, both = table([STEP]).splitlines()[1:]
    assert " ".join(setup.split()) == "make setup 400.0 MB 2.0 MB 12 61 s 1.50 GB"
    assert both.split() == ["both", "400.0", "MB"]


def test_result_names_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "measure", lambda folder: ([STEP], None))
    output = tmp_path / "fetched.json"
    assert main(["--folder", str(tmp_path), "--output", str(output)]) == 0
    [cell] = json.loads(output.read_text())["cells"]
    assert cell["received_bytes_by_host"] == [390_000_000, 10_000_000]
    assert [path.name for path in tmp_path.iterdir()] == ["fetched.json"]
