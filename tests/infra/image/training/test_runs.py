"""The whole program in the image's own Python: real processes, real measurements, and a checked
metrics.json."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
import pytest

from benchmarks.ports import free_port
from infra.local.tests.platform_client import wait_until
from nodesweep.scaling.analysis.step_budget import MOST_ERROR, read_run_budget
from tests.infra.image.training.processes import (
    DEADLINE_SECONDS,
    IMAGE,
    Trainings,
    succeed,
    two_nodes,
)

SENT_FORMATS = Path(__file__).parent / "distributed" / "sent_formats.py"
STEPS = 24
# 1,438 training rows x 4 passes in batches of 192: 29 steps an epoch.
AMOUNT = ("--passes-per-epoch", "4", "--global-batch-size", "192", "--max-steps", str(STEPS))
QUICK = (*AMOUNT, "--learning-rate", "0.005")
SCHEMA = json.loads((IMAGE.parents[1] / "docs" / "metrics.schema.json").read_text(encoding="utf-8"))
EXCLUDE = ("--warmup-exclude-steps", "4", "--warmup-exclude-seconds", "0")

pytestmark = pytest.mark.slow


def check(metrics: Mapping[str, Any], *, steps: int = STEPS) -> None:
    """Assert the facts that hold for every metrics.json."""
    jsonschema.Draft202012Validator(SCHEMA).validate(metrics)
    assert metrics["schema_version"] == 1
    assert metrics["steps"] == steps == len(metrics["step_seconds"])
    assert 0 < sum(metrics["step_seconds"][:1]) < metrics["train_seconds"]
    took = metrics["run_stop_unix_seconds"] - metrics["run_start_unix_seconds"]
    # the rest: the table that is read, the model that is built, the validations
    assert sum(metrics["step_seconds"]) - 0.1 < metrics["train_seconds"] < took
    steady, world, batch, samples = (
        metrics[name] for name in ("steady", "world", "batch", "samples")
    )
    window = metrics["step_seconds"][steady["first_step"] :]
    assert (steady["steps"], steady["step_seconds"]) == (
        len(window),
        pytest.approx(median(window), abs=2e-6),
    )
    assert world["world_size"] == world["nodes"] * world["processes_per_node"]
    replicas = world["world_size"] * batch["accumulate_grad_batches"]
    assert batch["global_batch_size"] == replicas * batch["per_replica_batch_size"]
    assert samples["requested"] == samples["processed"] - samples["padded"] + samples["dropped"]
    assert samples["processed"] == steps * batch["global_batch_size"]
    assert metrics["dataset_rows"] == 1438
    assert 0 <= metrics["data_wait_share"] < 1
    validations = metrics["validations"]
    assert validations[-1]["step"] == steps
    assert validations[-1]["value"] == metrics["final_metric"]["value"]
    assert [entry["samples"] for entry in validations] == [
        entry["step"] * batch["global_batch_size"] for entry in validations
    ]
    elapsed = [entry["elapsed_seconds"] for entry in validations]
    assert [0.0, *elapsed] == sorted({0.0, *elapsed})
    assert elapsed[-1] == metrics["train_seconds"]
    assert metrics["final_metric"]["goal"] == "maximize"
    assert metrics["versions"]["torch"] and metrics["device"]["type"] == "cpu"


def _listening(pid: int) -> set[str]:
    """Return the addresses and ports on which the process's sockets listen, in the kernel's
    format."""
    with suppress(OSError):  # it has ended, or a descriptor was closed meanwhile
        sockets = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        ]
        return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}
    return set()


@pytest.fixture(scope="module")
def alone(
    image_python: str, digits: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trainings, str]:
    """Run one process by hand; return it with what it printed."""
    trainings = Trainings(image_python, digits, tmp_path_factory.mktemp("alone"))
    try:
        return trainings, succeed(trainings.start(*QUICK, *EXCLUDE))
    finally:
        trainings.end()


def test_one_process_by_hand(alone: tuple[Trainings, str]) -> None:
    trainings, printed = alone
    metrics = trainings.metrics()
    check(metrics)
    assert metrics["world"] == {
        "nodes": 1, "processes_per_node": 1, "world_size": 1, "backend": None, "launcher": "plain",
        "strategy": None,
    }  # fmt: skip
    assert metrics["rank_step_spread_seconds"] is None
    # digits are easy; a model that learns nothing has 0.1
    assert metrics["final_metric"]["value"] > 0.8
    assert f"train_seconds={metrics['train_seconds']:.6g};" in printed
    assert (trainings.output() / "model" / "best.ckpt").is_file()
    assert list((trainings.output() / "data" / "tensorboard").glob("events.*"))
    assert not (trainings.output() / "input" / "prepared").exists()


def test_two_nodes_do_the_same_work_as_one_and_listen_on_loopback_alone(
    trainings: Trainings, alone: tuple[Trainings, str]
) -> None:
    """torch's store has no password: anyone who reaches it at the machine's outer address could
    read and change the data that the ranks exchange."""
    processes = two_nodes(trainings, *QUICK, *EXCLUDE)
    seen: set[str] = set()
    while any(process.poll() is None for process in processes):
        for process in processes:
            seen |= _listening(process.pid)
        time.sleep(0.05)
    succeed(*processes)
    # little-endian: 127.0.9.1 is 0109007F
    addresses = {address.partition(":")[0] for address in seen}
    assert "0109007F" in addresses, "the store, at its node's own address"
    assert [address for address in addresses if not address.endswith("7F")] == []
    together, by_itself = trainings.metrics("127.0.9.1"), alone[0].metrics()
    check(together)
    assert together["world"] == {
        "nodes": 2, "processes_per_node": 1, "world_size": 2, "backend": "gloo",
        "launcher": "plain", "strategy": "ddp",
    }  # fmt: skip
    assert together["rank_step_spread_seconds"] >= 0
    assert together["samples"] == by_itself["samples"]
    assert together["final_metric"]["value"] == pytest.approx(
        by_itself["final_metric"]["value"], abs=0.01
    )
    written = {path.name for path in (trainings.output("127.0.9.2") / "data").glob("*")}
    assert written <= {"nodesweep-budget-1.json"}  # rank 0 writes all else
    assert not (trainings.output("127.0.9.2") / "model").exists()


def test_each_rank_splits_its_train_time_without_the_validations(trainings: Trainings) -> None:
    wide = ("--model", "ranking_mlp", "--hidden-size", "1024", "--layers", "7")
    succeed(
        *two_nodes(trainings, *QUICK, *EXCLUDE, *wide, "--evaluate-every-samples", str(8 * 192))
    )
    metrics = trainings.metrics("127.0.9.1")
    jsonschema.Draft202012Validator(SCHEMA).validate(metrics)
    assert len(metrics["validations"]) == 3
    # 6 per parameter and sample, less the first layer's input gradient
    rough = 6 * metrics["model"]["parameters"] * metrics["batch"]["per_replica_batch_size"]
    assert 0.9 * rough < metrics["flops"]["per_step"] < rough
    assert metrics["flops"]["dtype"] == "float32"
    other = trainings.output("127.0.9.2") / "data" / "nodesweep-budget-1.json"
    ranks = [*metrics["budget"], json.loads(other.read_text())]
    assert [(rank["rank"], rank["node"]) for rank in ranks] == [(0, "127.0.9.1"), (1, "127.0.9.2")]
    for rank in ranks:
        seconds = rank["seconds"]
        assert sum(seconds.values()) == pytest.approx(metrics["train_seconds"], rel=MOST_ERROR)
        assert all(seconds[name] > 0 for name in ("start", "data", "forward", "backward"))
        assert seconds["communication"] > 0 and seconds["evaluation"] == 0
        assert len(rank["communication_seconds"]) == STEPS - 1
    read = read_run_budget({**metrics, "budget": ranks}, metrics["train_seconds"])
    assert read is not None and "waiting" in read.shares
    assert read.exchange is not None and 0 < read.exchange.last_share < 1
    [sent] = [rank["network"] for rank in ranks if rank["rank"] == 0]
    assert sum(sent["bucket_bytes"]) == 4 * metrics["model"]["parameters"]
    assert sent["exchanges"] == STEPS - 1


def test_torchrun_with_two_processes_and_accumulation(trainings: Trainings) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    arguments = (
        *QUICK,
        *EXCLUDE,
        "--accumulate-grad-batches",
        "2",
        "--evaluate-every-samples",
        "1920",
    )
    succeed(trainings.start(*arguments, launcher=launcher))
    metrics = trainings.metrics()
    check(metrics)
    assert (metrics["world"]["launcher"], metrics["world"]["processes_per_node"]) == ("torchrun", 2)
    assert metrics["batch"]["per_replica_batch_size"] == 48
    assert metrics["samples"]["per_epoch"] == 1438 * 4
    # every 1,920 samples, and at the end
    assert [entry["step"] for entry in metrics["validations"]] == [10, 20, 24]


def test_compressed_gradients_travel_in_16_bits_and_train(trainings: Trainings) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    arguments = (*QUICK, *EXCLUDE, "--compress", "fp16")
    printed = succeed(trainings.start(*arguments, launcher=launcher, program=SENT_FORMATS))
    metrics = trainings.metrics()
    check(metrics)
    every_gradient = STEPS * metrics["model"]["parameters"]
    assert printed.count(f"sent {every_gradient} numbers of 16 bits") == 2  # by each rank
    assert metrics["final_metric"]["value"] > 0.7  # as digits are easy; 0.1 without learning


def test_resnet18_trains_on_the_digits_images_after_the_boot_barrier(
    trainings: Trainings, tmp_path: Path
) -> None:
    """The images are learned in one epoch of 44 steps."""
    arguments = ("--model", "resnet18", "--global-batch-size", "64", "--passes-per-epoch", "2")
    rate = (
        "--learning-rate-rule",
        "sqrt",
        "--base-global-batch-size",
        "16",
        "--learning-rate",
        "0.001",
    )
    board, barrier = tmp_path / "board", tmp_path / "barrier"
    variables = {"TENSORBOARD_DIR": str(board), "SM_BOOT_BARRIER_DIR": str(barrier)}
    process = trainings.fork(*arguments, *rate, *EXCLUDE, **variables)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (barrier / "ready").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    opened = time.time()
    (barrier / "go").touch()
    succeed(process)
    assert list(board.glob("events.*"))
    metrics = trainings.metrics()
    assert metrics["run_start_unix_seconds"] >= opened
    check(metrics, steps=44)
    assert metrics["final_metric"]["value"] > 0.8
    assert metrics["model"] == {"name": "resnet18", "parameters": 11_172_810}
    assert metrics["learning_rate"] == pytest.approx(0.002)
    assert (metrics["learning_rate_rule"], metrics["base_global_batch_size"]) == ("sqrt", 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "csv"), "--format csv"),
        (("--precision", "bf16"), "--precision bf16"),
        (("--compress", "bf16"), "--backend gloo: use fp16"),
        (("--compress", "fp16", "--strategy", "fsdp"), "--backend gloo: use none"),
    ],
)
def test_what_the_user_can_put_right_is_one_line_and_exit_code_1(
    trainings: Trainings, arguments: tuple[str, ...], message: str
) -> None:
    process = trainings.fork(*arguments)
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    assert message in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_node_whose_peer_dies_ends_too(trainings: Trainings) -> None:
    processes = two_nodes(
        trainings, "--passes-per-epoch", "100", "--epochs", "1000", "--global-batch-size", "64"
    )
    wait_until(lambda: processes[0].output().startswith("step="), DEADLINE_SECONDS)  # it trains
    processes[1].kill()
    assert processes[0].wait(DEADLINE_SECONDS) != 0
