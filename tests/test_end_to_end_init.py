"""`nodesweep init --script` and `nodesweep run` in an empty folder, as in docs/own-code.md.

T of each node count must match the script's own stopwatch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import free_port
from sagemaker_emulator.engine.process.image_store import ProcessImageStore

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[1]
STOPWATCH_TOLERANCE, SLICE_SECONDS = 0.02, 0.1
"""A process that is preempted between two readings of a clock loses a scheduler's slice or two."""
OWN_SCRIPT = """
import argparse, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from nodesweep_clock import clock

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(256 // dist.get_world_size(), 256)
dist.barrier()
began = time.monotonic()
with clock():
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        clock.step(len(batch))
    clock.metric("loss", loss.item(), goal="minimize")
if dist.get_rank() == 0:
    print(f"loss {loss.item():.4f}, took {time.monotonic() - began:.3f} s", flush=True)
dist.destroy_process_group()
"""
Run = Callable[..., str]


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, image_store: ProcessImageStore
) -> Iterator[list[str]]:
    """Return the settings with which a command uses the platform, whose virtual environment already
    exists.

    Nodes are larger than those that init writes, since a fifth of a processor takes a minute to
    import torch. Runs contended by other tests are not repeated.
    """
    state = tmp_path_factory.mktemp("platform")
    (state / "venvs").symlink_to(REPOSITORY / ".nodesweep" / "tests" / "venvs")
    port = str(free_port())
    place = ["--port", port, "--state-dir", str(state)]
    subprocess.run([sys.executable, "-m", "sagemaker_emulator", "start", *place], check=True)
    try:
        fields = {"endpoint_url": f"http://127.0.0.1:{port}", "state_directory": str(state)}
        changes = [f"platform.{name}={value}" for name, value in fields.items()]
        yield [
            word
            for change in (
                *changes,
                "training.instance_type=ml.local.medium",
                "sweep.max_retries=0",
            )
            for word in ("--set", change)
        ]
    finally:
        subprocess.run(
            [sys.executable, "-m", "sagemaker_emulator", "stop", *place], check=True, timeout=300
        )


@pytest.fixture
def nodesweep(tmp_path: Path) -> Run:
    """Return nodesweep("plan", "x.yaml"), which runs the command in an empty folder and returns its
    stdout."""

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
        command = [sys.executable, "-m", "nodesweep", *arguments]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def report_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "reports" / "latest" / "report.json").read_text())


def stopwatches(folder: Path, pattern: str) -> list[float]:
    """Return the times of the slowest rank's own stopwatch on 1 and on 2 nodes."""
    logs = folder / "reports" / "latest" / "logs"
    texts = ("".join(path.read_text() for path in logs.glob(f"n{nodes}-*.log")) for nodes in (1, 2))
    return [max(map(float, re.findall(pattern, text))) for text in texts]


def test_own_script_from_an_empty_folder_to_its_report(
    nodesweep: Run, platform: list[str], tmp_path: Path
) -> None:
    """The script imports the helper from the image, and prints its loss in another form than the
    metric definition expects."""
    (tmp_path / "train.py").write_text(OWN_SCRIPT)
    assert "nodesweep.yaml" in nodesweep("init", "--script", "train.py")
    given = {"hyperparameters": "{steps: 400}", "metric_definitions": "{loss: 'loss=([0-9.]+)'}"}
    changes = [
        word for name, value in given.items() for word in ("--set", f"training.{name}={value}")
    ]
    said = nodesweep("run", "nodesweep.yaml", *platform, *changes)
    report = report_in(tmp_path)
    assert (report["train_clock"], [row["world_size"] for row in report["summary"]]) == (
        "program",
        [1, 2],
    )
    assert report["recommendation"] is not None
    times = [point["clocks"]["train_seconds"] for point in report["points"]]
    assert times == pytest.approx(
        stopwatches(tmp_path, r"took ([0-9.]+) s"), rel=STOPWATCH_TOLERANCE, abs=SLICE_SECONDS
    )
    said = " ".join(said.split())
    assert "'loss=([0-9.]+)'" in said
    assert re.search(r"1 node, .*2 nodes, .*“algo-1: loss", said)
