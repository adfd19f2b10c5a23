"""The time limit in hours that a form gives a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import nodesweep.flows.stages.deadline
import nodesweep.flows.stages.sweep
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import RunTimedOut
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stages.deadline import deadline
from nodesweep.polling import STOP, Cancelled, Clock

A_MOMENT_HOURS = 0.05 / 3600


def test_a_run_that_takes_longer_is_told_to_end_and_fails() -> None:
    late = pytest.raises(RunTimedOut, match=r"longer than timeout_hours \(1.38889e-05\)")
    with late, deadline(A_MOMENT_HOURS):
        Clock().sleep(60)


def test_a_run_that_ends_in_time_is_not_disturbed_later() -> None:
    before = set(threading.enumerate())
    with deadline(1.0):
        new = set(threading.enumerate()) - before
        [timer] = [each for each in new if isinstance(each, threading.Timer)]
    timer.join(HANG_SECONDS)
    assert not timer.is_alive() and not STOP.wait(0)


@pytest.mark.parametrize("hours", [None, 1.0, 1e9])
def test_a_cancel_before_stays_a_cancel(hours: float | None) -> None:
    with pytest.raises(Cancelled), deadline(hours):
        STOP.set()
        Clock().sleep(60)


def test_an_error_is_not_the_deadlines() -> None:
    with pytest.raises(ValueError, match="own"), deadline(1.0):
        raise ValueError("own")


@pytest.mark.usefixtures("prefect")
def test_a_sweep_that_takes_longer_leaves_no_job_running(
    pipeline_config: Callable[..., BenchmarkConfig],
    served: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time is over at the first poll of the sweep's jobs."""
    over: list[Callable[[], None]] = []
    watch = nodesweep.flows.stages.sweep.watch_training_jobs

    class Timer:
        def __init__(self, seconds: float, end: Callable[[], None]) -> None:
            assert seconds == 2.5 * 3600
            over.append(end)

        def start(self) -> None:
            """Do nothing, since the test ends the time."""

        cancel = start

    def late(*arguments: object) -> object:
        over[0]()
        return watch(*arguments)

    monkeypatch.setattr(nodesweep.flows.stages.deadline.threading, "Timer", Timer)
    monkeypatch.setattr(nodesweep.flows.stages.sweep, "watch_training_jobs", late)
    config = pipeline_config("lingering", name="late", sweep={"max_parallel_jobs": 2})
    state = scaling_benchmark(config, timeout_hours=2.5, return_state=True)
    assert (state.type.value, "timeout_hours (2.5)" in str(state.message)) == ("FAILED", True)

    def ended() -> list[str] | None:
        jobs = served.sagemaker.list_training_jobs(NameContains="late-")["TrainingJobSummaries"]
        found = [job["TrainingJobStatus"] for job in jobs]
        return None if {"Stopping", "InProgress"} & {*found} else found

    assert wait_until(ended) == ["Stopped"] * 2
