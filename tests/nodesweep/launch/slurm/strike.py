"""Run nodesweep's command, and strike it at its first step at which nothing has struck it before.

    python -c "from tests.nodesweep.launch.slurm.strike import main; main()" KIND FOLDER SHARED …

A step is a command that submits, polls or cancels jobs, or a new file in the shared folder.
Polls are named after the jobs that are known to run and to have ended, so that one while the first
job runs is another step than one before its submission. FOLDER/struck has the steps so far, a line
each.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, get_args

from infra.local.tests.platform_client import wait_until
from nodesweep.scaling import names

Kind = Literal[
    "kill", "kill in sbatch", "sigint", "sigterm", "stop", "timeout", "sigint, kill", "nothing"
]  # fmt: skip
"""`kill in sbatch`: while sbatch submits the job; `stop`: by another process; `timeout`: the run's
timeout_hours pass; `sigint, kill`: while the interrupted run ends its jobs.
"""
KILL_PARENT = "kill-parent"
"""File next to the shared folder: sbatch kills the process that calls it."""
ASKED, GO = "asked", "go"
"""Files in FOLDER: a stop is asked for; the run may go on."""
_SECONDS = 600.0
"""That only a hang reaches."""
_WRITTEN = ("os.rename", "os.link")
"""Audit events of files that appear as a whole."""


class Limit:
    """A threading.Timer of the run's timeout_hours, which are over when a strike says so."""

    over: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self, seconds: float, end: Callable[[], None]) -> None:
        self._end = end

    def start(self) -> None:
        Limit.over = staticmethod(self._end)

    def cancel(self) -> None:
        Limit.over = staticmethod(lambda: None)


class Strikes:
    """An audit hook: Python calls it before each of the steps."""

    def __init__(self, kind: Kind, folder: Path, shared: Path) -> None:
        self._kind, self._folder, self._shared = kind, folder, shared
        self._is_ending = self._is_over = False
        self._struck = set((folder / "struck").read_text().splitlines())

    def __call__(self, event: str, arguments: Sequence[Any]) -> None:
        """Strike before a step that is new."""
        step = self._step(event, arguments)
        if step is None or self._is_over or self._kind == "nothing":
            return
        if self._kind == "sigint, kill" and not self._is_ending:
            if step.startswith("squeue, running: n"):
                self._is_ending = True
                os.kill(os.getpid(), signal.SIGINT)
        elif step not in self._struck and (
            self._kind != "kill in sbatch" or step.startswith("sbatch")
        ):
            self._is_over = True
            with (self._folder / "struck").open("a") as stream:
                stream.write(f"{step}\n")
            self._strike()

    def _step(self, event: str, arguments: Sequence[Any]) -> str | None:
        if event == "subprocess.Popen":
            command = arguments[1]
            name = os.path.basename(command[0])
            if name == "squeue":
                return f"squeue, running: {self._jobs(False)}, ended: {self._jobs(True)}"
            if name not in ("sbatch", "scancel"):
                return None
            return f"{name} {_job(Path(command[-1]).parent.name)}".strip()
        if event not in _WRITTEN:
            return None
        path = Path(os.fsdecode(arguments[1]))
        if path.name.startswith(".") or not path.is_relative_to(self._shared):
            return None
        if path.name == "owner.json":  # the heartbeat, by another thread
            return None
        if path.parent.name == "report" and path.name != names.REPORT_JSON:  # one of many
            return None
        return _step_of(path.relative_to(self._shared))

    def _jobs(self, have_ended: bool) -> str:
        """Return the points of the jobs that are known to have ended, or not to."""
        sent = self._shared.glob(f"{name_in(self._folder)}-*/job.json")
        jobs = [path.parent for path in sent]
        chosen = [job for job in jobs if (job / "ended.json").exists() == have_ended]
        return " ".join(sorted({_job(job.name) for job in chosen}))

    def _strike(self) -> None:
        match self._kind:
            case "kill" | "sigint, kill":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(_SECONDS)
            case "kill in sbatch":
                (self._shared.parent / KILL_PARENT).touch()
            case "sigint" | "sigterm":
                os.kill(os.getpid(), getattr(signal, self._kind.upper()))
            case "timeout":
                Limit.over()
            case "stop":
                (self._folder / ASKED).touch()
                wait_until((self._folder / GO).exists, _SECONDS)


def name_in(folder: Path) -> str:
    """Return the name of the benchmark that is struck in a folder."""
    return f"struck-{zlib.crc32(str(folder).encode()):08x}"


def _job(name: str) -> str:
    """Return the point of a job, without the attempt; "" for anything else."""
    key = names.parse_job_name(name)
    return "" if key is None else f"n{key.nodes}"


def _step_of(path: Path) -> str:
    """Return a file's step: job.sh n1, claims n2, config.json."""
    jobs = [job for part in path.parts if (job := _job(part.removesuffix(".json")))]
    if jobs:
        return f"{'claims' if 'claims' in path.parts else path.name} {jobs[0]}"
    return re.sub("[0-9a-f]{8,}", "…", path.name)


def main() -> None:
    """Become the command, whose arguments are the last ones of this program."""
    kind, folder, shared, *arguments = sys.argv[1:]
    assert kind in get_args(Kind)
    import nodesweep.cli.session
    import nodesweep.flows.stages.deadline
    import nodesweep.scaling.report.render
    import nodesweep.tasks.sweeps.stopping
    from nodesweep.cli.main import main as command

    # Slurm lists a job as soon as it has accepted it. Plots take seconds of CPU time.
    nodesweep.tasks.sweeps.stopping.SETTLE_SECONDS = 5.0
    nodesweep.scaling.report.render.draw_plots = lambda report: {}
    if kind == "timeout":  # a field of the form, which the command lacks
        run_flow = nodesweep.cli.session.run_flow
        nodesweep.cli.session.run_flow = partial(run_flow, timeout_hours=1.0)
        timers = SimpleNamespace(Event=threading.Event, Timer=Limit, TIMEOUT_MAX=math.inf)
        nodesweep.flows.stages.deadline.threading = timers  # type: ignore[assignment]
    sys.argv = ["nodesweep", *arguments]
    sys.addaudithook(Strikes(kind, Path(folder), Path(shared)))  # type: ignore[arg-type]
    command()
