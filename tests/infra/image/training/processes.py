"""Training processes for the tests, in the image's Python."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ports import free_port

IMAGE = Path(__file__).resolve().parents[4] / "infra" / "image"
TRAIN = IMAGE / "train.py"
DEADLINE_SECONDS = 900.0
"""That only a hang reaches."""


class Trainings:
    """Starts training processes in a clean SageMaker environment and kills leftovers."""

    def __init__(self, python: str, data: Path, folder: Path) -> None:
        self._python, self._data, self._folder = python, data, folder
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self,
        *arguments: str,
        launcher: Sequence[str] = (),
        program: Path = TRAIN,
        node: str = "node",
        **variables: str,
    ) -> subprocess.Popen[str]:
        """Start the program, with these variables in addition to SageMaker's."""
        inherited = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("SM_", "MASTER_", "OMPI_", "PYTHON"))
        }
        folders = {
            "SM_MODEL_DIR": self.output(node) / "model",
            "SM_OUTPUT_DATA_DIR": self.output(node) / "data",
        }
        environment = {
            **inherited,
            **{name: str(path) for name, path in folders.items()},
            "SM_CHANNEL_TRAINING": str(self._data),
            "SM_INPUT_DIR": str(self.output(node) / "input"),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        process = subprocess.Popen(
            [self._python, *launcher, str(program), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

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


def succeed(*processes: subprocess.Popen[str]) -> str:
    """Wait for all processes, which must succeed, and return the first one's stdout."""
    outputs = [process.communicate(timeout=DEADLINE_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs[0][0]


def two_nodes(
    trainings: Trainings, *arguments: str, prefix: str = "127.0.9", **variables: str
) -> list[subprocess.Popen[str]]:
    """Start the program on two emulated nodes."""
    hosts, port = [f"{prefix}.1", f"{prefix}.2"], str(free_port())
    shared = {"SM_HOSTS": json.dumps(hosts), "MASTER_PORT": port, "SM_NETWORK_INTERFACE_NAME": "lo"}
    shared |= variables
    return [
        trainings.start(*arguments, node=host, SM_CURRENT_HOST=host, **shared) for host in hosts
    ]
