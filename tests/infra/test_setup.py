"""`make setup` reports its downloads, their time and the next step; a failure ends it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "infra" / "setup.sh"
LOCK = "click==8.0 \\\n    --hash=sha256:aa\nuv==0.13.8 \\\n    --hash=sha256:bb\n"
PYTHON = """#!/bin/bash
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
elif [ "$1 $2" = "-m pip" ]; then
    echo "pip: $(tr '\\n' ' ')" >>ran
    printf '%s\\n' "$UV" >"${0%/python}/uv"
    chmod +x "${0%/python}/uv"
fi
"""
UV = """#!/bin/bash
if [ "$1" = "--version" ]; then echo "uv 0.13.8 (x86_64)"; exit; fi
echo "uv: $*" >>ran
if [ "$2" = "sync" ]; then
    printf '%s\\n' "Downloading numpy (16.1MiB)" "Installed 2 packages in 1s" " + click==8.0" >&2
    exit "${SYNC_FAILS:-0}"
fi
"""


def set_up(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script in `folder`, where Python and uv only record their arguments."""
    python = folder / "python3.11"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (folder / "requirements.lock").write_text(LOCK)
    return subprocess.run(
        ["bash", SETUP, ".venv"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHON": str(python), "UV": UV, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_set_up_says_what_it_fetches_and_what_comes_next(tmp_path: Path) -> None:
    done = set_up(tmp_path)
    first, second, *_, before, last = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 packages" in first and "this downloads" in second
    assert "Fetching uv 0.13.8" in done.stdout and "Downloading numpy (16.1MiB)" in done.stdout
    assert "click" not in done.stdout, "not a line per package"
    assert before.startswith("Ready after ") and "`make run`" in before
    assert "nodesweep init" in last
    assert max(map(len, done.stdout.splitlines())) <= 80
    ran = (tmp_path / "ran").read_text()
    assert ran.startswith("pip: uv==0.13.8 \\     --hash=sha256:bb") and "click" not in ran


def test_set_up_keeps_the_uv_that_is_there(tmp_path: Path) -> None:
    set_up(tmp_path)
    (tmp_path / "ran").unlink()
    assert "Fetching" not in set_up(tmp_path).stdout
    assert "pip:" not in (tmp_path / "ran").read_text()


@pytest.mark.parametrize("code", ["1", "2"])
def test_failed_installation_ends_it(tmp_path: Path, code: str) -> None:
    done = set_up(tmp_path, SYNC_FAILS=code)
    assert str(done.returncode) == code
    assert "Ready" not in done.stdout and "Downloading numpy" in done.stdout
    assert "-e ." not in (tmp_path / "ran").read_text()
