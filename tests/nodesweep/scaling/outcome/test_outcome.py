"""The outcome read from a job's results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nodesweep.launch.sagemaker.status import SIMULATED_ACCOUNT, read_training_job
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.outcome.logged import Logged
from nodesweep.scaling.outcome.outcome import Clocks, read_outcome

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


def job(status: str = "Completed", **changes) -> JobStatus:
    return read_training_job(description(status, **changes))


def read(metrics=None, status: str = "Completed", **changes):
    return read_outcome(job(status, **changes), metrics, nodes=1, repeat=1, attempt=1)


def read_logged_run(
    logged: Logged, metrics=None, nodes: int = 2, world_size: int | None = 2, **changes
):
    point = {"nodes": nodes, "repeat": 1, "attempt": 1, "world_size": world_size}
    return read_outcome(job(**changes), metrics, logged=logged, **point)


def test_the_four_clocks():
    outcome = read({"train_seconds": 48.5, "steady": {"step_seconds": 0.04}})
    assert outcome.clocks == Clocks(
        submit_to_end_seconds=82.0,
        billable_seconds=70.0,
        train_seconds=48.5,
        steady_step_seconds=0.04,
    )
    assert outcome.train_clock == "program"
    assert outcome.phases == {"Starting": 5, "Downloading": 10, "Training": 60, "Uploading": 5}


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        {},
        {"train_seconds": None},
        {"train_seconds": -1, "steady": [1]},
        ["?"],
        {"train_seconds": 10**400},
    ],
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
    planned = {
        "world_size": 8,
        "global_batch_size": 256,
        "per_replica_batch_size": 64,
        "learning_rate": 0.1,
    }
    outcome = read_outcome(
        job(), metrics, nodes=1, repeat=1, attempt=1, batch_policy="fixed_global", **planned
    )
    assert (outcome.world_size, outcome.global_batch_size, outcome.learning_rate) == (8, 512, 0.05)
    assert outcome.per_replica_batch_size == 64, "half a sample is no batch size"
    assert (outcome.planned, outcome.launcher, outcome.batch_policy) == (
        planned,
        "torchrun",
        "fixed_global",
    )
    unreported = read_outcome(job(), {}, nodes=1, repeat=1, attempt=1, **planned)
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
        ResourceConfig={
            "InstanceType": "ml.m5.xlarge",
            "InstanceCount": 1,
            "KeepAlivePeriodInSeconds": 600,
        },
        WarmPoolStatus={
            "Status": "Reused",
            "ResourceRetainedBillableTimeInSeconds": 0,
            "ReusedByJob": "bench-n2",
        },
    )
    assert (outcome.spot, outcome.training_time_seconds, outcome.clocks.billable_seconds) == (
        True,
        200,
        70,
    )
    assert (outcome.keep_alive, outcome.retained_billable_seconds, outcome.reused_by_job) == (
        True,
        0,
        "bench-n2",
    )


@pytest.mark.parametrize(
    "validations",
    [None, "none", 3, [None], [{"value": 0.5}], [{"elapsed_seconds": 2, "value": "x"}]],
)
def test_odd_validations_are_none(validations):
    assert read({"validations": validations}).validations == ()


def test_validations_are_in_time_order():
    given = [{"elapsed_seconds": 20, "value": 0.9, "step": 4}, {"elapsed_seconds": 10, "value": 0}]
    assert read({"validations": given}).validations == ((10, 0), (20, 0.9))


def test_a_failed_job_has_no_training_phase_clock():
    outcome = read(
        None, "Failed", FailureReason="AlgorithmError: ExitCode 1", BillableTimeInSeconds=None
    )
    assert (outcome.clocks.train_seconds, outcome.clocks.billable_seconds) == (None, None)
    assert (outcome.reason, outcome.completed, outcome.failure_is_transient) == (
        "AlgorithmError: ExitCode 1",
        False,
        False,
    )


@pytest.mark.parametrize(
    "reason", ["CapacityError: Unable to provision", "InternalServerError: try again"]
)
def test_only_capacity_and_internal_errors_may_pass(reason):
    assert read(None, "Failed", FailureReason=reason).failure_is_transient


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"name": "acc", "value": 0.9, "goal": "maximize"},
            {"name": "acc", "value": 0.9, "goal": "maximize"},
        ),
        (0.9, {"name": None, "value": 0.9, "goal": None}),
        ({"value": float("nan")}, None),
        ("high", None),
        (None, None),
    ],
)
def test_final_metric_of_any_program(given, expected):
    metric = read({"final_metric": given}).final_metric
    assert (metric and metric.model_dump()) == expected


def test_the_programs_own_clock_comes_before_the_training_phase():
    logged = Logged({"train_seconds": 6.138})
    outcome = read_logged_run(logged)
    assert (outcome.clocks.train_seconds, outcome.train_clock) == (6.138, "logged")
    assert outcome.train_seconds_by == {"logged": 6.138, "training_phase": 60.0}
    assert outcome.logged == {"train_seconds": 6.138}
    both = read_logged_run(logged, {"train_seconds": 6.2})
    assert (both.clocks.train_seconds, both.train_clock) == (6.2, "program")
    assert both.train_seconds_by == {"program": 6.2, "logged": 6.138, "training_phase": 60.0}


def test_start_up_is_taken_off_the_training_phase_where_the_log_shows_it():
    began = STARTED.timestamp() + 15
    start = read_logged_run(
        Logged(start_unix_seconds=began + 20, first_step_unix_seconds=began + 25)
    )
    assert (start.train_clock, start.clocks.train_seconds) == ("phase_from_start_line", 40.0)
    assert start.train_seconds_by["phase_from_first_step"] == 35.0
    step = read_logged_run(Logged(first_step_unix_seconds=began + 25))
    assert (step.train_clock, step.clocks.train_seconds) == ("phase_from_first_step", 35.0)
    for outside in (began - 1, began + 60):
        assert read_logged_run(Logged(start_unix_seconds=outside)).train_clock == "training_phase"
    interrupted = description()["SecondaryStatusTransitions"]
    twice = [*interrupted[:3], interrupted[2], *interrupted[3:]]
    again = read_logged_run(Logged(start_unix_seconds=began + 20), SecondaryStatusTransitions=twice)
    assert again.train_clock == "training_phase"


@pytest.mark.parametrize(
    ("metrics", "logged", "planned", "world"),
    [
        (None, Logged(), 2, None),
        (None, Logged(), None, None),
        (None, Logged(), 1, 1),
        ({"world": {"world_size": 2}}, Logged(), 2, 2),
        ({"world": {"world_size": 2.5}}, Logged(), 2, None),
        (None, Logged(world_sizes=frozenset({2})), 2, 2),
        (None, Logged(world_sizes=frozenset({3})), None, 3),
    ],
)
def test_only_the_run_confirms_the_world_size(metrics, logged, planned, world):
    outcome = read_logged_run(logged, metrics, world_size=planned)
    assert (outcome.status, outcome.reason, outcome.world_size) == ("Completed", None, world)


def test_a_simulation_confirms_and_contradicts_nothing():
    simulated = {
        "TrainingJobArn": f"arn:aws:sagemaker:us-east-1:{SIMULATED_ACCOUNT}:training-job/bench-n1"
    }
    assert read_logged_run(Logged(), **simulated).world_size == 2
    other = read_logged_run(Logged(), {"world": {"world_size": 16}}, **simulated)
    assert (other.status, other.world_size) == ("Completed", 16)


def test_nodes_that_never_talked_are_a_failed_point_with_both_numbers(snapshot):
    """Each of two nodes trained alone and reported it."""
    alone = read_logged_run(Logged({"train_seconds": 6.0}, frozenset({1})))
    assert (alone.status, alone.world_size, alone.completed, alone.failure_is_transient) == (
        "Failed",
        1,
        False,
        False,
    )
    assert alone.reason == snapshot
    file = read_logged_run(Logged(), {"train_seconds": 6.0, "world": {"world_size": 1}})
    assert file.reason == snapshot
    failed = read_logged_run(
        Logged(world_sizes=frozenset({1})), status="Failed", FailureReason="AlgorithmError: boom"
    )
    assert failed.reason == "AlgorithmError: boom"
