"""Simultaneous jobs: as many as the machine's cores hold, each with a separate quota, end and
results."""

from __future__ import annotations

import pytest

from infra.local.tests.platform_client import phases, wait_until
from sagemaker_emulator.engine.host.capacity import machine_cores
from tests.containers.container_bench import archive_names, create_job, log_of, wait_for_end

pytestmark = [pytest.mark.slow, pytest.mark.containers]

WHOLE_MACHINE = {
    "InstanceType": "ml.local.large",
    "InstanceCount": int(machine_cores()),
    "VolumeSizeInGB": 1,
}


def state(platform, name):
    return platform.sagemaker.describe_training_job(TrainingJobName=name)["SecondaryStatus"]


@pytest.fixture(scope="module")
def burned(platform, tiny_image):
    """Two jobs, created one after the other, whose nodes would each use a whole CPU."""
    for name in ("burn-a", "burn-b"):
        create_job(platform, name, tiny_image, "burn")
    return {name: wait_for_end(platform, name) for name in ("burn-a", "burn-b")}


def test_jobs_that_fit_overlap(burned):
    a, b = burned["burn-a"], burned["burn-b"]
    assert [job["TrainingJobStatus"] for job in (a, b)] == ["Completed", "Completed"]
    assert b["TrainingStartTime"] < a["TrainingEndTime"]
    together = (
        min(a["TrainingEndTime"], b["TrainingEndTime"]) - b["TrainingStartTime"]
    ).total_seconds()
    assert together > 3  # of the 12 s that each burns; a busy machine starts the second one late


@pytest.mark.parametrize("name", ["burn-a", "burn-b"])
def test_utilisation_is_that_of_the_quota(platform, burned, name):
    values = {
        metric: metric_values(platform, burned[name], metric)
        for metric in ("CPUUtilization", "MemoryUtilization")
    }
    # 100 is all that 0.2 vCPU may have, and 20 what it would be of a whole one
    assert 25 < max(values["CPUUtilization"]) < 130
    assert 0 < max(values["MemoryUtilization"]) < 5


def metric_values(platform, job, metric):
    dimensions = [{"Name": "Host", "Value": f"{job['TrainingJobName']}/algo-1"}]
    stat = {
        "Metric": {
            "Namespace": "/aws/sagemaker/TrainingJobs",
            "MetricName": metric,
            "Dimensions": dimensions,
        },
        "Period": 1,
        "Stat": "Average",
    }
    found = platform.cloudwatch.get_metric_data(
        MetricDataQueries=[{"Id": "m", "MetricStat": stat}],
        StartTime=job["TrainingStartTime"],
        EndTime=job["TrainingEndTime"],
    )
    return found["MetricDataResults"][0]["Values"]


def test_stop_of_one_leaves_the_other_and_a_third_has_its_turn_after_both(platform, tiny_image):
    for name in ("stop-a", "stop-b"):
        create_job(platform, name, tiny_image, "wait_for_signal")
        wait_until(lambda name=name: "ready" in log_of(platform, name, "algo-1"), 180)
    create_job(platform, "whole", tiny_image, "look", ResourceConfig=WHOLE_MACHINE)
    platform.sagemaker.stop_training_job(TrainingJobName="stop-a")
    a = wait_for_end(platform, "stop-a")
    assert (state(platform, "stop-b"), state(platform, "whole")) == ("Training", "Pending")
    assert phases(a)[-3:] == ["Stopping", "Uploading", "Stopped"]
    assert "saved" in log_of(platform, "stop-a", "algo-1")
    assert archive_names(platform, "jobs/stop-a/output/model.tar.gz") == ["saved"]
    platform.sagemaker.stop_training_job(TrainingJobName="stop-b")
    b, whole = wait_for_end(platform, "stop-b"), wait_for_end(platform, "whole")
    assert [job["TrainingJobStatus"] for job in (b, whole)] == ["Stopped", "Completed"]
    assert whole["TrainingStartTime"] >= b["TrainingEndTime"]
