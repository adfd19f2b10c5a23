"""Virtual environments of other people's clients: each made once, by uv, and kept outside git."""

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
    """Python of an environment with these packages.

    The test fails, with the reason, where they can't be had. The environment is named by what
    is in it: other requirements, or another Python, make another one.
    """

    def make(folder: Path, python: Path) -> None:
        uv("venv", "--clear", "--python", sys.executable, str(folder))
        uv("pip", "install", "--python", str(python), *requirements)

    return kept_environment([sys.version, *requirements], make)


def kept_environment(wanted: Sequence[str], make: Callable[[Path, Path], None]) -> Path:
    """Python of the environment of what is `wanted`; where there is none yet, `make` makes it in
    the folder that it is given, beside the path that its Python is to have.
    """
    name = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:16]
    folder = _FOLDER / name
    python, complete = folder / "bin" / "python", folder / "complete"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # against tests that run beside this one
        if not complete.exists():
            make(folder, python)
            complete.touch()
    return python


def uv(*arguments: str) -> None:
    """The test fails, with the reason, where uv does."""
    install(str(Path(sys.executable).with_name("uv")), "--quiet", *arguments)


def install(*command: str) -> None:
    """Run a step of making an environment; the test fails, with the reason, where it does."""
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
    """What `nodesweep local start` tells a user to export, and nothing else of this process.

    Clients have caches, settings and log-ins in a home folder of their own.
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
    """What the program printed on both streams; the test fails with it where the program does."""
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
