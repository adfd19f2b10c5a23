"""The time limit in hours that a form gives a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
from prefect.exceptions import CancelledRun

import nodesweep.flows.stages.deadline
import nodesweep.flows.stages.sweep
import nodesweep.flows.stages.validation
import nodesweep.tasks.cancelling
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from infra.local.tests.platform_fakes import endless_program
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import RunTimedOut
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stages.deadline import deadline
from nodesweep.polling import STOP, Cancelled, Clock
from tests.flows.validation.test_validation_on_spark import spark_config  # noqa: F401  (a fixture)

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


def test_a_build_that_is_waited_for_is_ended_by_the_deadline_too() -> None:
    """The result of a submitted task that was interrupted is Prefect's exception."""
    with pytest.raises(RunTimedOut), deadline(A_MOMENT_HOURS):
        with pytest.raises(Cancelled):
            Clock().sleep(60)
        raise CancelledRun


@pytest.fixture(params=[False, True], ids=["command", "deployment"])
def late_at(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[ModuleType, str], None]:
    """Return late_at(module, name), which ends the time of a run as it calls this function.

    Prefect's server reports the run as Running.
    """
    over: list[Callable[[], None]] = []

    class Timer:
        def __init__(self, seconds: float, end: Callable[[], None]) -> None:
            assert seconds == 2.5 * 3600
            over.append(end)

        def start(self) -> None:
            """Do nothing, since the test ends the time."""

        cancel = start

    monkeypatch.setattr(nodesweep.flows.stages.deadline.threading, "Timer", Timer)
    monkeypatch.setattr(nodesweep.tasks.cancelling, "has_deployment", lambda: request.param)

    def install(module: ModuleType, name: str) -> None:
        watch = getattr(module, name)

        def late(*arguments: object) -> object:
            over[0]()
            return watch(*arguments)

        monkeypatch.setattr(module, name, late)

    return install


def run_late(config: BenchmarkConfig) -> None:
    """Run a benchmark that fails because its time is over."""
    state = scaling_benchmark(config, timeout_hours=2.5, return_state=True)
    assert (state.type.value, "timeout_hours (2.5)" in str(state.message)) == ("FAILED", True)


@pytest.mark.usefixtures("prefect")
def test_a_sweep_that_takes_longer_leaves_no_job_running(
    pipeline_config: Callable[..., BenchmarkConfig],
    served: SimpleNamespace,
    late_at: Callable[[ModuleType, str], None],
    request: pytest.FixtureRequest,
) -> None:
    """The time is over at the first poll of the sweep's jobs."""
    late_at(nodesweep.flows.stages.sweep, "watch_training_jobs")
    name = f"late-{request.node.callspec.id}"
    run_late(pipeline_config("lingering", name=name, sweep={"max_parallel_jobs": 2}))

    def ended() -> list[str] | None:
        jobs = served.sagemaker.list_training_jobs(NameContains=name)["TrainingJobSummaries"]
        found = [job["TrainingJobStatus"] for job in jobs]
        return None if {"Stopping", "InProgress"} & {*found} else found

    assert wait_until(ended) == ["Stopped"] * 2


@pytest.mark.usefixtures("prefect")
def test_a_dataset_that_takes_longer_to_validate_leaves_no_job_running(
    spark_config: Callable[..., BenchmarkConfig],  # noqa: F811
    served: SimpleNamespace,
    late_at: Callable[[ModuleType, str], None],
    request: pytest.FixtureRequest,
) -> None:
    late_at(nodesweep.flows.stages.validation, "watch_validation_job")
    name = f"late-{request.node.callspec.id}"
    run_late(spark_config(endless_program, name=name))

    def ended() -> list[str] | None:
        jobs = served.sagemaker.list_processing_jobs(NameContains=name)["ProcessingJobSummaries"]
        found = [job["ProcessingJobStatus"] for job in jobs]
        return None if {"Stopping", "InProgress"} & {*found} else found

    assert wait_until(ended) == ["Stopped"]
