"""Start a cluster on this machine and run examples/slurm on it: `make run-slurm`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.nodesweep.launch.slurm.cluster import running_cluster

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "slurm" / "slurm.yaml"


def main() -> int:
    """Run the sweep, and return its exit code."""
    try:
        with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder), 100) as cluster:
            place = f"platform.folder={cluster.shared}"
            command = [sys.executable, "-m", "nodesweep", "run", str(EXAMPLE), "--set", place]
            return subprocess.run(command, check=False).returncode
    except pytest.skip.Exception as reason:
        print(reason.msg, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
