"""Engines with tiny images, whose `train` is a script without toolkit or torch."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sagemaker_emulator.engine.host.process_tree import Membership
from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.engine.run.job_run import JobRun, RunTimes
from sagemaker_emulator.interfaces import JobSpec, Node, RunResult

once = pytest.mark.parametrize("bench", ["contained"], indirect=True)
"""Marks tests of behavior that is the same with and without namespaces."""
PROLOGUE = """
import json, os, pathlib, signal, socket, subprocess, sys, time
ml = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
resources = json.loads((ml / "input/config/resourceconfig.json").read_text())
host = os.environ["NODESWEEP_NODE"].split("/")[1]
def fail(text, code=1):
    (ml / "output/failure").write_text(text)
    sys.exit(code)
"""
HANG_SECONDS = 300.0
"""A limit that only a hang exceeds, even on a slow machine."""
TIMES = RunTimes(
    failure_grace_seconds=1.0,
    misleading_failure_grace_seconds=3.0,
    failure_term_seconds=0.5,
    stop_term_seconds=1.5,
)


@dataclass(frozen=True)
class OneImage:
    """An image store with one image."""

    folder: Path

    def resolve(self, image_uri: str) -> Path | None:
        """Return the folder of the image, or None if the URI contains "missing"."""
        return None if "missing" in image_uri else self.folder

    def images(self) -> list[tuple[str, str, str]]:
        """Return an empty list."""
        return []


@dataclass
class Bench:
    """An engine, its image, and the lines that its nodes have printed."""

    engine: ProcessEngine
    image: Path
    job: JobSpec
    lines: list[tuple[str, str]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def program(self, source: str) -> None:
        """Set the image's `train`."""
        write_train(self.image, source)

    def wait(self, **seconds: float) -> None:
        """Change fields of RunTimes. With HANG_SECONDS, programs have time to finish."""
        self.engine._times = replace(self.engine._times, **seconds)

    def run(
        self,
        nodes: int = 1,
        seconds: float = HANG_SECONDS,
        on_line: Callable[..., None] | None = None,
        **job,
    ) -> RunResult:
        """Run a job and return its result."""
        spec = replace(self.job, instance_count=nodes, **job)
        self.nodes: list[Node] = list(self.engine.prepare(spec))
        return self.engine.run(spec, self.nodes, on_line or self.note, self.stop, seconds)

    def note(self, host: str, text: str, _milliseconds: int) -> None:
        """Record a line."""
        self.lines.append((host, text))

    def stop_on(self, word: str) -> Callable[[str, str, int], None]:
        """Return a line sink that stops the job at a line with this word."""

        def on_line(host: str, text: str, milliseconds: int) -> None:
            self.note(host, text, milliseconds)
            if word in text:
                self.stop.set()

        return on_line

    def said(self, host: str) -> list[str]:
        """Return the lines that the program of a node has printed."""
        return [
            text for who, text in self.lines if who == host and not text.startswith("[platform]")
        ]

    def alive(self) -> set[int]:
        """Return the PIDs of the engine's live processes."""
        return Membership(state_id=self.engine._state_id).members()


END_OF_MEASUREMENT = """
while not (boot / "measured").exists(): time.sleep(0.01)
"""
"""Source of a node that ends only after `tell_end_of_measurement` has reported the last reading."""


def tell_end_of_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the file `measured` to the nodes' boot folders once a run has lifted their quota."""
    lift_quota = JobRun._lift_quota

    def lift(run: JobRun) -> None:
        lift_quota(run)
        for folder in (run.boot_folders or {}).values():
            (folder / "measured").touch()

    monkeypatch.setattr(JobRun, "_lift_quota", lift)


def write_train(image: Path, source: str) -> None:
    """Write a script as the image's `train`."""
    train = image / "venv" / "bin" / "train"
    train.write_text(f"#!{sys.executable} -ISu\n{PROLOGUE}\n{textwrap.dedent(source)}")
    train.chmod(0o755)


def write_image(folder: Path, **environment: str) -> Path:
    """Create an image folder and return it."""
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print('trained')\n")
    (folder / "image.json").write_text(json.dumps({"environment": environment}))
    return folder


def add_environment(image: Path) -> None:
    """Add an empty virtual environment, for jobs with an entry point in the request."""
    venv = image / "venv"
    (venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    (venv / "bin" / "python").symlink_to(Path(sys.executable).resolve())
