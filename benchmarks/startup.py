"""Measure start-up: `nodesweep --help`, `plan`, a run until its preflight, and a cached re-run.

    .venv/bin/python -m benchmarks.startup [--runs 5] [--output FILE.json]

Every command is a separate process, timed from its start. Its limit is a multiple of the time of
`python -c pass`, which runs before every command but first runs, so that the same limits hold on
slow or busy machines. A run is that of configs/local.yaml in its own folder, with a platform and a
Prefect server that the command starts.

- first run to preflight: from the start of `nodesweep run` until its event that the preflight
  begins, in a new folder without a platform and a Prefect database; Ctrl-C then ends the command.
- run to preflight: the same in a folder that has a platform and a Prefect database.
- cached re-run: `nodesweep run --resume SWEEP_ID --as-started` of a finished sweep, to the end of
  the process. The command shows the local report and starts neither platform nor Prefect.

The resumed sweep runs on the simulated engine, so the benchmark takes two minutes and needs no
training image. Exit code 1 if a multiple is above its limit.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.dated_result import store_result
from benchmarks.ports import free_port
from sagemaker_emulator.server.contract import ENGINE_FILE

REPOSITORY = Path(__file__).resolve().parents[1]
LIMITS = {
    "--help": 5.0,
    "plan": 15.0,
    "first run to preflight": 400.0,
    "run to preflight": 250.0,
    "cached re-run": 60.0,
}
"""Multiples of `python -c pass`; that of a first run is high because of Prefect's migrations."""
_Result = TypeVar("_Result")
_COMMAND_SECONDS = 300.0
_INTERRUPTED = 1
"""Exit code of a command that Ctrl-C ends."""


@dataclass(frozen=True)
class Cell:
    """Seconds of a command; `ratio` is its median as a multiple of `python -c pass`."""

    what: str
    limit_ratio: float
    ratio: float
    median_seconds: float
    runs_seconds: tuple[float, ...]

    @property
    def is_kept(self) -> bool:
        """True if the multiple is within its limit."""
        return self.ratio <= self.limit_ratio


