"""Count the bytes that `make setup` and `make run` download on a machine with empty caches.

    .venv/bin/python -m benchmarks.local_platform.fetched [--folder FOLDER] [--output FILE.json]

The last commit is cloned into an empty folder below FOLDER (default: the system's temporary
folder), where uv and pip have empty caches; the rest of their configuration is the user's. They
reach the network through a counting proxy: the total consists of files, index pages and about 1% of
TLS. Data read from this machine's folders or another cache is not counted, so the source of PyTorch
is reported too. It takes as long as the downloads, and about three minutes for the sweep; the
folder is deleted at the end.

Hosts are printed, not stored. Exit code 1 if something failed.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.dated_result import store_result

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = ("make setup", "make run")
_STEP_SECONDS = 3600.0
_CONNECT_SECONDS = 60.0
_IDLE_SECONDS = 600.0
_AT_ONCE = 1 << 16
_MOST_OF_HEAD = 1 << 16
_TORCH = re.compile(
    r"(?P<wheel>torch-\S+\.whl): (?P<lay_here>nothing, its )?(?P<size>[\d.]+ [MG]B)"
)


@dataclass(frozen=True)
class Step:
    """One command, with the bytes received and sent."""

    command: str
    received_bytes: int
    sent_bytes: int
    received_bytes_by_host: tuple[int, ...]
    connections: int
    seconds: float
    disk_bytes: int
    """Disk usage of the folder afterwards, including caches."""


class CountingProxy:
    """An HTTP proxy on loopback while entered; supports CONNECT and plain requests."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        """Bytes by host, as in `sent`."""
        self.sent: Counter[str] = Counter()
        self.connections = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> CountingProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def note_connection(self) -> None:
        """Count a connection."""
        with self._lock:
            self.connections += 1

    def add_bytes(self, host: str, received: int = 0, sent: int = 0) -> None:
        """Count bytes by host."""
        with self._lock:
            self.received[host] += received
            self.sent[host] += sent

    def reset(self) -> None:
        """Restart counting from zero."""
        with self._lock:
            self.received.clear()
            self.sent.clear()
            self.connections = 0


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: CountingProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections closed by their client."""


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Serve a tunnel, or one HTTP request, after which the connection closes."""
        head = self._read_head()
        line, _, rest = head.partition(b"\r\n")
        method, target, *_ = line.decode("latin-1").split(" ")
        is_tunnel = method == "CONNECT"
        place = urlsplit(f"//{target}" if is_tunnel else target)
        host = place.hostname or ""
        port = place.port or (443 if is_tunnel else 80)
        try:
            upstream = socket.create_connection((host, port), _CONNECT_SECONDS)
        except OSError:
            self.request.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        self.server.proxy.note_connection()
        with upstream:
            if is_tunnel:
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = place.path or "/"
                query = f"?{place.query}" if place.query else ""
                request = f"{method} {path}{query} HTTP/1.1\r\nConnection: close\r\n"
                sent = request.encode("latin-1") + _without_connection(rest)
                upstream.sendall(sent)
                self.server.proxy.add_bytes(host, sent=len(sent))
            self._hand_on(host, upstream)

    def _read_head(self) -> bytes:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _MOST_OF_HEAD:
            more = self.request.recv(_AT_ONCE)
            if not more:
                break
            head += more
        return head

    def _hand_on(self, host: str, upstream: socket.socket) -> None:
        """Forward in both directions until one side ends, or nothing arrives for ten minutes."""
        with suppress(OSError):
            while ready := select.select([self.request, upstream], [], [], _IDLE_SECONDS)[0]:
                for one in ready:
                    data = one.recv(_AT_ONCE)
                    if not data:
                        return
                    if one is upstream:
                        self.server.proxy.add_bytes(host, received=len(data))
                        self.request.sendall(data)
                    else:
                        self.server.proxy.add_bytes(host, sent=len(data))
                        upstream.sendall(data)


def _without_connection(rest: bytes) -> bytes:
    """Return a request's headers and body without connection headers."""
    lines, end, body = rest.partition(b"\r\n\r\n")
    kept = [
        line
        for line in lines.split(b"\r\n")
        if line.partition(b":")[0].lower() not in (b"connection", b"proxy-connection")
    ]
    return b"\r\n".join(kept) + end + body


