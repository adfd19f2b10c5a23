"""The lines with which `nodesweep local start` directs clients to the platform run unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

OWN = Path(sys.executable).parent
SECONDS = 600.0  # for a machine that has much else to do


def test_lines_that_start_prints(tmp_path: Path) -> None:
    environment = {"PATH": f"{OWN}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    try:
        started = run(f"nodesweep local start --port 0 --owner-pid {os.getpid()}")
        assert started.returncode == 0, started.stderr
        lines = started.stderr.splitlines()
        commands = [line.strip() for line in lines if line.startswith(("export ", "  "))]
        done = run("\n".join(commands))
    finally:
        run("nodesweep local stop")
    assert done.returncode == 0, done.stderr
    assert len(commands) == 5
    assert lines[-1].endswith("docs/local-platform.md")
    assert (
        done.stdout.count("TrainingJobSummaries") == 2
    )  # the CLI's and boto3's; the SDK's is empty
