"""Faults of simulated jobs: their waits and triggers follow the virtual clock, so that tests take
no time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import phases, serve_simulated
from infra.local.tests.simulation.test_simulated_platform import (
    MODEL,
    metrics_of,
    phase_lengths,
    simulate,
)

FAULTS = [
    {"fault": "throttle", "operation": "ListTrainingJobs", "calls": [1, 1]},
    {"fault": "pending", "jobs": "pending-*", "seconds": 3600},
    {"fault": "capacity_error", "jobs": "starved-*", "seconds": 1800},
    {"fault": "algorithm_error", "jobs": "broken-*", "after_seconds": 120, "node": "algo-2"},
    {"fault": "algorithm_error", "jobs": "at-line-*", "at_line": "^step=50; loss"},
    {"fault": "internal_error", "jobs": "internal-*", "after_seconds": 520},
    {"fault": "internal_error", "jobs": "late-*", "after_seconds": 1021},
    {
        "fault": "spot_interruption",
        "jobs": "spot-*",
        "after_seconds": 520,
        "restart_after_seconds": 60,
    },
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    yield from serve_simulated(tmp_path_factory.mktemp("faulty"), FAULTS, MODEL)


def training_lengths(job: dict[str, Any]) -> list[float]:
    return [
        (item["EndTime"] - item["StartTime"]).total_seconds()
        for item in job["SecondaryStatusTransitions"]
        if item["Status"] == "Training"
    ]


def test_calls_are_throttled(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match="ThrottlingException"):
        platform.sagemaker.list_training_jobs()


def test_pending(platform: SimpleNamespace) -> None:
    job = simulate(platform, "pending-1")
    assert phases(job) == [
        "Starting",
        "Pending",
        "Downloading",
        "Training",
        "Uploading",
        "Completed",
    ]
    assert phase_lengths(job)["Pending"] == pytest.approx(3600, abs=0.5)


def test_capacity_error(platform: SimpleNamespace) -> None:
    job = simulate(platform, "starved-1")
    assert job["FailureReason"].startswith("CapacityError: ")
    assert phases(job) == ["Starting", "Pending", "Failed"]
    assert phase_lengths(job)["Pending"] == pytest.approx(1800, abs=0.5)
    assert "TrainingStartTime" not in job


def test_algorithm_error_by_time(platform: SimpleNamespace) -> None:
    job = simulate(platform, "broken-1", nodes=2)
    assert job["FailureReason"].startswith("AlgorithmError: algo-2 ")
    assert training_lengths(job) == [pytest.approx(120, abs=0.5)]
    assert job["TrainingTimeInSeconds"] == 150
    # has no algo-2
    assert simulate(platform, "broken-2", nodes=1)["TrainingJobStatus"] == "Completed"


def test_algorithm_error_by_line(platform: SimpleNamespace) -> None:
    job = simulate(platform, "at-line-1")
    # step 50 of 100 steps of 10 s
    assert training_lengths(job) == [pytest.approx(20 + 500, abs=0.5)]


def test_internal_error_is_retried_from_the_beginning(platform: SimpleNamespace) -> None:
    assert simulate(platform, "internal-1")["FailureReason"].startswith("InternalServerError: ")
    job = simulate(platform, "internal-2", RetryStrategy={"MaximumRetryAttempts": 1})
    assert job["TrainingJobStatus"] == "Completed"
    assert training_lengths(job) == [pytest.approx(520, abs=0.5), pytest.approx(1020, abs=0.5)]


def test_a_fault_after_the_end_does_not_strike(platform: SimpleNamespace) -> None:
    assert simulate(platform, "late-1")["TrainingJobStatus"] == "Completed"


SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 7200},
}


@pytest.mark.parametrize(("checkpoints", "second"), [(False, 1020), (True, 620)])
def test_interrupted_job_goes_on(
    platform: SimpleNamespace, checkpoints: bool, second: float
) -> None:
    """The job is interrupted after 500 s. The last of its five validations was at 400 s."""
    name = f"spot-{'kept' if checkpoints else 'lost'}"
    config = {"CheckpointConfig": {"S3Uri": "s3://results/checkpoints"}} if checkpoints else {}
    job = simulate(platform, name, **SPOT, **config)
    assert job["TrainingJobStatus"] == "Completed"
    assert phases(job)[3:7] == ["Interrupted", "Restarting", "Pending", "Downloading"]
    assert phase_lengths(job)["Pending"] == pytest.approx(160, abs=0.5)
    assert training_lengths(job) == [pytest.approx(520, abs=0.5), pytest.approx(second, abs=0.5)]
    assert job["TrainingTimeInSeconds"] == pytest.approx(30 + 520 + 30 + second + 10, abs=1)
    assert job["BillableTimeInSeconds"] == round(job["TrainingTimeInSeconds"] * 0.3)
    assert metrics_of(platform, name)["train_seconds"] == pytest.approx(1000)


def test_limits_go_by_the_virtual_clock(platform: SimpleNamespace) -> None:
    job = simulate(platform, "long-1", StoppingCondition={"MaxRuntimeInSeconds": 600})
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert training_lengths(job) == [pytest.approx(600, abs=0.5)]
    limits = {"MaxRuntimeInSeconds": 300, "MaxWaitTimeInSeconds": 300}
    job = simulate(platform, "pending-2", EnableManagedSpotTraining=True, StoppingCondition=limits)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")
    created, ended = job["CreationTime"], job["SecondaryStatusTransitions"][-1]["StartTime"]
    assert (ended - created).total_seconds() == pytest.approx(300, abs=0.5)


def test_a_jobs_own_faults(platform: SimpleNamespace) -> None:
    own = '[{"fault": "pending", "seconds": 42}]'
    job = simulate(platform, "own-1", Environment={"NODESWEEP_FAULTS": own})
    assert phase_lengths(job)["Pending"] == pytest.approx(42, abs=0.5)


def test_the_same_name_has_the_same_times(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lengths = []
    for folder in (tmp_path, tmp_path_factory.mktemp("again")):
        server = serve_simulated(folder, model={**MODEL, "noise_sigma": 0.1})
        served = next(server)
        lengths.append(
            metrics_of(served, simulate(served, "twin")["TrainingJobName"])["train_seconds"]
        )
        server.close()  # type: ignore[attr-defined]
    assert lengths[0] == lengths[1] != pytest.approx(1000, abs=1e-6)
