"""An image store, and virtual environments that are copied rather than created."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sagemaker_emulator.engine.process import installer
from sagemaker_emulator.engine.process.build_run import BuildRun
from sagemaker_emulator.engine.process.image_store import ProcessImageStore


@pytest.fixture
def store(tmp_path):
    """An empty image store."""
    return ProcessImageStore(tmp_path / "state")


@pytest.fixture(scope="session")
def environment_with_pip(tmp_path_factory):
    """A compiled environment from `python -m venv`, which takes several seconds of CPU time."""
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
    """Make builds copy that environment instead of creating one."""
    command = BuildRun.command

    def run(self, phase, argv, environment, folder, lock_fd):
        if phase != "MAKE virtual environment":
            command(self, phase, argv, environment, folder, lock_fd)
            return
        self.on_line(f"[{phase}]")
        installer._copy_venv(environment_with_pip, Path(argv[-1]))

    monkeypatch.setattr(BuildRun, "command", run)
