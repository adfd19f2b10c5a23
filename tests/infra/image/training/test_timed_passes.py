"""A run on one node that times smaller batches once its results are written."""

from __future__ import annotations

import signal
import time

import pytest

from nodesweep.scaling.outcome.timed_passes import read_timed_passes
from tests.infra.image.training.processes import DEADLINE_SECONDS, Trainings, succeed
from tests.infra.image.training.test_runs import EXCLUDE, check

pytestmark = pytest.mark.slow
ASKED = {"NODESWEEP_TIME_PASSES": "192,96,24"}
# steps of more than 20 ms, which are split into parts
RUN = (
    *("--hidden-size", "1024", "--passes-per-epoch", "4", "--global-batch-size", "192"),
    *("--max-steps", "6", *EXCLUDE),
)


def test_smaller_batches_are_timed_after_the_run(trainings: Trainings) -> None:
    printed = succeed(trainings.fork(*RUN, **ASKED))
    metrics = trainings.metrics()
    check(metrics, steps=6)
    assert printed.count("train_seconds=") == 1
    timed = read_timed_passes(metrics)
    assert timed is not None, printed
    assert [each.samples for each in timed.passes] == [192, 96, 24]
    assert 0.02 < timed.ratios[24].ratio < timed.ratios[96].ratio < 1
    assert timed.passes_seconds < 16


def test_a_failure_of_the_timing_does_not_fail_the_run(trainings: Trainings) -> None:
    printed = succeed(trainings.fork(*RUN, NODESWEEP_TIME_PASSES="192,few"))
    assert "passes at smaller batches were not timed: ValueError" in printed
    check(trainings.metrics(), steps=6)


def test_sigterm_during_the_timing_leaves_a_complete_job(trainings: Trainings) -> None:
    process = trainings.start(*RUN, **ASKED)
    written, started = trainings.output() / "data" / "metrics.json", time.monotonic()
    while not written.exists() and time.monotonic() - started < DEADLINE_SECONDS:
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    printed = succeed(process)
    metrics = trainings.metrics()
    check(metrics, steps=6)
    assert "passes" not in metrics and "train_seconds=" in printed
    assert (trainings.output() / "model" / "best.ckpt").is_file()
