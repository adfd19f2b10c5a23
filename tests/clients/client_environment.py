"""Cached virtual environments of third-party clients, each created once by uv."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[2] / ".nodesweep" / "tests" / "clients"
_INSTALL_SECONDS = 480.0


def client_python(*requirements: str) -> Path:
    """Return the Python of an environment with these packages.

    The environment is keyed by its requirements and this Python. The test fails with the reason if
    they can't be installed.
    """

    def make(folder: Path, python: Path) -> None:
        uv("venv", "--clear", "--python", sys.executable, str(folder))
        uv("pip", "install", "--python", str(python), *requirements)

    return kept_environment([sys.version, *requirements], make)


def kept_environment(wanted: Sequence[str], make: Callable[[Path, Path], None]) -> Path:
    """Return the Python of a cached environment.

    Args:
        wanted: Key of the environment.
        make: Creates a missing environment, given its folder and the path of its Python.
    """
    name = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:16]
    folder = _FOLDER / name
    python, complete = folder / "bin" / "python", folder / "complete"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # against tests running in parallel
        if not complete.exists():
            make(folder, python)
            complete.touch()
    return python


def uv(*arguments: str) -> None:
    """Run uv; the test fails with its output if it fails."""
    install(str(Path(sys.executable).with_name("uv")), "--quiet", *arguments)


def install(*command: str) -> None:
    """Run one step of an installation; the test fails with its output if it fails."""
    step = " ".join(command[:4])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{step} took longer than {_INSTALL_SECONDS:g} s")
    if done.returncode != 0:
        pytest.fail(f"{step} failed: {(done.stderr.strip() or done.stdout.strip())[-500:]}")


def client_variables(endpoint: str, state_dir: Path, home: Path, **more: str) -> dict[str, str]:
    """Return the variables that `nodesweep local start` prints, and nothing else of this process.

    A separate home folder isolates the client's caches, settings, and logins.
    """
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SHARED_CREDENTIALS_FILE": str(state_dir / "aws-credentials"),
        **more,
    }


def run_client(
    python: Path,
    program: Path,
    *arguments: str,
    variables: dict[str, str],
    seconds: float,
) -> str:
    """Run a program and return its output; the test fails with it if the program fails."""
    done = subprocess.run(
        [str(python), str(program), *arguments],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout
