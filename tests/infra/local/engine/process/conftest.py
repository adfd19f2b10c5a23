"""An image store, and environments that are copied rather than made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nodesweep.infra.local.engine.process import installer
from nodesweep.infra.local.engine.process.build_run import BuildRun
from nodesweep.infra.local.engine.process.image_store import ProcessImageStore


@pytest.fixture
def store(tmp_path):
    return ProcessImageStore(tmp_path / "state")


@pytest.fixture(scope="session")
def environment_with_pip(tmp_path_factory):
    """As `python -m venv` makes it in several seconds of CPU, compiled."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    subprocess.run(
        [folder / "bin" / "python", "-m", "compileall", "-q", folder / "lib"],
        check=True,
        timeout=300,
    )
    return folder


@pytest.fixture
def copied_environments(environment_with_pip, monkeypatch):
    """A build begins with a copy of that environment instead of making one like it."""
    command = BuildRun.command

    def run(self, phase, argv, environment, folder, lock_fd):
        if phase != "MAKE virtual environment":
            command(self, phase, argv, environment, folder, lock_fd)
            return
        self.on_line(f"[{phase}]")
        installer._copy_venv(environment_with_pip, Path(argv[-1]))

    monkeypatch.setattr(BuildRun, "command", run)
