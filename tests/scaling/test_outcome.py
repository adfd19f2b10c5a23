"""Reading what came back from a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from scaling.outcome import (
    EMULATED_ACCOUNT,
    SIMULATED_ACCOUNT,
    Clocks,
    failure_reason,
    isolation,
    launch_path_only,
    phase_seconds,
    platform_kind,
    read_outcome,
)

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def description(status: str = "Completed", account: str = "123456789012", **changes):
    at = [STARTED + timedelta(seconds=seconds) for seconds in (0, 5, 15, 75, 80)]
    steps = ["Starting", "Downloading", "Training", "Uploading"]
    transitions = [
        {"Status": step, "StartTime": start, "EndTime": end}
        for step, start, end in zip(steps, at[:-1], at[1:], strict=True)
    ]
    transitions.append({"Status": status, "StartTime": at[-1], "EndTime": at[-1]})
    return {
        "TrainingJobName": "bench-n1",
        "TrainingJobArn": f"arn:aws:sagemaker:us-east-1:{account}:training-job/bench-n1",
        "TrainingJobStatus": status,
        "SecondaryStatus": status,
        "SecondaryStatusTransitions": transitions,
        "CreationTime": at[0] - timedelta(seconds=2),
        "BillableTimeInSeconds": 70,
        "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1},
        **changes,
    }


def read(metrics=None, status: str = "Completed", **changes):
    return read_outcome(description(status, **changes), metrics, nodes=1, repeat=1, attempt=1)


def test_the_four_clocks():
    outcome = read({"train_seconds": 48.5, "steady": {"step_seconds": 0.04}})
    assert outcome.clocks == Clocks(82.0, 70.0, 48.5, 0.04)
    assert outcome.train_clock == "program"
    assert outcome.phases == {"Starting": 5, "Downloading": 10, "Training": 60, "Uploading": 5}


@pytest.mark.parametrize(
    "metrics",
    [None, {}, {"train_seconds": None}, {"train_seconds": -1, "steady": [1]}, ["?"], {"train_seconds": 10**400}],
)
def test_without_a_program_clock_the_training_phase_counts(metrics):
    outcome = read(metrics)
    assert (outcome.clocks.train_seconds, outcome.train_clock) == (60.0, "training_phase")
    assert outcome.clocks.steady_step_seconds is None


def test_what_the_program_reports_replaces_what_was_planned():
    metrics = {
        "world": {"world_size": 8, "launcher": "torchrun"},
        "batch": {"global_batch_size": 512, "per_replica_batch_size": 64.5},
        "learning_rate": 0.05,
    }
    planned = {"world_size": 4, "global_batch_size": 256, "per_replica_batch_size": 64, "learning_rate": 0.1}
    outcome = read_outcome(description(), metrics, nodes=1, repeat=1, attempt=1, batch_policy="fixed_global", **planned)
    assert (outcome.world_size, outcome.global_batch_size, outcome.learning_rate) == (8, 512, 0.05)
    assert outcome.per_replica_batch_size == 64, "half a sample is no batch size"
    assert (outcome.planned, outcome.launcher, outcome.batch_policy) == (planned, "torchrun", "fixed_global")
    unreported = read_outcome(description(), {}, nodes=1, repeat=1, attempt=1, **planned)
    assert unreported.global_batch_size == 256


def test_where_and_on_what_the_job_ran():
    outcome = read(
        AlgorithmSpecification={"TrainingImage": "repo@sha256:aa"},
        OutputDataConfig={"S3OutputPath": "s3://bucket/sweep/jobs/"},
    )
    assert (outcome.region, outcome.image_uri) == ("us-east-1", "repo@sha256:aa")
    assert outcome.output_uri == "s3://bucket/sweep/jobs/bench-n1/output/output.tar.gz"
    assert (read().image_uri, read().output_uri) == (None, None)


def test_spot_and_warm_pool():
    plain = read()
    assert (plain.spot, plain.training_time_seconds, plain.keep_alive, plain.reused_by_job) == (
        False,
        None,
        False,
        None,
    )
    outcome = read(
        EnableManagedSpotTraining=True,
        TrainingTimeInSeconds=200,
        ResourceConfig={"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "KeepAlivePeriodInSeconds": 600},
        WarmPoolStatus={"Status": "Reused", "ResourceRetainedBillableTimeInSeconds": 0, "ReusedByJob": "bench-n2"},
    )
    assert (outcome.spot, outcome.training_time_seconds, outcome.clocks.billable_seconds) == (True, 200, 70)
    assert (outcome.keep_alive, outcome.retained_billable_seconds, outcome.reused_by_job) == (True, 0, "bench-n2")


@pytest.mark.parametrize(
    "validations", [None, "none", 3, [None], [{"value": 0.5}], [{"elapsed_seconds": 2, "value": "x"}]]
)
def test_odd_validations_are_none(validations):
    assert read({"validations": validations}).validations == ()


def test_validations_are_in_time_order():
    given = [{"elapsed_seconds": 20, "value": 0.9, "step": 4}, {"elapsed_seconds": 10, "value": 0}]
    assert read({"validations": given}).validations == ((10, 0), (20, 0.9))


def test_a_failed_job_has_no_training_phase_clock():
    outcome = read(None, "Failed", FailureReason="AlgorithmError: ExitCode 1", BillableTimeInSeconds=None)
    assert (outcome.clocks.train_seconds, outcome.clocks.billable_seconds) == (None, None)
    assert (outcome.reason, outcome.completed, outcome.may_pass) == ("AlgorithmError: ExitCode 1", False, False)


@pytest.mark.parametrize("reason", ["CapacityError: Unable to provision", "InternalServerError: try again"])
def test_only_capacity_and_internal_errors_may_pass(reason):
    assert read(None, "Failed", FailureReason=reason).may_pass


def test_why_a_job_stopped():
    limit = {"SecondaryStatus": "MaxRuntimeExceeded", "StoppingCondition": {"MaxRuntimeInSeconds": 600}}
    assert "limit of 600 s (training.max_runtime_seconds)" in failure_reason(description("Stopped", **limit))
    assert failure_reason(description("Stopped")) == "stopped on request"
    assert failure_reason(description("Completed")) is None


@pytest.mark.parametrize(
    ("account", "kind"), [(EMULATED_ACCOUNT, "emulated"), (SIMULATED_ACCOUNT, "simulated"), ("123456789012", "aws")]
)
def test_the_account_tells_the_kind_of_platform(account, kind):
    assert read(account=account).platform_kind == kind
    assert platform_kind("not an arn") == "aws"


def test_isolation_is_read_from_the_starting_message():
    message = "Preparing the instances for training. Emulated nodes: 0.2 vCPU per node by cgroup v1 quota\nmore"
    assert (
        isolation({"SecondaryStatusTransitions": [{"StatusMessage": message}]})
        == "0.2 vCPU per node by cgroup v1 quota"
    )
    assert isolation({}) is None


def test_launch_path_only_is_read_from_the_starting_message():
    message = "launch path only: smdistributed is not here; Emulated nodes: 0.2 vCPU per node"
    said = {"SecondaryStatusTransitions": [{"StatusMessage": message}]}
    assert launch_path_only(said) == "smdistributed is not here"
    assert isolation(said) == "0.2 vCPU per node"
    assert launch_path_only({}) is None


def test_phases_are_summed_over_their_visits_and_open_ones_left_out():
    second = timedelta(seconds=1)
    transitions = [
        {"Status": "Training", "StartTime": STARTED, "EndTime": STARTED + 3 * second},
        {"Status": "Training", "StartTime": STARTED, "EndTime": STARTED + 4 * second},
        {"Status": "Uploading", "StartTime": STARTED},
    ]
    assert phase_seconds(transitions) == {"Training": 7.0}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": "acc", "value": 0.9, "goal": "maximize"}, {"name": "acc", "value": 0.9, "goal": "maximize"}),
        (0.9, {"name": None, "value": 0.9, "goal": None}),
        ({"value": float("nan")}, None),
        ("high", None),
        (None, None),
    ],
)
def test_final_metric_of_any_program(given, expected):
    assert read({"final_metric": given}).final_metric == expected