def own_environment(folder: Path, proxy_url: str) -> dict[str, str]:
    """Return the user's environment with empty caches and homes, proxied except for loopback."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "AWS_")) and name != "VIRTUAL_ENV"
    }
    places = {"XDG_CACHE_HOME": "cache", "UV_CACHE_DIR": "cache/uv", "PIP_CACHE_DIR": "cache/pip"}
    proxies = {
        spelled: proxy_url
        for name in ("HTTP_PROXY", "HTTPS_PROXY")
        for spelled in (name, name.lower())
    }
    return {
        **kept,
        **{name: str(folder / place) for name, place in places.items()},
        "PREFECT_HOME": str(folder / "prefect"),
        **proxies,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def torch_source(said: str) -> str | None:
    """Return name, size and source of PyTorch's wheel from an image build's output, or None."""
    found = _TORCH.search(said)
    if found is None:
        return None
    how = "from a folder or cache on this machine, not counted" if found["lay_here"] else "fetched"
    return f"{found['wheel']}, {found['size']}, {how}"


def disk_bytes(folder: Path) -> int:
    """Return the disk usage of the folder's files; hard links count once."""
    blocks = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        blocks[state.st_dev, state.st_ino] = state.st_blocks
    return 512 * sum(blocks.values())


def measure(folder: Path) -> tuple[list[Step], str | None]:
    """Execute and measure the steps; return them and the source of PyTorch.

    Raises:
        CalledProcessError: A step fails.
    """
    clone = folder / "nodesweep"
    quiet = ["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(clone)]
    subprocess.run(quiet, check=True)
    steps = []
    with CountingProxy() as proxy:
        environment = own_environment(folder, proxy.url)
        for command in STEPS:
            proxy.reset()
            began = time.perf_counter()
            subprocess.run(
                command.split(), cwd=clone, env=environment, timeout=_STEP_SECONDS, check=True
            )
            seconds = time.perf_counter() - began
            for host, count in proxy.received.most_common():
                print(f"{command}: {count / 1e6:.1f} MB from {host}", flush=True)
            step = Step(
                command,
                proxy.received.total(),
                proxy.sent.total(),
                tuple(count for _, count in proxy.received.most_common()),
                proxy.connections,
                round(seconds, 1),
                disk_bytes(folder),
            )
            steps.append(step)
    logs = "".join(path.read_text() for path in clone.glob("reports/*/run.log"))
    return steps, torch_source(logs)


def table(steps: Sequence[Step]) -> str:
    """Return a line per step, and the total."""
    lines = [
        f"{'':<12} {'received':>10} {'sent':>8} {'connections':>12} {'time':>8} {'on disk':>9}"
    ]
    lines += [
        f"{step.command:<12} {step.received_bytes / 1e6:>7.1f} MB {step.sent_bytes / 1e6:>5.1f} MB "
        f"{step.connections:>12} {step.seconds:>6.0f} s {step.disk_bytes / 1e9:>6.2f} GB"
        for step in steps
    ]
    total = sum(step.received_bytes for step in steps)
    return "\n".join([*lines, f"{'both':<12} {total / 1e6:>7.1f} MB"])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="where to create the temporary folder")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    arguments = parser.parse_args(argv)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nodesweep-fetched-", dir=arguments.folder) as folder:
        try:
            steps, torch = measure(Path(folder))
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            return 1
    print(table(steps))
    print(f"PyTorch: {torch or 'not reported by the build'}")
    store_result(
        arguments.output,
        started,
        steps,
        torch=torch,
        cores=os.cpu_count(),
        is_root=os.geteuid() == 0,
        versions={name: version(name) for name in ("pip", "uv")},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
