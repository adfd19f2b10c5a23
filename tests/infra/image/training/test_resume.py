"""Interrupted runs: killed while they train, started again, and compared with uninterrupted
runs."""

from __future__ import annotations

import pickletools
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.infra.image.training.processes import DEADLINE_SECONDS, Trainings, succeed, two_nodes
from tests.processes.warm_process import Forked, WarmProcess

pytestmark = pytest.mark.slow

# 1,438 training rows x 4 passes in batches of 192: 29 steps an epoch, 58 in all.
RUN = (
    "--passes-per-epoch",
    "4",
    "--global-batch-size",
    "192",
    "--epochs",
    "2",
    "--learning-rate",
    "0.002",
)
RUN = (*RUN, "--warmup-steps", "20", "--hidden-size", "512", "--evaluate-every-samples", "1920")
ALWAYS = (*RUN, "--checkpoint-every-steps", "7")
INTERRUPTION_SECONDS = 1.0  # without a process
SAME = 1e-6  # one process: the same arithmetic in the same order
SAME_OVER_RANKS = 0.003  # one of the 359 validation rows: sums over ranks may round differently


def kill_when_checkpointed(last: Path, processes: list[Forked]) -> None:
    """Kill the run between two checkpoints, as a spot interruption does.

    The next start is at least INTERRUPTION_SECONDS later.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not last.exists():
        assert all(process.poll() is None for process in processes), processes[0].communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for process in processes:
        process.kill()
        process.communicate()
    time.sleep(INTERRUPTION_SECONDS)


def compare(resumed: dict[str, Any], whole: dict[str, Any], tolerance: float) -> None:
    assert (resumed["interruptions"], whole["interruptions"]) == (1, 0)
    at = resumed["resumed_at_step"]
    assert at is not None and whole["resumed_at_step"] is None
    assert at % 7 == 0 or at == 29
    assert resumed["steps"] == whole["steps"] == 58
    assert len(resumed["step_seconds"]) == 58 - at
    assert resumed["samples"] == whole["samples"]
    for metrics in (resumed, whole):
        assert [validation["step"] for validation in metrics["validations"]] == [
            10,
            20,
            30,
            40,
            50,
            58,
        ]
    assert resumed["final_metric"]["value"] == pytest.approx(
        whole["final_metric"]["value"], abs=tolerance
    )
    clock = resumed["run_stop_unix_seconds"] - resumed["run_start_unix_seconds"]
    # the gap is not training
    assert 0 < resumed["train_seconds"] < clock - INTERRUPTION_SECONDS


@contextmanager
def trainings_in(folder: Path, python: str, data: Path, warm: WarmProcess) -> Iterator[Trainings]:
    running = Trainings(python, data, folder, warm)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def cut(
    tmp_path_factory: pytest.TempPathFactory, image_python: str, digits: Path, warm: WarmProcess
) -> Path:
    """The checkpoints of a killed run of one process; each test gets a copy."""
    folder = tmp_path_factory.mktemp("cut")
    checkpoints = folder / "checkpoints"
    with trainings_in(folder, image_python, digits, warm) as trainings:
        started = trainings.fork(*ALWAYS, "--checkpoint-dir", str(checkpoints))
        kill_when_checkpointed(checkpoints / "last.ckpt", [started])
        assert not (trainings.output() / "data" / "metrics.json").exists()
    return checkpoints


@pytest.fixture
def checkpoints(cut: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cut, tmp_path / "checkpoints"))


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, image_python: str, digits: Path, warm: WarmProcess
) -> dict[str, Any]:
    """The metrics of an uninterrupted run of one process."""
    folder = tmp_path_factory.mktemp("whole")
    with trainings_in(folder, image_python, digits, warm) as trainings:
        succeed(trainings.fork(*RUN))
        return trainings.metrics()


@pytest.fixture(scope="module")
def whole_on_two(
    tmp_path_factory: pytest.TempPathFactory, image_python: str, digits: Path, warm: WarmProcess
) -> dict[str, Any]:
    """The metrics of an uninterrupted run on two nodes."""
    folder = tmp_path_factory.mktemp("whole-on-two")
    with trainings_in(folder, image_python, digits, warm) as trainings:
        succeed(*two_nodes(trainings, *RUN, prefix="127.0.8"))
        return trainings.metrics("127.0.8.1")


def test_a_run_cut_between_checkpoints_ends_as_one_that_was_not(
    trainings: Trainings, checkpoints: Path, whole: dict[str, Any]
) -> None:
    succeed(trainings.start(*ALWAYS, "--checkpoint-dir", str(checkpoints)))
    compare(trainings.metrics(), whole, SAME)
    assert (trainings.output() / "model" / "best.ckpt").is_file()
    assert list(checkpoints.iterdir()) == []  # the next run starts at its beginning


def test_two_nodes_resume_from_rank_0s_checkpoint(
    trainings: Trainings, tmp_path: Path, whole_on_two: dict[str, Any]
) -> None:
    """The other node gets rank 0's file, since its own disk may have an older file or none."""
    folder = tmp_path / "checkpoints"
    arguments = (*ALWAYS, "--checkpoint-dir", str(folder))
    kill_when_checkpointed(folder / "last.ckpt", two_nodes(trainings, *arguments))
    first, second = two_nodes(trainings, *arguments)
    succeed(first, second)
    compare(trainings.metrics("127.0.9.1"), whole_on_two, SAME_OVER_RANKS)


