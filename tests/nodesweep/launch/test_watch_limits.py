"""When a job has exceeded a time limit, according to its description."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from syrupy.assertion import SnapshotAssertion

from benchmarks.watch_calls import START
from nodesweep.launch.sagemaker.status import read_training_job
from nodesweep.launch.watch import JobLimits, exceeded_limit
from nodesweep.scaling.job import JobStatus

LIMITS = JobLimits(queue_seconds=600.0, run_seconds=3600.0)


def running_job(*steps: tuple[str, float]) -> JobStatus:
    """Return a job in progress, given the seconds from its creation to each secondary status."""
    transitions = [
        {"Status": status, "StartTime": START + timedelta(seconds=at)} for status, at in steps
    ]
    return read_training_job(
        {
            "TrainingJobName": "j",
            "TrainingJobStatus": "InProgress",
            "CreationTime": START,
            "SecondaryStatusTransitions": transitions,
        }
    )


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.mark.parametrize("status", ["Starting", "Pending", "LaunchingMLInstances", "Downloading"])
def test_job_that_does_not_train_may_wait_as_long_as_the_queue_deadline(
    status: str, snapshot: SnapshotAssertion
) -> None:
    job = running_job((status, 1.0))
    assert exceeded_limit(job, LIMITS, later(600)) is None
    assert exceeded_limit(job, LIMITS, later(601)) == snapshot


def test_job_that_trains_has_its_runtime_from_then(snapshot: SnapshotAssertion) -> None:
    job = running_job(("Starting", 0.0), ("Training", 500.0), ("Uploading", 4000.0))
    assert exceeded_limit(job, LIMITS, later(4100)) is None
    assert exceeded_limit(job, LIMITS, later(4101)) == snapshot
