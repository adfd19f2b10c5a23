"""The source of torch wheels. Tests use indexes on loopback, never PyTorch's index."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from infra.local.tests.engine.process.image_builds import build, hash_of, write_wheel
from sagemaker_emulator.engine.process import installer, torch_wheel
from sagemaker_emulator.engine.process.download_lines import DownloadSummary
from sagemaker_emulator.engine.process.image_store import ProcessImageStore

pytestmark = pytest.mark.usefixtures("copied_environments")
DOCKERFILE = (
    "FROM python:3.11\nCOPY requirements.txt /tmp/r.txt\nRUN pip install --no-deps -r /tmp/r.txt"
)


class Index:
    """Serves wheels in folders as indexes (PEP 691): usual/ is PyPI, cpu/ is PyTorch's index."""

    def __init__(self, folder: Path) -> None:
        self.usual, self.cpu, self.by_hand = (folder / name for name in ("usual", "cpu", "hand"))
        for each in (self.usual, self.cpu, self.by_hand):
            each.mkdir()
        self.hangs = False
        """If True, PyTorch's index accepts calls but does not respond until the test has ended."""
        self.is_over = threading.Event()
        self.asked: list[str] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, call: BaseHTTPRequestHandler) -> None:
        path = unquote(call.path)
        self.asked.append(path)
        _, place, *rest = path.split("/")
        if place == "cpu" and self.hangs:
            self.is_over.wait()
            return
        folder = {"usual": self.usual, "cpu": self.cpu}[place]
        if rest[-1]:
            self._send(call, 200, "application/octet-stream", (folder / rest[-1]).read_bytes())
            return
        wheels = sorted(folder.glob(f"{rest[0].replace('-', '_')}-*.whl"))
        files = [
            {
                "filename": wheel.name,
                "url": f"{self.url}/{place}/files/{wheel.name}",
                "size": wheel.stat().st_size,
                "hashes": {"sha256": hash_of(wheel).rpartition(":")[2]},
            }
            for wheel in wheels
        ]
        page = {"meta": {"api-version": "1.0"}, "name": rest[0], "files": files}
        kind = "application/vnd.pypi.simple.v1+json"
        self._send(call, 200 if wheels else 404, kind, json.dumps(page).encode())

    @staticmethod
    def _send(call: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
        call.send_response(status)
        call.send_header("Content-Type", kind)
        call.send_header("Content-Length", str(len(body)))
        call.end_headers()
        if call.command == "GET":
            call.wfile.write(body)

    def close(self) -> None:
        self.is_over.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Fill the indexes: PyPI has a torch that requires a CUDA library, PyTorch's index is empty."""
    index = Index(tmp_path)
    write_wheel(index.usual, "torch", "1.0", "Requires-Dist: nvidia-tiny==2.0\n")
    write_wheel(index.usual, "nvidia_tiny", "2.0")
    monkeypatch.setattr(torch_wheel, "CPU_INDEX", f"{index.url}/cpu")
    # Only an index that hangs exceeds this timeout.
    monkeypatch.setattr(torch_wheel, "IMPATIENT", ("--timeout", "300", "--retries", "1"))
    yield index
    index.close()


@pytest.fixture
def hang(index: Index, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return hang(), which lets PyTorch's index hang; the build notices within seconds."""

    def begin() -> None:
        index.hangs = True
        monkeypatch.setattr(torch_wheel, "IMPATIENT", ("--timeout", "1", "--retries", "1"))

    return begin


@pytest.fixture
def lines() -> list[str]:
    """Return all lines that the build of `install` has logged."""
    return []


@pytest.fixture
def install(
    index: Index, tmp_path: Path, store: ProcessImageStore, lines: list[str]
) -> Callable[..., tuple[str, list[str]]]:
    """Return install(wheel, …), which builds an image that locks these wheels of torch 1.0.

    `more` continues the Dockerfile's RUN. The result is the version of the installed torch, and the
    lines of the build's log.
    """

    def make(*locked: Path, more: str = "") -> tuple[str, list[str]]:
        context = tmp_path / "context"
        context.mkdir()
        (context / "Dockerfile").write_text(f"{DOCKERFILE}{more}\n")
        hashes = "".join(f" {hash_of(wheel)}" for wheel in locked)
        (context / "requirements.txt").write_text(f"torch==1.0{hashes}\n")
        settings = {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"{index.url}/usual",
            "PIP_FIND_LINKS": str(index.by_hand),
            "PIP_NO_CACHE_DIR": "1",
            "UV_DEFAULT_INDEX": f"{index.url}/usual",
            "UV_NO_CACHE": "1",
        }
        build(store, context, on_line=lines.append, **settings)
        python = str(store.resolve("tiny:1")) + "/venv/bin/python"
        code = "import torch; print(torch.version, end='')"
        version = subprocess.check_output([python, "-c", code], text=True)
        return version, [line for line in lines if line.startswith(("[NOTE]", "[FETCHED]"))]

    return make


def test_the_wheel_of_the_cpu_index_is_taken_and_its_bytes_are_said(
    index: Index,
    install: Callable[..., tuple[str, list[str]]],
    lines: list[str],
    store: ProcessImageStore,
) -> None:
    cpu = write_wheel(index.cpu, "torch", "1.0+cpu")
    usual = index.usual / "torch-1.0-py3-none-any.whl"
    version, told = install(usual, cpu, more=" && pip install torch")
    assert version == "1.0+cpu"
    first, second = told
    assert first == f"[FETCHED] {cpu.name}: 0.0 MB from {index.url}/cpu/files/"
    assert second.startswith("[FETCHED] 0.0 MB ") and "1 MiB" in second
    assert not [path for path in index.asked if path.endswith("nvidia-tiny/")]
    assert "[INSTALL torch with uv]" in lines and "[INSTALL torch]" not in lines
    assert not any(line.startswith("uv could") for line in lines)
    assert not list(store._venvs.glob("*/torch-download"))


def test_a_folder_will_do_where_the_cpu_index_does_not_answer_and_pip_where_uv_cant(
    index: Index,
    install: Callable[..., tuple[str, list[str]]],
    hang: Callable[[], None],
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hang()
    monkeypatch.setattr(installer, "_uv", lambda: ["/bin/false"])
    cpu = write_wheel(index.by_hand, "torch", "1.0+cpu")
    version, told = install(cpu)
    assert version == "1.0+cpu"
    first, second = told
    assert (
        first.startswith(f"[FETCHED] {cpu.name}: not downloaded, ") and str(index.by_hand) in first
    )
    assert second.startswith("[FETCHED] nothing ")
    assert "[INSTALL torch with uv]" in lines and "[INSTALL torch]" in lines
    assert any(line.startswith("uv could") for line in lines)


@pytest.mark.parametrize(
    ("hangs", "why"), [(True, "does not respond"), (False, "has none that matches")]
)
def test_the_wheel_with_cuda_is_named_with_its_size_before_it_is_fetched(
    index: Index,
    install: Callable[..., tuple[str, list[str]]],
    hang: Callable[[], None],
    hangs: bool,
    why: str,
) -> None:
    if hangs:
        hang()
    usual = index.usual / "torch-1.0-py3-none-any.whl"
    version, told = install(usual)
    assert version == "1.0", "a first run that refuses would be worse"
    note, *fetched = told
    assert f"torch==1.0 was found: {index.url}/cpu {why}" in note
    assert "CUDA" in note and "0.0 MB in 2 packages" in note
    assert "export PIP_FIND_LINKS=FOLDER" in note
    assert fetched[0] == f"[FETCHED] {usual.name}: 0.0 MB from {index.url}/usual/files/"


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("torch==2.13.0", "torch==2.13.0+cpu"),
        ("torch == 2.13.0 ; python_version > '3'", "torch==2.13.0+cpu ; python_version > '3'"),
        ("torch==2.13.0+cu126", "torch==2.13.0+cu126"),
        ("torch==2.*", "torch==2.*"),
        ("torch>=2.4", "torch>=2.4"),
        ("torchvision", "torchvision"),
    ],
)
def test_the_cpu_build_is_asked_for_where_the_version_is_exact(asked: str, first: str) -> None:
    assert torch_wheel._without_cuda(asked) == first


def test_bytes_are_read_off_what_pip_and_uv_say(tmp_path: Path) -> None:
    heard: list[str] = []
    fetched = DownloadSummary(heard.append)
    lines = [
        "Collecting torch==2.13.0+cpu",
        "  Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl.metadata (29 kB)",
        "  Downloading https://example.org/whl/cpu/torch-2.13.0%2Bcpu-cp311.whl (191.8 MB)",
        "Downloading numpy (16.0MiB)",
        " Downloaded numpy",
        "  Using cached six-1.17.0-py2.py3-none-any.whl (11 kB)",
    ]
    for line in lines:
        fetched.feed(line)
    assert heard == lines
    assert fetched.bytes_by_file == {
        "torch-2.13.0+cpu-cp311.whl": 191_800_000, "numpy": 16 * 1024**2
    }  # fmt: skip
    assert fetched.total_line("the image").startswith("[FETCHED] 208.6 MB ")
    for name, fact in {
        "torch-2.13.0+cpu-cp311.whl": "0.0 MB from https://example.org/whl/cpu/",
        "six-1.17.0-py2.py3-none-any.whl": "cache",
    }.items():
        (tmp_path / name).write_bytes(b"x")
        words = fetched.wheel_line(tmp_path / name)
        assert words.startswith(f"[FETCHED] {name}: ") and fact in words


def test_a_layer_with_torchvision_has_the_one_of_the_cpu_index(
    index: Index, install: Callable[..., tuple[str, list[str]]], store: ProcessImageStore
) -> None:
    """torchvision from PyPI is compiled for torch with CUDA, and can't be imported with others."""
    cpu = write_wheel(index.cpu, "torch", "1.0+cpu")
    for folder, version in ((index.usual, "1.0"), (index.cpu, "1.0+cpu")):
        write_wheel(folder, "torchvision", version, "Requires-Dist: torch==1.0\n")
    install(cpu)
    layer = index.usual.parent / "layer"
    layer.mkdir()
    (layer / "requirements.txt").write_text("torchvision\n")
    digest = store.images()[0][2]
    (layer / "Dockerfile").write_text(
        f"FROM 123456789012.dkr.ecr.us-east-1.amazonaws.com/tiny@{digest}\n"
        "COPY requirements.txt /opt/packages/requirements.txt\n"
        "RUN pip list --format=freeze | sed -nE '/^torch==/p' > /opt/packages/kept.txt\n"
        "RUN pip install -c /opt/packages/kept.txt -r /opt/packages/requirements.txt\n"
    )
    build(store, layer, "2", PIP_CONFIG_FILE="/dev/null", PIP_INDEX_URL=f"{index.url}/usual")
    python = str(store.resolve("tiny:2")) + "/venv/bin/python"
    code = "import torchvision; print(torchvision.version, end='')"
    assert subprocess.check_output([python, "-c", code], text=True) == "1.0+cpu"
