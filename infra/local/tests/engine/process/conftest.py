"""An image store, and virtual environments that are copied rather than created."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
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

    Creating one takes several seconds of CPU time, most of them to compile pip. The copied one
    links to the compiled pip of these tests' environment.
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
                link_pip(made)
                is_made.write("yes")
        installer._copy_venv(made, Path(argv[-1]))

    monkeypatch.setattr(BuildRun, "command", run)


def link_pip(venv):
    """Link the pip that these tests' environment has into another environment."""
    [packages] = venv.glob("lib/python3*/site-packages")
    pip = importlib.metadata.distribution("pip")
    for name in {file.parts[0] for file in pip.files} - {".."}:  # no script
        (packages / name).symlink_to(pip.locate_file(name))
