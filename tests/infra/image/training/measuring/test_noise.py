"""The squared norms of gradients under DDP, in the image's own Python."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from benchmarks.ports import free_port
from nodesweep.scaling.analysis.quality_target import crowding
from tests.infra.image.training.processes import Trainings, succeed, two_nodes
from tests.infra.image.training.test_runs import AMOUNT, SCHEMA

pytestmark = pytest.mark.slow
TINY = ("--hidden-size", "8", "--layers", "2", "--epochs", "40", "--checkpoint", "false")


def test_the_squares_are_those_of_gradients_computed_without_ddp(trainings: Trainings) -> None:
    program = Path(__file__).with_name("ddp_noise.py")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    succeed(
        *(
            trainings.start(program=program, node=str(rank), RANK=str(rank), **shared)
            for rank in range(2)
        )
    )


def test_two_ranks_write_what_a_report_reads(trainings: Trainings) -> None:
    steps = 544  # 17 of which are measured, in 8 windows of 2
    amount = [*AMOUNT[:-1], str(steps)]
    succeed(*two_nodes(trainings, *amount, *TINY, prefix="127.0.31"))
    metrics = trainings.metrics("127.0.31.1")
    jsonschema.Draft202012Validator(SCHEMA).validate(metrics)
    section = metrics["gradient_noise"]
    assert (section["small_batch_size"], section["large_batch_size"]) == (96, 192)
    assert section["every_steps"] == 32
    assert len(section["small_squares"]) == len(section["large_squares"]) == 8
    # an average of gradients is never longer than they are
    pairs = zip(section["large_squares"], section["small_squares"], strict=True)
    assert all(0 < large <= small for large, small in pairs)
    found = crowding(metrics)
    assert found is not None and found.middle > 0


def test_one_process_and_a_short_run_write_nothing(trainings: Trainings) -> None:
    succeed(trainings.fork(*AMOUNT, *TINY))
    assert "gradient_noise" not in trainings.metrics()
    succeed(*two_nodes(trainings, *AMOUNT, *TINY, prefix="127.0.32"))
    assert "gradient_noise" not in trainings.metrics("127.0.32.1")
