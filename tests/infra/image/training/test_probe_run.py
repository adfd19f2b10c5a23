"""A probe of the program: two nodes end simultaneously and early, with the values that a projection
needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodesweep.scaling.analysis.step_budget import MOST_ERROR
from nodesweep.scaling.outcome.projection import project
from tests.infra.image.training.processes import Trainings, succeed, two_nodes
from tests.infra.image.training.test_runs import EXCLUDE, check

pytestmark = pytest.mark.slow
ASKED = {"NODESWEEP_PROBE_PRECISION": "0.2", "NODESWEEP_PROBE_MAX_STEPS": "60"}
# 1,438 training rows x 40 passes in batches of 192: 299 steps an epoch, 598 in all.
RUN = ("--passes-per-epoch", "40", "--global-batch-size", "192", "--epochs", "2", *EXCLUDE)


def test_two_nodes_end_together_and_say_what_they_left_out(
    trainings: Trainings, tmp_path: Path
) -> None:
    folder = str(tmp_path / "checkpoints")
    kept = ("--checkpoint-dir", folder, "--checkpoint-every-steps", "400")
    succeed(*two_nodes(trainings, *RUN, *kept, **ASKED))
    metrics = trainings.metrics("127.0.9.1")
    steps = metrics["steps"]
    assert steps in (24, 29, 36, 44, 54, 60)  # four to warm up and twenty to look at, then 1.25x
    check(metrics, steps=steps)
    probe = metrics["probe"]
    assert probe["ended"] == ("max_steps" if steps == 60 else "precise")
    assert (probe["planned_steps"], probe["planned_epochs"]) == (598, 2.0)
    assert probe["validations"]["planned"] == 2 and len(probe["validations"]["seconds"]) == 1
    checkpoints = probe["checkpoints"]
    assert (checkpoints["planned"], checkpoints["made"]) == (2, 0)  # after 299 and 400 steps
    assert len(checkpoints["seconds"]) == 1 and checkpoints["seconds"][0] > 0
    projection = project(metrics, {})
    assert projection is not None
    left = (598 - steps) * probe["step_seconds"]
    expected = metrics["train_seconds"] + left + 2 * checkpoints["seconds"][0]
    assert projection.train_seconds == pytest.approx(expected)
    split = metrics.get("budget")
    assert split or "20 ms" in metrics["not_split"]
    if split:
        parts = sum(split[0]["seconds"].values())
        assert parts == pytest.approx(metrics["train_seconds"], rel=MOST_ERROR)


def test_two_nodes_run_past_the_first_epoch_where_that_costs_little(
    trainings: Trainings, tmp_path: Path
) -> None:
    """Of 10 epochs of 29 steps each."""
    run = ("--passes-per-epoch", "4", "--global-batch-size", "192", "--epochs", "10", *EXCLUDE)
    kept = ("--checkpoint-dir", str(tmp_path / "checkpoints"))
    succeed(*two_nodes(trainings, *run, *kept, **ASKED))
    metrics = trainings.metrics("127.0.9.1")
    probe = metrics["probe"]
    assert metrics["steps"] in (59, 60)  # an epoch, the ten steps that begin the next, and twenty
    assert probe["epoch_steps"] == 29
    epochs = probe["epochs"]
    assert (epochs["planned"], epochs["made"], len(epochs["seconds"])) == (9, 2, 1)
    assert len(probe["validations"]["seconds"]) == 3, "one an epoch, and at the end"
    assert probe["checkpoints"]["made"] == 2
    projection = project(metrics, {})
    assert projection is not None and projection.unseen == ()
    assert (projection.epochs_seen, projection.validations_seen) == (1, 3)


def test_a_share_that_the_warm_up_outlasts_still_has_a_step_time(trainings: Trainings) -> None:
    share = {**ASKED, "NODESWEEP_PROBE_MAX_STEPS": "2000", "NODESWEEP_PROBE_MAX_SHARE": "0.01"}
    run = ("--passes-per-epoch", "400", "--global-batch-size", "192", "--epochs", "1")
    excluded = ("--warmup-exclude-steps", "2", "--warmup-exclude-seconds", "2")
    succeed(*two_nodes(trainings, *run, *excluded, **share))
    metrics = trainings.metrics("127.0.9.1")
    assert metrics["steps"] < metrics["probe"]["planned_steps"] == 2995
    assert metrics["probe"]["step_seconds"] > 0
    assert project(metrics, {}) is not None


def test_two_nodes_make_as_many_steps_as_take_the_seconds_that_the_sweep_asks_for(
    trainings: Trainings,
) -> None:
    """Beyond the one epoch that the program would make by itself: of two steps, since its pace is
    known after three at the earliest, however slow they are.
    """
    epoch = ("--passes-per-epoch", "1", "--global-batch-size", "720", "--warmup-exclude-steps", "2")
    succeed(*two_nodes(trainings, *epoch, NODESWEEP_RUN_SECONDS="5"))
    sized = trainings.metrics("127.0.9.1")
    assert sized["steps"] >= 3 and sized["epochs"] > 1
    assert "probe" not in sized
    succeed(*two_nodes(trainings, *epoch, NODESWEEP_RUN_STEPS="31"))
    told = trainings.metrics("127.0.9.1")
    assert (told["steps"], len(told["step_seconds"])) == (31, 31)
    assert told["validations"][-1]["step"] == 31
