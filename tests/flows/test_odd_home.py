"""A run of a user whose home folder is not writable, in the locale of cron."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from tests.flows.simulated_sweep import ledger, write_config

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow  # a server and a run of its own
def test_run_of_a_user_whose_home_cannot_be_made_needs_prefects_home_alone(
    simulated: Callable[..., Any], sweep_config: Callable[..., BenchmarkConfig], tmp_path: Path
) -> None:
    """As HOME=/nonexistent is to uid 65534; below /proc root can make no folder either. The locale
    is C, as in cron.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own |= {"HOME": "/proc/nobody", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    with simulated() as served:
        config = write_config(sweep_config(served, sweep={"node_counts": [1]}), tmp_path)

        reports = tmp_path / "reports"

        def run(**environment: str) -> subprocess.CompletedProcess[str]:
            command = [
                sys.executable,
                "-m",
                "nodesweep",
                "run",
                str(config),
                "--output",
                str(reports),
            ]
            return subprocess.run(
                command,
                cwd=REPOSITORY,
                env=own | environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )

        refused = run()
        assert (refused.returncode, ledger(served)) == (1, [])
        assert refused.stderr.splitlines()[-1].startswith("nodesweep: Prefect ")
        assert "/proc/nobody/" in refused.stderr.splitlines()[-1]
        done = run(PREFECT_HOME=str(tmp_path / "prefect"))
        assert done.returncode == 0, done.stderr
        assert ledger(served) == [(1, 1, "Completed")] and "report.html" in done.stdout
        assert (reports / "latest" / "report.html").is_file()
        assert "Traceback" not in done.stderr and "Warning" not in done.stderr