class Folder:
    """A user's folder with a separate platform, reports and Prefect home."""

    def __init__(self, root: Path) -> None:
        self._root, self._state = root, root / "state"
        root.mkdir(exist_ok=True)
        # Without cached bytecode each command would compile the checkout, which users do only once.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT_", "AWS_")) and name != "PYTHONDONTWRITEBYTECODE"
        }
        self._environment = {
            **inherited,
            "PREFECT_HOME": str(root / "prefect"),
            "PYTHONPATH": str(REPOSITORY),
        }
        changes = {
            "platform.endpoint_url": f"http://127.0.0.1:{free_port()}",
            "platform.state_directory": str(self._state),
            "report.directory": str(root / "reports"),
            "training.max_runtime_seconds": "3600",  # instead of the preset's 600
        }
        settings = [
            word for name, value in changes.items() for word in ("--set", f"{name}={value}")
        ]
        self._words = ["run", "local", *settings, "--log-format", "json", "--verbose"]

    def seconds(self, *arguments: str) -> float:
        """Run a command and return its duration in seconds."""
        began = time.perf_counter()
        done = subprocess.run(
            self._nodesweep(arguments),
            cwd=self._root,
            env=self._environment,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        ended = time.perf_counter()
        _check(done.returncode, done.stderr.decode())
        return ended - began

    def run_to_preflight(self) -> float:
        """Start a run, end it at its preflight, and return the seconds until the preflight."""
        preflight = self._run(is_ended_early=True)[0]
        assert preflight is not None
        return preflight

    def make_sweep(self) -> None:
        """Run a sweep on the simulated engine to its end."""
        place = ["--state-dir", str(self._state)]
        engine = ["--engine", "simulated", "--port", "0", "--owner-pid", str(os.getpid())]
        self._platform("start", *place, *engine)
        try:
            self._run()
        finally:
            self._platform("stop", *place)
            (self._state / ENGINE_FILE).unlink()  # so that the next start may use another engine

    def resume(self) -> float:
        """Resume the finished sweep, and return the seconds until the process ends."""
        reports = (self._root / "reports").glob("local-*/report.json")
        [sweep] = [path.parent.name for path in reports]
        return self._run("--resume", sweep, "--as-started")[1]

    def _run(self, *arguments: str, is_ended_early: bool = False) -> tuple[float | None, float]:
        """Run a sweep; return the seconds until its preflight (None if it has none) and its end."""
        began, preflight = time.perf_counter(), None
        lines = []
        with subprocess.Popen(
            self._nodesweep([*self._words, *arguments]),
            cwd=self._root,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if preflight is None and '"stage": "preflight"' in line:
                    preflight = time.perf_counter() - began
                    if is_ended_early:
                        process.send_signal(signal.SIGINT)
            process.wait(_COMMAND_SECONDS)
        ended = time.perf_counter() - began
        if not (is_ended_early and process.returncode == _INTERRUPTED):
            _check(process.returncode, "".join(lines))
        return preflight, ended

    def _platform(self, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "sagemaker_emulator", *arguments]
        subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=True,
        )

    @staticmethod
    def _nodesweep(arguments: Sequence[str]) -> list[str]:
        return [str(Path(sys.executable).with_name("nodesweep")), *arguments]


def measure(runs: int) -> tuple[float, list[Cell]]:
    """Run each command `runs` times; return the seconds of `python -c pass`, and the results."""
    empty: list[float] = []
    with tempfile.TemporaryDirectory(prefix="nodesweep-startup-") as root:
        folder = Folder(Path(root) / "used")
        new = (Folder(Path(root) / f"new-{number}") for number in range(runs))
        seconds: dict[str, list[float]] = {
            "--help": _times(runs, lambda: folder.seconds("--help"), empty),
            "plan": _times(runs, lambda: folder.seconds("plan", "local"), empty),
            "first run to preflight": [each.run_to_preflight() for each in new],
        }
        folder.make_sweep()
        seconds["cached re-run"] = _times(runs, folder.resume, empty)
        seconds["run to preflight"] = _times(runs, folder.run_to_preflight, empty)
    one = median(empty)
    return round(one, 4), [
        Cell(
            what,
            LIMITS[what],
            round(median(each) / one, 1),
            round(median(each), 3),
            tuple(round(run, 3) for run in each),
        )
        for what, each in seconds.items()
    ]


def table(empty_seconds: float, cells: Sequence[Cell]) -> str:
    """Format each median in seconds and as a multiple of `python -c pass`, with its limit."""
    lines = [f"python -c pass: {empty_seconds:.3f} s"]
    lines += [f"{'':<24} {'ratio':>7} {'limit':>7} {'median':>8}   each run (s)"]
    lines += [
        f"{cell.what:<24} {cell.ratio:>7.1f} {cell.limit_ratio:>7.0f} {cell.median_seconds:>8.2f}"
        f"   {' '.join(f'{one:.2f}' for one in cell.runs_seconds)}"
        f"{'' if cell.is_kept else '   MISSED'}"
        for cell in cells
    ]
    return "\n".join(lines)


def _times(runs: int, call: Callable[[], _Result], empty: list[float]) -> list[_Result]:
    """Return the results of repeated calls, after a discarded call that warms the caches.

    Append the time of an empty program, run before each call, to `empty`.
    """
    call()
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        empty.append(time.perf_counter() - began)
        found.append(call())
    return found


def _check(exit_code: int, said: str) -> None:
    if exit_code != 0:
        raise RuntimeError(f"the command ended with exit code {exit_code}:\n{said}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5, help="runs per command (5)")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    arguments = parser.parse_args(argv)
    started = time.perf_counter()
    empty_seconds, cells = measure(arguments.runs)
    print(table(empty_seconds, cells))
    store_result(
        arguments.output,
        started,
        cells,
        runs=arguments.runs,
        empty_seconds=empty_seconds,
        cores=os.cpu_count(),
        load_average_1_minute=os.getloadavg()[0],
        versions={name: version(name) for name in ("boto3", "prefect", "pydantic")},
    )
    return 0 if all(cell.is_kept for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
