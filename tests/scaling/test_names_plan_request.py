"""Names and digests, the plan, the request of a point, and reading what came back."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from configs.catalogue import load_catalogue
from configs.load import parse_config
from scaling import names
from scaling.outcome import (
    EMULATED_ACCOUNT,
    SIMULATED_ACCOUNT,
    Clocks,
    failure_reason,
    isolation,
    phase_seconds,
    platform_kind,
    read_outcome,
)
from scaling.plan import plan_sweep, scaled_learning_rate
from scaling.request import ResolvedInputs, build_request, fill_placeholders

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
INPUTS = ResolvedInputs(
    sweep_id="bench-20260102030405-0a1b2c3d",
    image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/nodesweep@sha256:" + "a" * 64,
    dataset_uri="s3://bench-bucket/nodesweep/datasets/digits/0123456789abcdef/data/",
)


def plan_of(config):
    return plan_sweep(config, load_catalogue().get(config.training.instance_type))


# ---- names


def test_the_longest_job_name_fits_and_matches_sagemakers_pattern(make_config):
    config = make_config(name="a" * 20)
    sweep = names.sweep_id(config, STARTED)
    job = names.job_name(sweep, nodes=512, repeat=50, attempt=10, request_digest="f" * 64)
    assert (len(sweep), len(job)) == (44, 62)
    assert JOB_NAME.fullmatch(job)
    assert job.startswith(names.job_prefix(sweep))


def test_sweep_id_tells_its_config_and_time(make_config):
    config = make_config()
    sweep = names.sweep_id(config, STARTED)
    assert sweep.startswith("bench-20260102030405-")
    assert names.is_sweep_id(sweep) and names.sweep_matches(sweep, config)
    assert not names.sweep_matches(sweep, make_config(training={"seed": 2}))
    assert not any(
        names.is_sweep_id(other) for other in ("bench", sweep + "\n", sweep.upper(), "-" + sweep, sweep + "x")
    )


def test_config_digest_ignores_key_order_directory_and_report(raw_config):
    config = parse_config(raw_config, "test")
    backwards = parse_config(dict(reversed(raw_config.items())), "test")
    elsewhere = [config.with_absolute_paths(Path(folder)) for folder in ("/home/a/repo/configs", "/srv/b/configs")]
    quiet = parse_config({**raw_config, "report": {"directory": "elsewhere", "title": "T"}}, "test")
    digests = {names.config_digest(each) for each in (config, backwards, *elsewhere, quiet)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"seed": 2}},
        {"sweep": {"repeats": 2}},
        {"dataset": {"source": "other"}},
        {"dataset": {"source": "s3://bucket/data"}},
        {"platform": {"region": "eu-west-1"}},
    ],
)
def test_config_digest_sees_what_is_measured(sections, make_config):
    assert names.config_digest(make_config(**sections)) != names.config_digest(make_config())


def test_canonical_digest_knows_no_key_order():
    assert names.canonical_digest({"a": 1, "b": [1, {"c": 2, "d": 3}]}) == names.canonical_digest(
        {"b": [1, {"d": 3, "c": 2}], "a": 1}
    )
    with pytest.raises(ValueError, match="Out of range float"):
        names.canonical_digest({"a": float("nan")})


# ---- plan


def test_fixed_global_divides_the_batch(make_config):
    config = make_config(
        training={"batch": {"policy": "fixed_global", "size": 64, "accumulate_grad_batches": 2}},
        sweep={"node_counts": [1, 2, 4], "repeats": 1, "order": "ascending"},
    )
    plan = plan_of(config)
    assert [(p.world_size, p.global_batch_size, p.per_replica_batch_size) for p in plan.points] == [
        (1, 64, 32),
        (2, 64, 16),
        (4, 64, 8),
    ]
    assert plan.problems == ()


def test_fixed_per_replica_grows_the_batch_and_the_learning_rate(make_config):
    config = make_config(
        training={"batch": {"policy": "fixed_per_replica", "size": 8}},
        sweep={"node_counts": [2, 4], "repeats": 1, "order": "ascending"},
    )
    two, four = plan_of(config).points
    assert (two.global_batch_size, four.global_batch_size, four.per_replica_batch_size) == (16, 32, 8)
    assert (two.learning_rate, four.learning_rate) == pytest.approx((0.1, 0.2))


@pytest.mark.parametrize(("rule", "expected"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_learning_rate_rules(rule, expected, make_config):
    rate = make_config(training={"learning_rate": {"value": 0.1, "rule": rule}}).training.learning_rate
    assert scaled_learning_rate(rate, global_batch=256, base_global_batch=64) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("instance_type", "kind", "processes"),
    [
        ("ml.m5.xlarge", "torch_distributed", 1),
        ("ml.p3.16xlarge", "torch_distributed", 8),
        ("ml.p3.16xlarge", "none", 1),
        ("ml.trn1.32xlarge", "torch_distributed", 32),
    ],
)
def test_processes_per_node_follow_the_devices(instance_type, kind, processes, make_config):
    config = make_config(training={"instance_type": instance_type, "distribution": {"kind": kind}})
    assert plan_of(config).processes_per_node == processes


def test_order_is_a_reproducible_shuffle_of_each_repeat(make_config):
    sweep = {"node_counts": [1, 2, 4, 8], "repeats": 3, "order": "shuffled", "order_seed": 7}
    plan = plan_of(make_config(sweep=sweep))
    assert plan == plan_of(make_config(sweep=sweep))
    assert [p.repeat for p in plan.points] == [1] * 4 + [2] * 4 + [3] * 4
    assert all(sorted(p.nodes for p in plan.points[i : i + 4]) == [1, 2, 4, 8] for i in (0, 4, 8))
    assert {(p.repeat, p.seed) for p in plan.points} == {(1, 1), (2, 2), (3, 3)}


def test_cost_bound_by_hand(make_config):
    # (1 + 2) nodes x 2 repeats x 1 h = 6 node-hours
    plan = plan_of(make_config(sweep={"node_counts": [1, 2], "repeats": 2}))
    assert plan.cost_bound_usd == pytest.approx(6 * load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour)
    assert "6.0 node-hours" in plan.cost_bound_reason


def test_all_problems_are_named_at_once(make_config):
    config = make_config(
        training={"hyperparameters": {"epochs": 3}, "batch": {"policy": "fixed_global", "size": 63}},
        sweep={"node_counts": [1, 2], "repeats": 1, "budget_usd": 0.01},
    )
    indivisible, unreached, dear = plan_of(config).problems
    assert "training.batch.size: 63 does not divide by 2" in indivisible and "use 62 or 64" in indivisible
    assert "training.hyperparameters: no value holds {per_replica_batch_size}" in unreached
    assert "sweep.budget_usd: 0.01 is less than" in dear


def test_a_budget_without_a_price_is_a_problem(make_config):
    config = make_config(training={"instance_type": "ml.local.small"}, sweep={"node_counts": [1], "budget_usd": 1.0})
    (problem,) = plan_of(config).problems
    assert "sweep.budget_usd: 1.0 can't be checked" in problem


# ---- request


def test_golden_request(benchmark_config):
    request = build_request(benchmark_config, plan_of(benchmark_config).points[0], INPUTS)
    nodes = request["ResourceConfig"]["InstanceCount"]
    assert request["TrainingJobName"].startswith(f"bench-20260102030405-0a1b2c3d-n{nodes}-r1-a1-")
    digest = names.request_digest(request)
    assert request == {
        "TrainingJobName": f"bench-20260102030405-0a1b2c3d-n{nodes}-r1-a1-{digest[:4]}",
        "AlgorithmSpecification": {
            "TrainingImage": INPUTS.image_uri,
            "TrainingInputMode": "File",
            "EnableSageMakerMetricsTimeSeries": True,
        },
        "RoleArn": "arn:aws:iam::123456789012:role/training",
        "InputDataConfig": [
            {
                "ChannelName": "training",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": INPUTS.dataset_uri,
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
                "InputMode": "File",
            }
        ],
        "OutputDataConfig": {"S3OutputPath": "s3://bench-bucket/nodesweep/sweeps/bench-20260102030405-0a1b2c3d/jobs"},
        "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": nodes, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "HyperParameters": {
            "epochs": "3",
            "batch-size": str(64 // nodes),
            "lr": "0.1",
            "sagemaker_program": '"train.py"',
            "sagemaker_container_log_level": "20",
            "sagemaker_region": '"us-east-1"',
            "sagemaker_job_name": json.dumps(request["TrainingJobName"]),
        },
        "ProfilerConfig": {"DisableProfiler": True},
        "Tags": [
            {"Key": "nodesweep:sweep-id", "Value": INPUTS.sweep_id},
            {"Key": "nodesweep:request-digest", "Value": digest},
            {"Key": "nodesweep:nodes", "Value": str(nodes)},
            {"Key": "nodesweep:repeat", "Value": "1"},
            {"Key": "nodesweep:attempt", "Value": "1"},
        ],
    }


def test_request_digest_is_the_same_for_another_attempt(benchmark_config):
    point = plan_of(benchmark_config).points[0]
    first, second = (build_request(benchmark_config, point, INPUTS, attempt) for attempt in (1, 2))
    assert names.request_digest(first) == names.request_digest(second)
    assert first["TrainingJobName"] != second["TrainingJobName"]


def test_torch_distributed_and_own_code_reach_the_toolkit(make_config):
    config = make_config(training={"distribution": {"kind": "torch_distributed", "processes_per_node": 2}})
    inputs = ResolvedInputs(INPUTS.sweep_id, INPUTS.image_uri, INPUTS.dataset_uri, "s3://b/code/sourcedir.tar.gz")
    sent = build_request(config, plan_of(config).points[0], inputs)["HyperParameters"]
    assert sent["sagemaker_torch_distributed_enabled"] == "true"
    assert sent["sagemaker_mpi_num_of_processes_per_host"] == "2"
    assert sent["sagemaker_submit_directory"] == '"s3://b/code/sourcedir.tar.gz"'


def test_placeholders_keep_a_numbers_type(benchmark_config):
    point = plan_of(benchmark_config).points[0]
    assert fill_placeholders("{global_batch_size}", point) == 64
    assert fill_placeholders("b={global_batch_size}", point) == "b=64"
    assert (fill_placeholders(3, point), fill_placeholders('{"a": 1}', point)) == (3, '{"a": 1}')


def test_a_hyperparameter_too_long_for_the_service_is_refused(make_config):
    config = make_config(training={"hyperparameters": {"b": "{global_batch_size}", "long": "x" * 2499}})
    with pytest.raises(ValueError, match="'long' is 2501 characters; SageMaker takes 2500"):
        build_request(config, plan_of(config).points[0], INPUTS)


# ---- outcome


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


@pytest.mark.parametrize("metrics", [None, {}, {"train_seconds": None}, {"train_seconds": -1, "steady": [1]}, ["?"]])
def test_without_a_program_clock_the_training_phase_counts(metrics):
    outcome = read(metrics)
    assert (outcome.clocks.train_seconds, outcome.train_clock) == (60.0, "training_phase")
    assert outcome.clocks.steady_step_seconds is None


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
