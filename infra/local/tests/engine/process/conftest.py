"""An image store, and virtual environments that are copied rather than created."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
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


@pytest.fixture
def copied_environments(tmp_path_factory, monkeypatch):
    """Make builds copy the environment that the first build of all workers creates.

    Creating one takes several seconds of CPU time, most of them to compile pip. The copied one has
    the compiled pip of these tests' environment.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    command, made = BuildRun.command, shared / "environment"

    def run(self, phase, argv, environment, folder, lock_fd):
        if phase != "MAKE virtual environment":
            command(self, phase, argv, environment, folder, lock_fd)
            return
        with (shared / "environment-is-made").open("a+") as is_made:
            fcntl.flock(is_made, fcntl.LOCK_EX)
            if is_made.seek(0, os.SEEK_END):
                self.on_line(f"[{phase}]")
            else:
                shutil.rmtree(made, ignore_errors=True)  # left by a worker that was killed
                without_pip = [*argv[:-1], "--without-pip", str(made)]
                command(self, phase, without_pip, environment, folder, lock_fd)
                copy_pip(made)
                is_made.write("yes")
        installer._copy_venv(made, Path(argv[-1]))

    monkeypatch.setattr(BuildRun, "command", run)


def copy_pip(venv):
    """Copy the pip that these tests' environment has into another environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = venv / "lib" / version / "site-packages"
    for file in importlib.metadata.distribution("pip").files:
        if ".." not in file.parts:  # no script
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), target)
