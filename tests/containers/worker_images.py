"""The worker's image and a Postgres image, on a Debian built here because nothing can be pulled."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sagemaker_emulator.engine.container.cli import ContainerCli

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".nodesweep" / "worker-image"
WORKER_IMAGE, POSTGRES_IMAGE = (
    "localhost/nodesweep-worker:test",
    "localhost/nodesweep-worker-postgres:test",
)
_PYTHON_IMAGE = "localhost/nodesweep-worker-python:bookworm"
_PACKAGES = "python3,python3-venv,ca-certificates"
_MIRROR = "http://deb.debian.org/debian"
_BUILD_SECONDS = 900.0
_OFFLINE_PIP = "[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\n"


def build_images(cli: ContainerCli, revision: str) -> float:
    """Build both images, reusing cached layers; return the seconds the worker's took."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _python_image(cli)
        postgres = Path(__file__).with_name("worker_postgres")
        _build(cli, postgres / "Dockerfile", postgres, POSTGRES_IMAGE, "--network", "host")
        wheels, pip = _wheels(), CACHE / "pip.conf"
        pip.write_text(_OFFLINE_PIP)
        mounts = ("--volume", f"{wheels}:/wheels:ro", "--volume", f"{pip}:/etc/pip.conf:ro")
        began = time.monotonic()
        dockerfile = ROOT / "infra" / "worker" / "Dockerfile"
        _build(
            cli,
            dockerfile,
            ROOT,
            WORKER_IMAGE,
            *mounts,
            "--build-arg",
            f"SOURCE_REVISION={revision}",
        )
        return time.monotonic() - began


def _build(cli: ContainerCli, dockerfile: Path, context: Path, image: str, *options: str) -> None:
    """Build in Docker's format; the OCI format has no health check."""
    arguments = ("--format", "docker", "--file", str(dockerfile), "--tag", image)
    base = ("--build-arg", f"BASE_IMAGE={_PYTHON_IMAGE}")
    cli.call("build", *arguments, *base, *options, str(context), timeout_seconds=_BUILD_SECONDS)


def _python_image(cli: ContainerCli) -> None:
    """Import Debian 12 with its Python 3.11, a substitute for python:3.11-slim-bookworm."""
    if cli.call("images", "--quiet", _PYTHON_IMAGE).strip():
        return
    debs = CACHE / "debs"
    debs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root, archive = Path(folder) / "root", Path(folder) / "root.tar"
        made = [
            "debootstrap",
            "--variant=minbase",
            f"--cache-dir={debs}",
            f"--include={_PACKAGES}",
            "bookworm",
        ]
        _run(cli, [*made, str(root), _MIRROR])
        for name in (
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
        ):
            shutil.rmtree(root / name)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        _run(cli, ["tar", "-C", str(root), "-cf", str(archive), "."])
        cli.call("import", "--quiet", str(archive), _PYTHON_IMAGE, timeout_seconds=_BUILD_SECONDS)


def _wheels() -> Path:
    """Download the lock file's wheels with this machine's pip.

    Its settings stay out of the image.
    """
    lock = ROOT / "infra" / "worker" / "requirements.lock"
    folder = CACHE / f"wheels-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--require-hashes",
            "--no-deps",
        ]
        _run(
            None,
            [*command, "--only-binary=:all:", "--requirement", str(lock), "--dest", str(partial)],
        )
        partial.rename(folder)
    return folder


def _run(cli: ContainerCli | None, command: list[str]) -> None:
    environment = None if cli is None else cli.environment
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
