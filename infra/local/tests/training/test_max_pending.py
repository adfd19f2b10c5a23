"""MaxPendingTimeInSeconds: a job on accelerated instances that is Pending for longer is stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.local.tests.platform_client import (
    job_request,
    phases,
    resources,
    run_job,
    serve_simulated,
    wait_until,
)
from infra.local.tests.platform_fakes import FakeEngine, FakeImageStore
from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.jobs.execution import ExecutionServices
from sagemaker_emulator.state.files import RecordStore
from sagemaker_emulator.state.unsaved import Ledger
from sagemaker_emulator.training.execution import TrainingExecution
from sagemaker_emulator.training.manager import TrainingJobs
from sagemaker_emulator.training.record import TrainingJob
from sagemaker_emulator.training.runner import EngineTrainingRunner

GPU, CPU = "ml.g5.xlarge", "ml.m5.large"
REGION = "us-east-1"


def request(name: str, instance_type: str, seconds: int = 1800, **more: Any) -> dict[str, Any]:
    condition = {"MaxRuntimeInSeconds": 3600, "MaxPendingTimeInSeconds": seconds, **more}
    kind = resources(1, instance_type)
    return job_request(name, "endless", ResourceConfig=kind, StoppingCondition=condition)


def services(folder: Path) -> ExecutionServices:
    """Services whose engine runs no jobs, because another platform uses the machine."""
    engine = FakeEngine(folder / "engine")
    engine.machine_is_free.clear()
    return ExecutionServices(
        engine, FakeImageStore(), lambda service, region: None, clock=lambda: 0.0
    )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[tuple[TrainingJobs, list[float]]]:
    """Jobs and their clock. The first job occupies the machine."""
    now = [1_000_000.0]
    jobs = TrainingJobs(
        EngineTrainingRunner(services(tmp_path)),
        RecordStore(tmp_path / "jobs", Ledger()),
        {},
        clock=lambda: now[0],
    )
    jobs.start()
    jobs.create(REGION, job_request("first", "endless"))
    yield jobs, now
    jobs.close()


def status(jobs: TrainingJobs, name: str) -> str:
    return str(jobs.describe(REGION, name)["SecondaryStatus"])


def test_a_job_in_the_queue_is_stopped(bench: tuple[TrainingJobs, list[float]]) -> None:
    jobs, now = bench
    for name, kind in (("gpu", GPU), ("cpu", CPU), ("neuron", "ml.trn1.2xlarge")):
        jobs.create(REGION, request(name, kind))
    now[0] += 1799
    jobs.create(REGION, request("later", "ml.p4d.24xlarge"))
    assert {status(jobs, name) for name in ("gpu", "cpu", "neuron", "later")} == {"Pending"}
    now[0] += 1
    for name in ("gpu", "neuron"):
        wait_until(lambda name=name: status(jobs, name) == "Stopped")
        job = jobs.describe(REGION, name)
        assert phases(job) == ["Starting", "Pending", "Stopped"]
        last = job["SecondaryStatusTransitions"][-1]["StatusMessage"]
        assert last.endswith("exceeded MaxPendingTimeInSeconds provided")
        assert not {"BillableTimeInSeconds", "FailureReason"} & set(job)
    assert {status(jobs, name) for name in ("cpu", "later")} == {"Pending"}


def test_a_job_that_waits_for_another_platforms_is_stopped(tmp_path: Path) -> None:
    job = TrainingJob(REGION, request("waits", GPU, 1), creation_time=0.0)
    job.enter("Starting", 0.0, "Preparing the instances for training.")
    never = threading.Event()
    execution = TrainingExecution(
        job, lambda apply: apply(job), services(tmp_path), JobFaults(), never
    )
    execution.run()
    assert phases({"SecondaryStatusTransitions": job.transitions}) == [
        "Starting",
        "Pending",
        "Stopped",
    ]


def test_all_of_its_waits_count() -> None:
    job = TrainingJob(REGION, request("spot", GPU, 1800, MaxWaitTimeInSeconds=4000), 0.0)
    for moment, phase in ((0, "Pending"), (1000, "Downloading"), (2000, "Pending")):
        job.enter(phase, moment)
    for now in (2000.0, 2500.0):
        assert job.longest_wait(now)[0] == 2800
    job.request["StoppingCondition"]["MaxWaitTimeInSeconds"] = 2700
    assert (job.longest_wait(2000.0)[0], job.longest_wait(2000.0)[1].status) == (
        2700,
        "MaxWaitTimeExceeded",
    )


def test_a_simulated_job_is_stopped_on_its_own_clock(tmp_path: Path) -> None:
    faults = [{"fault": "pending", "seconds": 3600}]
    for platform in serve_simulated(tmp_path, faults):
        gpu = run_job(platform, "gpu", **without_name(request("gpu", GPU)))
        cpu = run_job(platform, "cpu", **without_name(request("cpu", CPU)))
    assert phases(gpu) == ["Starting", "Pending", "Stopped"]
    waited = gpu["SecondaryStatusTransitions"][1]
    assert (waited["EndTime"] - waited["StartTime"]).total_seconds() == pytest.approx(1800)
    assert "Downloading" in phases(cpu)


def without_name(whole: dict[str, Any]) -> dict[str, Any]:
    return {name: whole[name] for name in ("ResourceConfig", "StoppingCondition")}
