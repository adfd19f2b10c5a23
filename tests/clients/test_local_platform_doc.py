"""The blocks of docs/local-platform.md run unchanged, one after the other, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ports import free_port
from sagemaker_emulator.engine.host.containment import Containment
from tests.clients.client_environment import client_python
from tests.clients.test_model_trainer import SDK

pytestmark = pytest.mark.slow

GUIDE = (Path(__file__).parents[2] / "docs" / "local-platform.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
SECONDS = 900.0  # for a machine that has much else to do


def as_script(port: int) -> str:
    """Join all blocks into one bash script, with a free port for the platform."""
    lines = ["set -e"]
    for language, text in BLOCKS:
        program = f"python - <<'END_OF_BLOCK'\n{text}END_OF_BLOCK"
        lines.append(text if language == "bash" else program)
    script = "\n".join(lines).replace("127.0.0.1:4570", f"127.0.0.1:{port}")
    start = "nodesweep local start"
    return script.replace(f"{start}\n", f"{start} --port {port} --owner-pid {os.getpid()}\n")


def test_every_block_runs(tmp_path: Path) -> None:
    if problem := Containment.find(tmp_path).opt_ml_problem:
        pytest.skip(f"no /opt/ml of a node's own on this machine: {problem}")
    python = client_python(*SDK)
    own = Path(sys.executable).parent
    environment = {
        "PATH": f"{python.parent}:{own}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "AWS_PAGER": "",
    }
    try:
        done = subprocess.run(
            ["bash", "-c", as_script(free_port())],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    finally:
        stop = [own / "nodesweep", "local", "stop"]
        subprocess.run(stop, cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "b'1,2\\n'" in done.stdout  # pyarrow
    for host in ("algo-1", "algo-2"):  # ModelTrainer
        assert f"node {host} [" in done.stdout
    assert done.stdout.rstrip().endswith("stopped")
