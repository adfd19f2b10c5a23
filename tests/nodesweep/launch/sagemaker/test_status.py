"""SageMaker's descriptions, converted to a JobStatus."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nodesweep.launch.sagemaker.status import (
    EMULATED_ACCOUNT,
    RUNNING,
    SIMULATED_ACCOUNT,
    WAITING,
    failure_reason,
    kind_of_arn,
    read_processing_job,
    read_training_job,
)
from tests.nodesweep.scaling.outcome.test_outcome import STARTED, description


def said(message):
    """Return a job whose first status has this message."""
    return read_training_job(description(SecondaryStatusTransitions=[{"StatusMessage": message}]))


def test_a_job_with_preferences_has_the_instances_that_were_selected():
    preferences = [
        {"InstanceType": name, "InstanceCount": 2} for name in ("ml.p5.48xlarge", "ml.p4d.24xlarge")
    ]
    waiting = {"InstancePreferences": preferences}
    selected = {"SelectedInstanceType": "ml.p4d.24xlarge", "SelectedInstanceCount": 2}
    jobs = [
        read_training_job(description(ResourceConfig=resources))
        for resources in (waiting, waiting | selected)
    ]
    assert [(job.instance_type, job.nodes) for job in jobs] == [
        (None, 1),
        ("ml.p4d.24xlarge", 2),
    ]


def test_why_a_job_stopped(snapshot):
    limit = {
        "SecondaryStatus": "MaxRuntimeExceeded",
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }
    assert failure_reason(description("Stopped", **limit)) == snapshot
    assert failure_reason(description("Stopped")) == snapshot
    assert failure_reason(description("Completed")) is None


@pytest.mark.parametrize(
    ("account", "kind"),
    [(EMULATED_ACCOUNT, "emulated"), (SIMULATED_ACCOUNT, "simulated"), ("123456789012", "aws")],
)
def test_the_account_tells_the_kind_of_platform(account, kind):
    assert read_training_job(description(account=account)).platform_kind == kind
    assert kind_of_arn("not an arn") == "aws"


def test_isolation_is_read_from_the_starting_message(snapshot):
    message = (
        "Preparing the instances for training. Emulated nodes: 0.2 vCPU per node by cgroup v1"
        " quota\nmore"
    )
    assert said(message).isolation == snapshot
    assert said(None).isolation is None


def test_launch_path_only_is_read_from_the_starting_message(snapshot):
    job = said("launch path only: smdistributed is not here; Emulated nodes: 0.2 vCPU per node")
    assert job.launch_path_only == snapshot
    assert job.isolation == snapshot
    assert said(None).launch_path_only is None


def test_phases_are_summed_over_their_visits_and_open_ones_left_out():
    second = timedelta(seconds=1)
    transitions = [
        {"Status": "Training", "StartTime": STARTED, "EndTime": STARTED + 3 * second},
        {"Status": "Training", "StartTime": STARTED, "EndTime": STARTED + 4 * second},
        {"Status": "Uploading", "StartTime": STARTED},
    ]
    job = read_training_job(description(SecondaryStatusTransitions=transitions))
    assert job.phase_seconds == {"Training": 7.0}


@pytest.mark.parametrize("status", ["InProgress", "Stopping", "Completed", "Failed", "Stopped"])
def test_states_are_those_of_any_backend(status):
    job = read_training_job({"TrainingJobName": "j", "TrainingJobStatus": status})
    assert job.state == {"InProgress": "running"}.get(status, status.lower())
    assert job.has_ended == (status in ("Completed", "Failed", "Stopped"))


def test_a_status_that_is_new_to_us_is_no_end():
    assert not read_training_job(
        {"TrainingJobName": "j", "TrainingJobStatus": "Deleting"}
    ).has_ended


@pytest.mark.parametrize(
    ("pool", "retention"),
    [
        (None, None),
        ({"Status": "Available"}, "available"),
        ({"Status": "InUse"}, "in_use"),
        ({"Status": "Reused", "ReusedByJob": "next"}, "over"),
        ({"Status": "Terminated"}, "over"),
    ],
)
def test_a_warm_pool_is_kept_nodes(pool, retention):
    job = read_training_job(description(WarmPoolStatus=pool))
    assert (job.retention, job.reused_by) == (retention, (pool or {}).get("ReusedByJob"))


def test_work_begins_with_the_first_training_phase():
    job = read_training_job(description())
    assert (job.created_at, job.started_at, job.ended_at) == (
        STARTED - timedelta(seconds=2),
        STARTED + timedelta(seconds=15),
        STARTED + timedelta(seconds=80),
    )
    assert [visit.phase for visit in job.visits] == [
        "Starting", "Downloading", "Training", "Uploading",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "state", "phase"),
    [
        ({"ProcessingJobStatus": "InProgress"}, "running", WAITING),
        (
            {"ProcessingJobStatus": "InProgress", "ProcessingStartTime": STARTED},
            "running",
            RUNNING,
        ),
        ({"ProcessingJobStatus": "Stopping"}, "stopping", "Stopping"),
        ({"ProcessingJobStatus": "Failed", "ExitMessage": "no"}, "failed", "Failed"),
    ],
)
def test_a_processing_job_in_progress_waits_or_runs(members, state, phase):
    job = read_processing_job({"ProcessingJobName": "v", **members})
    assert (job.name, job.state, job.phase, job.message) == ("v", state, phase, None)
    assert (job.started_at, job.exit_message) == (
        members.get("ProcessingStartTime"), members.get("ExitMessage"),
    )  # fmt: skip


def test_a_processing_job_has_the_nodes_of_its_cluster():
    job = {"ProcessingJobName": "v", "ProcessingJobStatus": "Completed"}
    assert read_processing_job(job).nodes == 1
    resources = {"ClusterConfig": {"InstanceCount": 3}}
    assert read_processing_job({**job, "ProcessingResources": resources}).nodes == 3
