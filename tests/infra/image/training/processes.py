"""Training processes for the tests, in the image's Python."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.ports import free_port
from tests.processes.warm_process import Forked, WarmProcess, warm_python

IMAGE = Path(__file__).resolve().parents[4] / "infra" / "image"
TRAIN = IMAGE / "train.py"
DEADLINE_SECONDS = 900.0
"""That only a hang reaches."""
_IMPORTS = f"""
import sys
sys.path[0] = {str(IMAGE)!r}
from training.imports import import_lightning
import_lightning()
import training.run
"""
_FORKED = f"""
import json, os, runpy, sys
variables, *arguments = sys.argv[1:]
os.environ.clear()
os.environ.update(json.loads(variables))
sys.argv = [{str(TRAIN)!r}, *arguments]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@contextmanager
def warm_training(python: str) -> Iterator[WarmProcess]:
    """Yield a process that has imported what train.py imports, which takes 3 s of CPU time."""
    with warm_python(python, _IMPORTS, _inherited()) as process:
        yield process


def _inherited() -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SM_", "MASTER_", "OMPI_", "PYTHON"))
    }
    return {**inherited, "OMP_NUM_THREADS": "1"}


class Trainings:
    """Starts training processes in a clean SageMaker environment and kills leftovers.

    Args:
        python: The image's Python.
        data: The training channel.
        folder: The folder of the nodes' output.
        warm: warm_training() of this Python, for `fork`.
    """

    def __init__(
        self, python: str, data: Path, folder: Path, warm: WarmProcess | None = None
    ) -> None:
        self._python, self._data, self._folder, self._warm = python, data, folder, warm
        self._started: list[subprocess.Popen[str] | Forked] = []

    def start(
        self,
        *arguments: str,
        launcher: Sequence[str] = (),
        program: Path = TRAIN,
        node: str = "node",
        **variables: str,
    ) -> subprocess.Popen[str]:
        """Start the program, with these variables in addition to SageMaker's."""
        process = subprocess.Popen(
            [self._python, *launcher, str(program), *arguments],
            env=self._environment(node, variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def fork(self, *arguments: str, node: str = "node", **variables: str) -> Forked:
        """Start train.py as `start` does, without its imports."""
        assert self._warm is not None
        environment = self._environment(node, variables)
        process = self._warm.start(_FORKED, json.dumps(environment), *arguments)
        self._started.append(process)
        return process

    def _environment(self, node: str, variables: Mapping[str, str]) -> dict[str, str]:
        return {
            **_inherited(),
            "SM_MODEL_DIR": str(self.output(node) / "model"),
            "SM_OUTPUT_DATA_DIR": str(self.output(node) / "data"),
            "SM_CHANNEL_TRAINING": str(self._data),
            "SM_INPUT_DIR": str(self.output(node) / "input"),
            **variables,
        }

    def output(self, node: str = "node") -> Path:
        """Return a node's output folder."""
        return self._folder / node

    def metrics(self, node: str = "node") -> dict[str, Any]:
        """Return a node's metrics.json."""
        metrics: dict[str, Any] = json.loads(
            (self.output(node) / "data" / "metrics.json").read_text()
        )
        return metrics

    def end(self) -> None:
        """Kill every process that is still running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def succeed(*processes: subprocess.Popen[str] | Forked) -> str:
    """Wait for all processes, which must succeed, and return the first one's stdout."""
    outputs = [process.communicate(timeout=DEADLINE_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs[0][0]


def two_nodes(
    trainings: Trainings, *arguments: str, prefix: str = "127.0.9", **variables: str
) -> list[Forked]:
    """Start the program on two emulated nodes, as forks."""
    hosts, port = [f"{prefix}.1", f"{prefix}.2"], str(free_port())
    shared = {"SM_HOSTS": json.dumps(hosts), "MASTER_PORT": port, "SM_NETWORK_INTERFACE_NAME": "lo"}
    shared |= variables
    return [trainings.fork(*arguments, node=host, SM_CURRENT_HOST=host, **shared) for host in hosts]