def test_a_run_cut_on_one_node_goes_on_on_two(
    trainings: Trainings, checkpoints: Path, whole: dict[str, Any]
) -> None:
    succeed(*two_nodes(trainings, *ALWAYS, "--checkpoint-dir", str(checkpoints)))
    compare(trainings.metrics("127.0.9.1"), whole, SAME_OVER_RANKS)


def test_a_checkpoint_of_another_run_is_refused_and_half_a_one_left_aside(
    trainings: Trainings, checkpoints: Path
) -> None:
    arguments = (*ALWAYS, "--checkpoint-dir", str(checkpoints))
    last = checkpoints / "last.ckpt"
    process = trainings.fork(*arguments, "--seed", "7")
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    assert "seed 0" in errors.splitlines()[-1] and " 7: " in errors.splitlines()[-1]
    assert "Traceback" not in errors
    last.write_bytes(last.read_bytes()[:1000])
    process = trainings.fork(*arguments)
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert "complete checkpoint" in errors
    assert trainings.metrics()["interruptions"] == 0


TORCH_2_1_LOADS = re.compile(
    r"collections OrderedDict|torch(\._utils _rebuild_(tensor_v2|parameter)| \w+Storage)"
)
"""Types that torch.load(weights_only=True) takes in PyTorch 2.1 (_weights_only_unpickler.py)."""


def test_a_checkpoint_runs_nothing_on_any_pytorch(
    trainings: Trainings, checkpoints: Path, tmp_path: Path, image_python: str
) -> None:
    """The variable makes torch.load behave as before 2.6 unless a call says otherwise."""
    last, planted = checkpoints / "last.ckpt", tmp_path / "planted"
    with zipfile.ZipFile(last) as archive:
        [pickled] = [name for name in archive.namelist() if name.endswith("data.pkl")]
        operations = pickletools.genops(archive.read(pickled))
        used = {str(argument) for code, argument, _ in operations if code.name == "GLOBAL"}
    assert used and [name for name in used if not TORCH_2_1_LOADS.fullmatch(name)] == []
    hostile = (
        "import sys, pathlib, torch\n"
        "class Hostile:\n"
        "    def __reduce__(self):\n"
        f"        return pathlib.Path.touch, (pathlib.Path({str(planted)!r}),)\n"
        "torch.save(Hostile(), sys.argv[1])\n"
    )
    subprocess.run([image_python, "-c", hostile, str(last)], check=True)
    arguments = (*ALWAYS, "--checkpoint-dir", str(checkpoints))
    process = trainings.start(*arguments, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1")
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1 and "eights" in errors, errors
    assert not planted.exists()


def test_sharded_training_resumes_with_its_optimiser_and_learns_what_ddp_learns(
    trainings: Trainings, tmp_path: Path, image_python: str, whole_on_two: dict[str, Any]
) -> None:
    """FSDP on two nodes without a GPU is interrupted and resumed, and compared with uninterrupted
    DDP."""
    folder = tmp_path / "checkpoints"
    arguments = (*ALWAYS, "--strategy", "fsdp", "--checkpoint-dir", str(folder))
    kill_when_checkpointed(folder / "last.ckpt", two_nodes(trainings, *arguments))
    succeed(*two_nodes(trainings, *arguments))
    sharded = trainings.metrics("127.0.9.1")
    assert sharded["world"]["strategy"] == "fsdp"
    compare(sharded, whole_on_two, 0.02)
    best = trainings.output("127.0.9.1") / "model" / "best.ckpt"
    program = (
        "import sys, torch; print(sum(p.numel() for p in"
        " torch.load(sys.argv[1])['state_dict'].values()))"
    )
    counted = subprocess.run(
        [image_python, "-c", program, str(best)], capture_output=True, text=True, check=True
    )
    assert int(counted.stdout) == sharded["model"]["parameters"]
